"""`up --sandbox` is killed again and again while podman makes its containers: every next one goes on, and after `down`
the machine is as it was."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from provisioner.sandbox import assets, network
from tests.support import machine_state
from tests.support.run_processes import keeper_of, left_over, processes, scratch_of, until
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = pytest.mark.sandbox

KILLS = int(os.environ.get("GPUPROV_TEST_CREATION_KILLS", "6"))
MANY = 100
SEED = int(os.environ.get("GPUPROV_TEST_SEED", "20261125"))
CREATION_S = 2.5
"""At least what two nodes and their mirror take on two cores: the moments of the kills are drawn from it, and from less
where a run was through before."""


def test_a_few_kills_leave_nothing(tmp_path: Path) -> None:
    """Other tests have sandboxes meanwhile: looked at is what belongs to this one, and what belongs to none."""
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=2)
    previous = machine_state.unowned()
    octets = kill_and_remove(sandbox_cluster, KILLS)
    machine_state.assert_same(machine_state.unowned, previous)
    previous_owners, lines, after = network.owners(), machine_state.state(), network.owners()
    # Other tests take octets that it gave back.
    taken = {octet for octet, owner in (previous_owners | after).items() if str(tmp_path) not in owner}
    assert machine_state.of_sandbox(lines, sandbox_cluster.name, octets - taken) == []


@pytest.mark.slow
def test_a_hundred_kills_leave_the_machine_as_it_was(tmp_path: Path) -> None:
    """Nothing else may use podman on this machine meanwhile."""
    assets.prepare((), lambda *_, **__: None)  # the image of the nodes stays
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=2)
    previous = machine_state.state()
    kill_and_remove(sandbox_cluster, MANY)
    machine_state.assert_same(machine_state.state, previous)


def kill_and_remove(sandbox_cluster: SandboxCluster, kills: int) -> set[int]:
    """The octets that it had. Raises AssertionError where a run fails otherwise than by the kill, or something is left
    of it."""
    dice, octets, hits, span = random.Random(SEED), set[int](), 0, CREATION_S
    try:
        for number in range(kills):
            hit = kill_during_creation(sandbox_cluster, dice.uniform(0, span), alone=dice.random() < 0.3)
            hits += hit
            span *= 1 if hit else 0.8
            octets |= octets_of(sandbox_cluster)
            if not hit or number % 5 == 4:
                done = sandbox_cluster.down()
                assert done.status == 0, done.stderr
    finally:
        done = sandbox_cluster.down()
    assert done.status == 0, done.stderr
    assert left_over(sandbox_cluster) == []
    print(f"{hits} of {kills} runs were killed while they made containers")
    assert hits >= kills // 3
    return octets


def octets_of(sandbox_cluster: SandboxCluster) -> set[int]:
    return {octet for octet, owner in network.owners().items() if str(sandbox_cluster.file.parent) in owner}


def kill_during_creation(sandbox_cluster: SandboxCluster, moment: float, *, alone: bool) -> bool:
    """SIGKILL so many seconds after `up` begins to make containers, or as soon as it is through with them; whether it
    was still making them. `alone`: to `up` itself, whose keeper ends what it has started; else to all of that as well,
    podman among it."""
    process = sandbox_cluster.start("up", sandbox_cluster.file, "--sandbox", "--yes")
    run = keeper_of(process)
    lines, created = list[str](), threading.Event()
    begun = wait_for(process, (": Creating...", " configure:"), lines)

    def read_on() -> None:
        wait_for(process, (" configure:",), lines)
        created.set()

    reader = threading.Thread(target=read_on, daemon=True)
    reader.start()
    is_late = "configure:" in begun or created.wait(moment)
    status = process.poll()
    for line in [] if alone else processes(sandbox_cluster.file.parent, run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    process.kill()
    process.wait()
    reader.join(60)
    process.communicate()
    assert begun, "".join(lines)
    assert status is None, "".join(lines)
    assert until(lambda: processes(sandbox_cluster.file.parent, run) == []), processes(sandbox_cluster.file.parent, run)
    assert until(lambda: scratch_of(run) == []), scratch_of(run)
    return not is_late


def wait_for(process: subprocess.Popen[str], texts: tuple[str, ...], lines: list[str]) -> str:
    """Read until a line has one of these texts; that line, "" where there was none. `lines` gets what was read."""
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if any(text in line for text in texts):
            return line
    return ""
