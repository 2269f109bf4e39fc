"""What on real nodes is not as locked: `status` names it, `up` mends that and only that."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("p4d"), pytest.mark.begins(2)]

MOVE = """
set -e
d=$(mktemp -d); mkdir $d/DEBIAN
printf 'Package: %s\\nVersion: %s\\nArchitecture: %s\\nMaintainer: nobody\\nDescription: by hand\\n' \\
  NAME VERSION $(dpkg --print-architecture) > $d/DEBIAN/control
dpkg-deb --build $d $d.deb >/dev/null
dpkg --force-all -i $d.deb >/dev/null 2>&1
"""
"""Another version of a package, without content, put over the installed one."""


def nodes(sandbox_cluster: SandboxCluster, *arguments: str) -> dict[str, dict[str, Any]]:
    result = sandbox_cluster.run("status", sandbox_cluster.file, "--json", *arguments)
    assert result.status == 0, result.stderr
    return {node["name"]: node for node in result.json["nodes"]}


def drift(sandbox_cluster: SandboxCluster) -> dict[str, list[tuple[str, str, str | None, str | None]]]:
    """Node → (kind, subject, wanted, found), without those that are as locked."""
    return {
        name: [(d["kind"], d["subject"], d["wanted"], d["found"]) for d in node["drift"]]
        for name, node in nodes(sandbox_cluster).items()
        if node["drift"] != []
    }


def root(sandbox_cluster: SandboxCluster, node: str, script: str) -> str:
    argv = ["ssh", "-F", str(sandbox_cluster.root / "ssh" / "config"), node, "sudo sh -s"]
    done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state(sandbox_cluster: SandboxCluster, node: str) -> str:
    """Everything that a repair might touch: packages with their holds, units, files of /etc with their sums."""
    return root(
        sandbox_cluster, node,
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n'; systemctl list-unit-files --no-legend; "
        "find /etc -type f ! -name '*cache*' ! -path '/etc/ld.so.cache' -exec sha256sum {} +; "
        "readlink /proc/$(systemctl show -P MainPID docker)/exe",
    )  # fmt: skip


def roles_that_ran(sandbox_cluster: SandboxCluster) -> dict[str, set[str]]:
    """Node → roles that had a task on it in the newest run."""
    newest = max((sandbox_cluster.root / "runs").iterdir())
    events = [json.loads(line) for line in (newest / "events.jsonl").read_text().splitlines()]
    roles_by_node: dict[str, set[str]] = {}
    for event in events:
        if event.get("unit") == "task" and " : " in event["message"]:
            roles_by_node.setdefault(event["node"], set()).add(event["message"].split(" : ")[0])
    return roles_by_node


def test_a_fleet_as_locked_has_no_drift_and_runs_a_known_lock(p4d: SandboxCluster) -> None:
    node_by_name = nodes(p4d)
    assert all(node["drift"] == [] and node["waiting"] == [] for node in node_by_name.values())
    assert {(node["driver"], node["upgrade"]) for node in node_by_name.values()} == {("580.173.02", None)}
    assert len({node["lock"] for node in node_by_name.values()}) == 1


def test_offline_nobody_is_asked(p4d: SandboxCluster) -> None:
    assert {node["drift"] is None for node in nodes(p4d, "--offline").values()} == {True}


def test_a_driver_package_moved_by_hand_is_named_and_only_it_is_mended(p4d: SandboxCluster) -> None:
    lock = p4d.inventory()["all"]["children"]["train"]["vars"]["gpuprov_stack"]
    package = next(p for p in lock["packages"] if p["name"] == "nvidia-modprobe")
    assert package["part"] == "driver"
    previous_states = {name: state(p4d, name) for name in ("train-1", "train-2")}
    root(p4d, "train-2", MOVE.replace("NAME", package["name"]).replace("VERSION", "570.1.1-1"))
    assert drift(p4d) == {"train-2": [("package", package["name"], package["version"], "570.1.1-1")]}
    planned = p4d.run("plan", p4d.file, "--sandbox", "--json").json["nodes"]
    assert [(n["name"], n["reboot"]) for n in planned if n["drift"]] == [("train-2", True)]
    fixed = p4d.up()
    assert fixed.status == 0, fixed.stderr
    assert fixed.json["changes"] == {"resources": 0, "configured": 1}
    assert set(roles_that_ran(p4d)) == {"train-2"}
    assert drift(p4d) == {}
    assert {name: state(p4d, name) for name in previous_states} == previous_states


@pytest.mark.slow
def test_one_part_is_mended_by_its_own_role(p4d: SandboxCluster) -> None:
    root(p4d, "train-1", "apt-mark unhold libnccl2; systemctl disable --now nvidia-dcgm-exporter")
    drift_by_node = drift(p4d)
    assert set(drift_by_node) == {"train-1"}
    assert sorted(kind for kind, *_ in drift_by_node["train-1"]) == ["hold", "unit"]
    fixed = p4d.up()
    assert fixed.status == 0, fixed.stderr
    assert fixed.json["changes"] == {"resources": 0, "configured": 1}
    assert roles_that_ran(p4d) == {"train-1": {"nccl", "dcgm_exporter"}}
    assert "libnccl2" in root(p4d, "train-1", "apt-mark showhold").split()
    assert drift(p4d) == {}


def test_a_node_that_does_not_answer_is_unknown_not_fine(p4d: SandboxCluster) -> None:
    config = str(p4d.root / "ssh" / "config")
    container = next(name for name in p4d.containers() if "-train-3." in name)
    subprocess.run(["podman", "exec", container, "systemctl", "stop", "ssh.service"], check=True, timeout=60)
    subprocess.run(["ssh", "-F", config, "-O", "exit", "train-3"], check=False, timeout=15, capture_output=True)
    try:
        node_by_name = nodes(p4d)
        assert node_by_name["train-3"]["drift"] is None
        assert node_by_name["train-0"]["drift"] == []
    finally:
        subprocess.run(["podman", "exec", container, "systemctl", "start", "ssh.service"], check=True, timeout=60)
    assert drift(p4d) == {}
