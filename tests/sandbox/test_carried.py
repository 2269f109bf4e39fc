"""ssh that another program carries, as the AWS CLI does it: the node's own address is never called."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.common.events import Event, Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.rundir import fleet
from provisioner.transport import ssh, ssh_keys, ssh_pins, ssh_sockets
from tests.support.logins import UBUNTU
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

CARRIER = """\
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], 22), timeout=10)
def up():
    while block := os.read(0, 65536):
        there.sendall(block)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while block := there.recv(65536):
    os.write(1, block)
"""
NOWHERE = "192.0.2.1"


def test_first_contact_and_work_go_through_the_program(lone: SandboxCluster, tmp_path: Path) -> None:
    known = ClusterPaths(lone.file, lone.name, sandbox=True)
    node = fleet.load(known)[0]
    carrier = tmp_path / "carry.py"
    carrier.write_text(CARRIER)
    carried = {node.name: f"{sys.executable} {carrier} {node.address}"}
    paths = ClusterPaths(tmp_path / "cluster.yaml", "carried", sandbox=True)
    private_dir(paths.ssh)
    (paths.ssh / "identity").write_text(f"{ssh_keys.identity(known).absolute()}\n")
    events: list[Event] = []
    hidden = replace(node, address=NOWHERE)
    fleet.contact(paths, [hidden], UBUNTU, Events(events.append), wait_s=60, carried=carried)
    assert ssh_pins.load_pins(paths)[node.name][1] == ssh_pins.load_pins(known)[node.name][1]
    assert "host key pinned" in events[0].message
    result = subprocess.run(
        [*ssh.argv(paths, node.name), "hostname"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.strip() == node.name, result.stderr
    ssh_sockets.close(paths, [hidden])


def test_a_program_that_reaches_nothing_is_told_in_time(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "carried", sandbox=True)
    private_dir(paths.ssh)
    node = fleet.Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", NOWHERE, NOWHERE)
    failed = fleet.contact(paths, [node], UBUNTU, Events(), wait_s=1, carried={"train-0": "false"})
    assert "no ed25519 host key was shown" in failed["train-0"].message
