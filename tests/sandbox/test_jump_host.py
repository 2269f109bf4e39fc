"""A site behind a jump host: ssh to its nodes goes through a real sshd, and what goes wrong there is told as that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.sandbox import network
from tests.support import inside
from tests.support.run_processes import keeper_of, left_over, processes, until
from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = pytest.mark.sandbox

FILE = """
name: {name}
sites:
  east: {{ provider: aws, region: us-east-1, internet: nat, jump: "me@bastion.example.com:2222" }}
groups: {{ work: {{ site: east, machine: g5.xlarge, count: 1 }} }}
verify: {{ level: quick }}
"""
JUMP = "jump host me@bastion.example.com:2222"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """One node behind a jump host, up and healthy after an `up` that was killed while it made the jump host, in a
    folder whose name a shell would like to read in its own way."""
    folder = tmp_path_factory.mktemp("jump") / 'it\'s a "test" $x 100%'
    folder.mkdir()
    fleet = SandboxCluster(folder / "cluster.yaml", f"t-jump-{os.getpid() % 10_000}")
    fleet.file.write_text(FILE.format(name=fleet.name))
    try:
        kill_at(fleet, "terraform_data.jump[0]: Creating...")
        fleet.first = fleet.up()
        yield fleet
    finally:
        fleet.down()


def kill_at(fleet: SandboxCluster, event: str) -> None:
    """Kill an `up` with all of its processes, podman among them, as soon as it tells of that."""
    process = fleet.start("up", fleet.file, "--sandbox", "--yes")
    run = keeper_of(process)
    assert process.stderr is not None
    assert any(event in line for line in process.stderr)
    for line in processes(fleet.file.parent, run):
        subprocess.run(["kill", "-KILL", line.split()[0]], check=False, capture_output=True)
    process.kill()
    process.communicate()
    assert until(lambda: processes(fleet.file.parent, run) == [])


def jump(fleet: SandboxCluster) -> str:
    """The name of its container."""
    (name,) = [name for name in fleet.containers() if ".jump." in name]
    return name


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def octet(fleet: SandboxCluster) -> int:
    (own_octet,) = [octet for octet, owner in network.owners().items() if str(fleet.file.parent) in owner]
    return own_octet


def test_ssh_goes_through_it_and_no_other_way_is_open(fleet: SandboxCluster) -> None:
    assert fleet.first is not None
    assert fleet.first.status == 0, [*wrongs(fleet.first), fleet.first.stderr[-2000:]]
    assert "nothing in the sandbox tries sites.east.internet (" in fleet.first.stderr, "and not its jump host"
    subnet = network.of_octet(octet(fleet)).subnet
    assert podman("port", fleet.container("work-0")) == ""
    assert f"127.77.{octet(fleet)}.3:2222" in podman("port", jump(fleet))

    came_from = fleet.run("exec", fleet.file, "--", "echo $SSH_CLIENT").stdout.split()
    assert came_from[:2] == ["work-0:", f"{subnet}.3"]
    assert re.search(rf"Accepted publickey for me from {subnet}\.1 ", podman("logs", jump(fleet)))
    (node,) = fleet.run("status", fleet.file, "--json").json["nodes"]
    assert (node["address"], node["drift"]) == (f"{subnet}.4", [])

    second = fleet.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}


def test_every_command_takes_that_way(fleet: SandboxCluster) -> None:
    copied_file, ssh_config = fleet.file.parent / "here", fleet.file.parent / "own"
    assert fleet.run("ssh", fleet.file, "work-0", "--", "echo one >copied").status == 0
    assert fleet.run("cp", fleet.file, "work-0:copied", copied_file).status == 0
    assert copied_file.read_text() == "one\n"
    ssh_config.write_text(fleet.run("ssh-config", fleet.file).stdout)
    argv = ["ssh", "-F", str(ssh_config), f"{fleet.name}-work-0", "echo ${SSH_CLIENT%% *}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{network.of_octet(octet(fleet)).subnet}.3\n", done.stderr


def test_it_forwards_and_does_nothing_else(fleet: SandboxCluster) -> None:
    to_it = ["ssh", "-F", str(fleet.root / "ssh" / "jump-east"), "-p", "2222"]
    for arguments in (["me@bastion.example.com", "true"], ["-o", "ExitOnForwardFailure=yes", "-NR", "0:127.0.0.1:22",
                  "me@bastion.example.com"], ["root@bastion.example.com", "true"]):  # fmt: skip
        done = subprocess.run([*to_it, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (255, ""), done.stderr
    assert "Permission denied" not in done.stderr, "root may log in with the key, and still has no session"


def test_one_that_is_stopped_is_named_and_made_again(fleet: SandboxCluster) -> None:
    podman("stop", jump(fleet))
    refused = fleet.run("exec", fleet.file, "--", "true")
    assert refused.status == 255
    assert f"{JUMP} is not reached: ssh: connect to host 127.77." in refused.stdout
    assert "`gpuprov up` makes it again" in refused.stdout
    (node,) = fleet.verify().json["nodes"]
    assert not node["ok"]
    assert {check["status"] for check in node["checks"]} <= {"unknown", "skip"}, "nothing is known of the node"
    assert node["error"].startswith(f"ssh failed: {JUMP} is not reached"), node["error"]

    restored = fleet.up()
    assert restored.status == 0, restored.stderr
    assert (restored.json["changes"]["configured"], restored.json["nodes"][0]["ok"]) == (0, True)
    assert fleet.run("exec", fleet.file, "--", "true").status == 0


def test_another_host_key_is_refused_as_its_own_and_up_takes_the_files_jump_host(fleet: SandboxCluster) -> None:
    """Somebody answers in its place: nothing is sent through, until `up` reads the key of the container anew."""
    fleet.file.write_text(FILE.format(name=fleet.name).replace("me@bastion.example.com:2222", "ops@gate.lab"))
    assert fleet.run("exec", fleet.file, "--", "true").status == 0, "by the former one"
    key = "/etc/ssh/ssh_host_ed25519_key"
    assert inside.run(jump(fleet), "rm", key, f"{key}.pub").returncode == 0
    podman("restart", jump(fleet))
    assert until(lambda: answers(fleet))
    refused = fleet.run("exec", fleet.file, "--", "true")
    assert refused.status == 255
    assert f"{JUMP} is not reached: Host key verification failed: it shows another one" in refused.stdout

    restored = fleet.up()
    assert (restored.status, restored.json["changes"]["configured"]) == (0, 0), restored.stderr
    assert fleet.run("exec", fleet.file, "--", "true").status == 0
    assert "Accepted publickey for ops from" in podman("logs", jump(fleet))


def answers(fleet: SandboxCluster) -> bool:
    argv = ["ssh-keyscan", "-T", "2", "-p", "2222", f"127.77.{octet(fleet)}.3"]
    return "ssh-ed25519" in subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout


def test_down_removes_it(fleet: SandboxCluster, tmp_path: Path) -> None:
    """And `gc`, where the run directory is gone."""
    done = fleet.down()
    assert done.status == 0, done.stderr
    assert left_over(fleet) == []

    lost = SandboxCluster(tmp_path / "cluster.yaml", f"{fleet.name}-gc")
    lost.file.write_text(FILE.format(name=lost.name))
    try:
        kill_at(lost, "terraform_data.jump[0]: Creation complete")
        name = jump(lost)
    finally:
        shutil.rmtree(tmp_path / ".gpuprov")
        removed = lost.run("gc", "--sandbox", "--cluster", lost.name, "--yes", "--json")
    assert removed.status == 0, removed.stderr
    assert name in removed.stdout
    assert left_over(lost) == []
