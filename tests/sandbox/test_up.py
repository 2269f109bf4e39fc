"""`up` on four p4d nodes: what it makes, that a second one changes nothing, and what it mends."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import subprocess

import pytest
import yaml

from tests.support.run_processes import until
from tests.support.sandbox_cluster import DEADLINE_S, SandboxCluster, failing, unknown, wrongs
from tests.support.terminal import CTRL_C, Terminal

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("p4d"), pytest.mark.begins(2)]


def test_four_nodes_are_made_configured_and_proven(p4d: SandboxCluster) -> None:
    assert p4d.first is not None
    assert p4d.first.status == 0, (p4d.first.stderr, wrongs(p4d.first))
    document = p4d.first.json
    assert document["ok"]
    assert document["simulated"]
    assert document["level"] == "standard"
    assert [n["name"] for n in document["nodes"]] == ["train-0", "train-1", "train-2", "train-3"]
    assert "5 resources changed, 4 nodes configured in" in p4d.typed, "five resources, four nodes configured"
    assert failing(document) == {}
    assert unknown(document) == {}
    passed = {c["id"] for c in document["nodes"][0]["checks"] if c["status"] == "pass"}
    assert passed >= {
        "gpu.count", "gpu.model", "gpu.memory", "gpu.ecc", "gpu.remap", "gpu.xid", "nvlink.topology", "nvlink.links",
        "nvswitch.fabric", "driver.version", "cuda.version", "nccl.version", "dcgm.exporter", "efa.devices",
        "container.image", "framework.versions",
    }  # fmt: skip


def test_a_person_at_the_terminal_sees_each_stage_to_its_end(p4d: SandboxCluster) -> None:
    for row in (
        r"✓ terraform .*virginia: 5 resources",
        r"✓ fleet .*4 nodes reachable",
        r"✓ configure .*4 nodes configured, 0 as locked",
        r"✓ verify .*4 of 4 nodes healthy",
        r"train-3 +p4d.24xlarge +healthy",
    ):
        assert len(re.findall(f"^{row}", p4d.typed, re.M)) == 1, (row, p4d.typed)


def test_commands_that_do_not_ask_at_a_terminal(p4d: SandboxCluster) -> None:
    """verify, exec and ssh as a person types them, in a window of 80 columns."""
    with Terminal([*p4d.gpuprov, "verify", "cluster.yaml", "--level", "quick"], cwd=p4d.file.parent) as terminal:
        assert terminal.end(DEADLINE_S) == 0
        assert re.search(r"^✓ verify .*4 of 4 nodes healthy", terminal.text, re.M)
    with Terminal([*p4d.gpuprov, "exec", "cluster.yaml", "hostname"], cwd=p4d.file.parent) as terminal:
        assert terminal.end(DEADLINE_S) == 0
        assert "train-3: " in terminal.screen
    with Terminal([*p4d.gpuprov, "exec", "cluster.yaml", "sleep 300"], cwd=p4d.file.parent) as terminal:
        while "sleep 300" not in p4d.run("ssh", p4d.file, "train-0", "pgrep -fa 'slee[p] 300' || true").stdout:
            assert terminal.read()
        terminal.type(CTRL_C)
        assert terminal.end(DEADLINE_S) == 130
    with Terminal([*p4d.gpuprov, "ssh", "cluster.yaml", "train-1"], cwd=p4d.file.parent) as terminal:
        terminal.wait_for("train-1:~$")
        terminal.type("tty && exit 7\r")
        assert terminal.end(DEADLINE_S) == 7
        assert "/dev/pts/" in terminal.screen


def test_another_person_watches_and_ctrl_c_ends_a_run_in_order(p4d: SandboxCluster) -> None:
    p4d.run("ssh", p4d.file, "train-2", "sudo apt-mark unhold libnccl2")
    folder = p4d.file.parent
    with (
        Terminal([*p4d.gpuprov, "status", "cluster.yaml", "--watch"], cwd=folder, columns=140, lines=40) as watching,
        Terminal([*p4d.gpuprov, "up", "cluster.yaml", "--sandbox"], cwd=folder, columns=140, lines=40) as working,
    ):
        watching.wait_for("4 nodes: 4 verified")
        working.wait_for("0 of 1 node done; slowest train-2", seconds=DEADLINE_S)
        watching.wait_for("gpuprov up, process", "slowest train-2", "train-3")
        working.type(CTRL_C)
        assert working.end(DEADLINE_S) == 130
        assert "interrupted; progress is saved" in working.screen
        watching.wait_for("no run in progress")
        watching.type(CTRL_C)
        assert watching.end() == 0
    second = p4d.up()
    assert second.status == 0, second.stderr


def test_a_second_up_changes_nothing(p4d: SandboxCluster) -> None:
    second = p4d.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}


def test_the_machines_are_what_the_file_asks_for(p4d: SandboxCluster) -> None:
    facts = p4d.run("facts", p4d.file, "train-2", "--json").json
    assert len(facts["gpus"]) == 8
    assert {g["model"] for g in facts["gpus"]} == {"NVIDIA A100-SXM4-40GB"}
    assert facts["topology"]["GPU0"]["GPU7"] == "NV12"
    assert facts["driver_version"] == "580.173.02"
    assert facts["efa_devices"] == 4
    # a container has no kernel modules of its own to read, no journal of a boot before, and no GPUDirect Storage
    assert {entry["file"] for entry in facts["unreadable"]} <= {"modules.txt", "dmesg-before.txt", "gds.txt"}


def test_a_bundle_of_a_simulated_node_is_healthy_and_says_so(p4d: SandboxCluster) -> None:
    assert p4d.run("collect", p4d.file, "train-2", "-o", p4d.file.parent / "bundle").status == 0
    judged = p4d.run("verify", "--bundle", p4d.file.parent / "bundle", "--machine", "p4d.24xlarge", "--json")
    assert judged.status == 0, wrongs(judged)
    assert judged.json["simulated"]
    assert p4d.run("facts", p4d.file, "train-2", "--json").json["simulated"] is True


def test_what_is_installed_is_the_lock_and_is_held(p4d: SandboxCluster) -> None:
    lock = yaml.safe_load((p4d.root / "cluster.lock").read_text())["groups"]["train"]["packages"]
    locked = {package["name"]: package["version"] for package in lock}
    assert {"nvidia-fabricmanager", "libnccl2"} <= set(locked)
    result = p4d.run("ssh", p4d.file, "train-0", "dpkg-query", "-W", *locked)
    assert result.status == 0, result.stderr
    assert dict(line.split() for line in result.stdout.splitlines()) == locked
    held_packages = p4d.run("exec", "--node", "train-0", p4d.file, "apt-mark", "showhold")
    assert {line.removeprefix("train-0: ") for line in held_packages.stdout.splitlines()} >= set(locked)


def test_status_knows_the_nodes(p4d: SandboxCluster) -> None:
    document = p4d.run("status", p4d.file, "--json").json
    assert [(n["stage"], n["ok"]) for n in document["nodes"]] == [("verified", True)] * 4
    assert all(n["address"].startswith("127.77.") for n in document["nodes"])


def test_the_run_directory_is_private_and_complete(p4d: SandboxCluster) -> None:
    assert stat.S_IMODE(p4d.root.stat().st_mode) == 0o700
    for secret in ("ssh/id_ed25519", "ssh/config", "known_hosts"):
        assert stat.S_IMODE((p4d.root / secret).stat().st_mode) == 0o600
    first = sorted((p4d.root / "runs").iterdir())[0]
    events = [json.loads(line) for line in (first / "events.jsonl").read_text().splitlines()]
    stages = list(dict.fromkeys(event["stage"] for event in events))
    assert stages.index("terraform") < stages.index("fleet") < stages.index("configure") < stages.index("verify")
    assert {path.name for path in first.iterdir()} >= {"report.json", "report.xml", "report.html"}


def test_two_at_once_is_refused_and_says_who(p4d: SandboxCluster) -> None:
    first = p4d.start("up", p4d.file, "--sandbox", "--yes")
    try:
        holder = p4d.root / "holder.json"
        assert until(lambda: holder.exists() or first.poll() is not None)
        first.send_signal(signal.SIGSTOP)  # it has the lock, and keeps it however slow the other one is
        second = p4d.up()
    finally:
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=900)
    assert second.status == 5
    assert f"process {first.pid}" in second.stderr
    assert first.returncode == 0


@pytest.mark.slow
def test_a_container_that_vanished_is_made_again(p4d: SandboxCluster) -> None:
    container = next(name for name in p4d.containers() if "-train-3." in name)
    subprocess.run(["podman", "rm", "--force", "--time", "0", container], check=True, timeout=60)
    second = p4d.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"]["configured"] == 1


def test_another_host_key_is_refused(p4d: SandboxCluster) -> None:
    pins = p4d.root / "known_hosts"
    right = pins.read_text()
    lines = right.splitlines()
    swapped = [lines[0].split()[0], *lines[1].split()[1:]]
    pins.write_text("\n".join([" ".join(swapped), *lines[1:]]) + "\n")
    subprocess.run(["ssh", "-F", str(p4d.root / "ssh" / "config"), "-O", "exit", "train-0"], check=False, timeout=15)
    try:
        result = p4d.run("ssh", p4d.file, "train-0", "true")
        assert result.status == 255
        verdict = p4d.verify("--level", "quick")
        assert verdict.status == 1
        assert [n["name"] for n in verdict.json["nodes"] if not n["ok"]] == ["train-0"]
    finally:
        pins.write_text(right)
    assert p4d.verify("--level", "quick").status == 0


def test_no_port_of_a_node_is_open_beyond_this_machine(p4d: SandboxCluster) -> None:
    for node in p4d.run("status", p4d.file, "--json").json["nodes"]:
        with socket.create_connection((node["address"], 22), timeout=5):
            pass
        for port in (9400, 2375, 5555):
            with pytest.raises(OSError, match=r"refused|timed out"):
                socket.create_connection((node["address"], port), timeout=2)
