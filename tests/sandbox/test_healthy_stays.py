"""Healthy machines stay in service and on their release, and every machine that exists is named, whatever was lost,
killed, refused or edited. One fleet, in the order of the tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.support import inside
from tests.support.node_probe import namespace_of, probes
from tests.support.run_processes import has_processes, keeper_of, left_over, until
from tests.support.sandbox_cluster import DEADLINE_S, Done, SandboxCluster, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(9)]

OLD, NEW = "580.173.02", "595.91.07"
LOG_HOOK = 'echo "$GPUPROV_STEP $GPUPROV_ACTION $GPUPROV_NODE" >> hooks'
DOCUMENT = {
    "sites": {"here": {"provider": "aws", "region": "us-east-1", "zones": ["us-east-1a", "us-east-1b"]}},
    "groups": {"train": {"machine": "g5.xlarge", "count": 1}},
    "stack": {"driver": "580"},
    "hooks": {"drain": f'{LOG_HOOK}; test ! -e "refuse-$GPUPROV_NODE"', "resume": LOG_HOOK},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """One g5.xlarge, up and healthy, with hooks that write down what they are called for."""
    sandbox_cluster = SandboxCluster.of_example("aws-p4d", tmp_path_factory.mktemp("stays"))
    sandbox_cluster.file.write_text(yaml.safe_dump({"name": sandbox_cluster.name, **DOCUMENT}))
    try:
        sandbox_cluster.first = sandbox_cluster.up()
        assert sandbox_cluster.first.status == 0, (sandbox_cluster.first.stderr, wrongs(sandbox_cluster.first))
        yield sandbox_cluster
    finally:
        sandbox_cluster.run("sandbox", "clear", sandbox_cluster.file)
        done = sandbox_cluster.down()
        assert done.status == 0, done.stderr
        assert left_over(sandbox_cluster) == []


def edit(sandbox_cluster: SandboxCluster, **sections: object) -> None:
    """Replace these sections of cluster.yaml."""
    sandbox_cluster.file.write_text(yaml.safe_dump({**yaml.safe_load(sandbox_cluster.file.read_text()), **sections}))


def resize(sandbox_cluster: SandboxCluster, count: int, group: str = "train") -> None:
    edit(sandbox_cluster, groups={group: {"machine": "g5.xlarge", "count": count}})


def container_ids(sandbox_cluster: SandboxCluster) -> dict[str, str]:
    """Node → id of its container, of all that exist."""
    form = '{{index .Labels "gpuprov.node"}} {{.ID}}'
    argv = ["podman", "ps", "--all", "--no-trunc", "--filter", f"label=gpuprov.cluster={sandbox_cluster.name}"]
    done = subprocess.run([*argv, "--format", form], capture_output=True, text=True, check=True, timeout=60)
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {node: container for node, _, container in pairs if node}


def ensure_nodes(sandbox_cluster: SandboxCluster, count: int) -> dict[str, str]:
    """The containers of a fleet of so many nodes; made or removed first where another test was left out."""
    resize(sandbox_cluster, count)
    if len(container_ids(sandbox_cluster)) != count:
        done = sandbox_cluster.up()
        assert done.status == 0, (done.stderr, wrongs(done))
        hook_calls(sandbox_cluster)
    return container_ids(sandbox_cluster)


def hook_calls(sandbox_cluster: SandboxCluster) -> list[str]:
    """What the hooks were called for since the last look."""
    log = sandbox_cluster.file.parent / "hooks"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def status(sandbox_cluster: SandboxCluster) -> dict[str, dict[str, Any]]:
    document = sandbox_cluster.run("status", sandbox_cluster.file, "--offline", "--json").json
    return {node["name"]: node for node in document["nodes"]}


def stages(sandbox_cluster: SandboxCluster) -> dict[str, str]:
    return {name: node["stage"] for name, node in status(sandbox_cluster).items()}


def is_quarantined(sandbox_cluster: SandboxCluster) -> bool:
    return any(node["quarantine"] for node in status(sandbox_cluster).values())


@contextmanager
def frozen_while_probed(sandbox_cluster: SandboxCluster, command: subprocess.Popen[str]) -> Iterator[None]:
    """Wait until the probe of that command runs on train-0, and freeze the node there until the block ends."""
    name = sandbox_cluster.container("train-0")
    namespace = namespace_of(name)
    assert until(lambda: command.poll() is not None or probes(namespace)), "no probe in two minutes"
    subprocess.run(["podman", "pause", name], capture_output=True, check=True, timeout=60)
    try:
        assert command.poll() is None and probes(namespace), "the probe had ended"
        yield
    finally:
        subprocess.run(["podman", "unpause", name], capture_output=True, check=True, timeout=60)


@contextmanager
def started(sandbox_cluster: SandboxCluster, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command at work; it is killed where it outlives the block."""
    process = sandbox_cluster.start(*arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=DEADLINE_S)


def kill(process: subprocess.Popen[str], run: str) -> None:
    """SIGKILL to a command at work; no process of that run is left afterwards."""
    assert process.poll() is None and has_processes(run)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    assert until(lambda: not has_processes(run))


@contextmanager
def running_exec(sandbox_cluster: SandboxCluster) -> Iterator[Callable[[], None]]:
    """A `gpuprov exec` whose command runs on train-0; gives what kills it."""
    name = sandbox_cluster.container("train-0")
    with started(sandbox_cluster, "exec", sandbox_cluster.file, "sleep 1234") as process:
        run = keeper_of(process)
        assert until(lambda: inside.run(name, "pgrep", "-f", "-x", "sleep 1234").returncode == 0)
        yield lambda: kill(process, run)


@contextmanager
def no_capacity(sandbox_cluster: SandboxCluster) -> Iterator[None]:
    """No zone has machines."""
    assert sandbox_cluster.run("sandbox", "fault", sandbox_cluster.file, "here", "no-capacity").status == 0
    try:
        yield
    finally:
        assert sandbox_cluster.run("sandbox", "clear", sandbox_cluster.file, "here").status == 0


def test_a_killed_exec_costs_a_node_that_is_verified_nothing(fleet: SandboxCluster) -> None:
    command = ("verify", fleet.file, "--level", "standard", "--json")
    with running_exec(fleet) as kill_exec, started(fleet, *command) as verify:
        with frozen_while_probed(fleet, verify):
            kill_exec()
        stdout, stderr = verify.communicate(timeout=DEADLINE_S)
    done = Done(verify.returncode, stdout, stderr)
    assert done.status == 0, (stderr, wrongs(done))
    assert [(node["name"], node["ok"]) for node in done.json["nodes"]] == [("train-0", True)]
    assert hook_calls(fleet) == []
    assert not is_quarantined(fleet)


def test_a_killed_verify_costs_an_exec_nothing(fleet: SandboxCluster) -> None:
    """Nor does the next command, which ends what is left of the killed one."""
    signal_file = "/tmp/exec-may-end"
    command = f"until test -e {signal_file}; do sleep 0.2; done; echo it goes on"
    name = fleet.container("train-0")
    with started(fleet, "exec", fleet.file, command) as execution:
        assert until(lambda: inside.run(name, "pgrep", "-f", f"until test -e {signal_file}").returncode == 0)
        with started(fleet, "verify", fleet.file, "--level", "quick") as verify:
            run = keeper_of(verify)
            with frozen_while_probed(fleet, verify):
                kill(verify, run)
        done = fleet.verify("--level", "quick")
        assert done.status == 0, (done.stderr, wrongs(done))
        assert execution.poll() is None, "it has ended"
        inside.run(name, "touch", signal_file)
        stdout, stderr = execution.communicate(timeout=DEADLINE_S)
    inside.run(name, "rm", signal_file)
    assert (execution.returncode, stdout) == (0, "train-0: it goes on\n"), stderr
    assert hook_calls(fleet) == []
    assert not is_quarantined(fleet)


def test_a_node_survives_that_nodes_json_has_lost_when_another_can_not_be_had(fleet: SandboxCluster) -> None:
    previous_ids, record = container_ids(fleet), fleet.root / "nodes.json"
    record.write_text(record.read_text()[:20])
    damaged = fleet.run("status", fleet.file)
    assert damaged.status != 0
    assert "remove it and run `gpuprov up`: Terraform knows the nodes" in damaged.stderr
    record.unlink()
    resize(fleet, 2)
    with no_capacity(fleet):
        refused = fleet.run("up", fleet.file, "--sandbox", "--yes")
    assert refused.status == 3, refused.stderr
    for zone in ("us-east-1a", "us-east-1b"):
        assert f"train, on-demand in {zone}: InsufficientInstanceCapacity (shortage)" in refused.stderr
    assert '"train-0"]: Destroying' not in refused.stderr
    assert container_ids(fleet) == previous_ids
    assert hook_calls(fleet) == []
    assert stages(fleet) == {"train-0": "verified", "train-1": "not made"}


def test_a_machine_that_vanished_is_made_again_and_its_node_put_back(fleet: SandboxCluster) -> None:
    """Beside it one more is made, which nobody had drained."""
    resize(fleet, 2)
    previous_ids = container_ids(fleet)
    subprocess.run(
        ["podman", "rm", "--force", "--volumes", "--time", "0", previous_ids["train-0"]], check=True, timeout=60
    )
    done = fleet.up()
    assert done.status == 0, (done.stderr, wrongs(done))
    assert hook_calls(fleet) == ["drain up train-0", "resume release train-0"]
    after = container_ids(fleet)
    assert (after.keys(), after["train-0"] == previous_ids["train-0"]) == ({"train-0", "train-1"}, False)
    assert not is_quarantined(fleet)


def test_a_node_that_can_not_be_drained_costs_the_others_nothing(fleet: SandboxCluster) -> None:
    """The group is renamed, so that both machines end: one drain fails, and both nodes stay and work."""
    previous_ids, refuse = ensure_nodes(fleet, 2), fleet.file.parent / "refuse-train-1"
    resize(fleet, 2, group="other")
    refuse.touch()
    refused = fleet.run("up", fleet.file, "--sandbox", "--yes")
    refuse.unlink()
    resize(fleet, 2)
    assert refused.status == 2, refused.stderr
    assert "train-1: the drain command ended with status 1" in refused.stderr
    assert "no machine was removed" in refused.stderr
    assert container_ids(fleet) == previous_ids
    calls = hook_calls(fleet)
    assert sorted(calls[:2]) == ["drain up train-0", "drain up train-1"]
    assert sorted(calls[2:]) == ["resume up train-0", "resume up train-1"]
    assert not is_quarantined(fleet)


@pytest.mark.slow
def test_a_node_whose_machine_could_not_be_removed_is_put_back_with_the_count(fleet: SandboxCluster) -> None:
    previous_ids = ensure_nodes(fleet, 2)
    resize(fleet, 1)
    with irremovable(previous_ids["train-1"]):
        assert fleet.run("up", fleet.file, "--sandbox", "--yes").status == 3
    assert hook_calls(fleet) == ["drain up train-1"]
    assert is_quarantined(fleet)
    resize(fleet, 2)
    done = fleet.up()
    assert done.status == 0, (done.stderr, wrongs(done))
    assert hook_calls(fleet) == ["resume release train-1"]
    assert container_ids(fleet) == previous_ids
    assert not is_quarantined(fleet)


def test_a_machine_that_could_not_be_removed_is_named_until_it_is(fleet: SandboxCluster) -> None:
    previous_ids = ensure_nodes(fleet, 2)
    resize(fleet, 1)
    with irremovable(previous_ids["train-1"]):
        failed = fleet.run("up", fleet.file, "--sandbox", "--yes")
        assert failed.status == 3, failed.stderr
        assert "2 machines of the cluster stand now" in failed.stderr
        assert container_ids(fleet) == previous_ids
        assert stages(fleet) == {"train-0": "verified", "train-1": "unwanted"}
    done = fleet.up()
    assert done.status == 0, (done.stderr, wrongs(done))
    assert container_ids(fleet) == {"train-0": previous_ids["train-0"]}
    assert list(stages(fleet)) == ["train-0"]
    assert hook_calls(fleet) == ["drain up train-1"]


@contextmanager
def irremovable(container: str) -> Iterator[None]:
    """podman removes no container whose network another one uses."""
    form = ["podman", "container", "inspect", "--format", "{{.Image}}", container]
    image = subprocess.run(form, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    user = ["podman", "create", "--network", f"container:{container}", image, "true"]
    dependent = subprocess.run(user, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    try:
        yield
    finally:
        subprocess.run(["podman", "rm", "--force", dependent], capture_output=True, check=True, timeout=60)


def test_an_upgrade_that_is_taken_back_leaves_the_node_on_its_lock(fleet: SandboxCluster) -> None:
    """It is killed while it verifies, before the first drain; then cluster.yaml and the lock are put back."""
    ensure_nodes(fleet, 1)
    lock, text = (fleet.root / "cluster.lock").read_bytes(), fleet.file.read_text()
    edit(fleet, stack={"driver": "595"})
    with started(fleet, "upgrade", fleet.file, "--sandbox", "--yes") as process:
        run = keeper_of(process)
        with frozen_while_probed(fleet, process):
            kill(process, run)
    assert json.loads((fleet.root / "upgrade.json").read_text())["phase"] == "moving"
    fleet.file.write_text(text)
    (fleet.root / "cluster.lock").write_bytes(lock)
    second = upgrade(fleet)
    assert second.status == 0, second.stderr
    assert [(node["step"], node["driver"]) for node in second.json["nodes"]] == [("unchanged", OLD)]
    assert hook_calls(fleet) == []
    done = fleet.up()
    assert (done.status, done.json["waiting"], done.json["changes"]["configured"]) == (0, {}, 0), done.stderr
    assert loaded_driver(fleet) == OLD


@pytest.mark.slow
def test_a_killed_exec_rolls_no_release_back(fleet: SandboxCluster) -> None:
    """It is killed while `upgrade` verifies the node before it drains it, and again while the roles run on it."""
    ensure_nodes(fleet, 1)
    edit(fleet, stack={"driver": "595"})
    with started(fleet, "upgrade", fleet.file, "--sandbox", "--yes", "--json") as process:
        with running_exec(fleet) as kill_exec, frozen_while_probed(fleet, process):
            kill_exec()
        assert until(lambda: process.poll() is not None or (fleet.file.parent / "hooks").exists())
        with running_exec(fleet) as kill_exec:
            kill_exec()
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    assert [(node["step"], node["driver"]) for node in json.loads(stdout)["nodes"]] == [("moved", NEW)]
    assert hook_calls(fleet) == ["drain upgrade train-0", "resume upgrade train-0"]


def test_machines_of_the_former_name_are_named_by_every_command(fleet: SandboxCluster) -> None:
    """`name:` is edited: nothing is removed, made or called removed until it is put back."""
    previous_ids, text = container_ids(fleet), fleet.file.read_text()
    names = list(stages(fleet))
    edit(fleet, name=f"{fleet.name}x")
    try:
        refuse_by_name(fleet)
    finally:
        fleet.file.write_text(text)
    assert container_ids(fleet) == previous_ids
    assert list(stages(fleet)) == names


def refuse_by_name(fleet: SandboxCluster) -> None:
    for arguments in (["down", "--yes"], ["down", "--yes", "--sandbox"], ["status"], ["up", "--yes", "--sandbox"]):
        refused = fleet.run(arguments[0], fleet.file, *arguments[1:])
        assert refused.status == 2, (arguments, refused.stdout)
        assert f"put `name: {fleet.name}` back" in refused.stderr, (arguments, refused.stderr)
    assert [path.name for path in (fleet.file.parent / ".gpuprov").glob("t-*")] == [fleet.root.name]


def upgrade(sandbox_cluster: SandboxCluster) -> Done:
    return sandbox_cluster.run("upgrade", sandbox_cluster.file, "--sandbox", "--yes", "--json")


def loaded_driver(sandbox_cluster: SandboxCluster) -> str:
    return inside.run(sandbox_cluster.container("train-0"), "cat", "/sys/module/nvidia/version").stdout.strip()
