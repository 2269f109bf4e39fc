"""Machines that exist already, as their owner meets gpuprov: real ssh with the owner's agent, real Ansible. They are
rehearsed nodes that this test has started; gpuprov may neither make nor remove one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioner.sandbox import network
from provisioner.stack import lockfile
from tests.support.aws_machines import Machines
from tests.support.baremetal_rehearsal import Box
from tests.support.rehearsal import Done, Rehearsal, wrongs

pytestmark = pytest.mark.sandbox
FILE = """
name: {name}
sites:
  room:
    provider: baremetal
    host_keys: known_hosts
    hosts: {{ "ws[1-2].lab": {{ address: "{addresses}" }} }}
groups: {{ box: {{ machine: workstation-rtx4090, count: 2 }} }}
verify: {{ level: quick }}
"""
SETTINGS = '{"log-opts": {"max-size": "7m"}}\n'
"""docker's settings of the owner, from before gpuprov."""


@dataclass
class Room:
    """Two workstations under two desks."""

    made: Rehearsal
    machines: Machines
    up: Done | None = None
    before: dict[str, set[str]] = field(default_factory=dict)
    """Host → what bore gpuprov's name there before it came: the sandbox's own."""

    def shell(self, host: str, script: str) -> str:
        argv = ["podman", "exec", self.machines.running[host], "sh", "-ec", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def ours(self, host: str) -> set[str]:
        """What bears gpuprov's name there and did not before."""
        return self.named(host) - self.before[host]

    def named(self, host: str) -> set[str]:
        found = self.shell(
            host, "find / -xdev -name '*gpuprov*' -not -path '/proc/*' -not -path '/sys/*' -not -path '*/lists/*'"
        )
        return {path for path in found.splitlines() if "gpuprov-sandbox" not in path and not path.startswith("/run/")}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("metal")
    name = f"t-metal-{os.getpid() % 10_000}"
    made = Rehearsal(folder / "cluster.yaml", name)
    made.gpuprov = [sys.executable, "-m", "tests.support.baremetal_rehearsal"]
    key = folder / "owner"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    made.file.write_text(FILE.format(name=name, addresses="127.77.0.[1-2]"))
    (folder / "known_hosts").write_text("")
    owner = key.with_suffix(".pub").read_text()
    with agent(key):
        locked = made.run("lock", made.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(made.file.with_name("cluster.lock"))
        assert lock is not None
        machines = Machines(folder, name, lock)
        first = network.FIRST
        addresses = f"127.77.{machines.octet}.[{first}-{first + 1}]"
        made.file.write_text(FILE.format(name=name, addresses=addresses))
        found = Room(made, machines)
        try:
            for number in (0, 1):
                address = f"127.77.{machines.octet}.{first + number}"
                private = f"{machines.prefix}.{first + number}"
                box = Box(f"ws{number + 1}.lab", "workstation-rtx4090", private, "box", owner)
                machines.boot(box, address)
            for host in machines.running:
                found.shell(host, "for i in $(seq 100); do systemctl is-active -q ssh && exit; sleep 0.2; done; exit 1")
                found.before[host] = found.named(host)
            yield found
        finally:
            machines.close()


class agent:
    """The owner's ssh-agent with one key, for as long as it lasts."""

    def __init__(self, key: Path) -> None:
        self.key, self.patch = key, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        said = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
        for variable in ("SSH_AUTH_SOCK", "SSH_AGENT_PID"):
            match = re.search(rf"{variable}=([^;]+);", said)
            assert match is not None
            self.patch.setenv(variable, match[1])
        subprocess.run(["ssh-add", "-q", str(self.key)], check=True, capture_output=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ssh-agent", "-k"], check=False, capture_output=True)
        self.patch.undo()


def test_what_keeps_gpuprov_out_is_told_before_anything_is_changed(room: Room) -> None:
    up = room.made.run("up", room.made.file, "--yes")
    assert up.status != 0
    assert "has no ed25519 key of ws1.lab" in up.stderr
    lines = [f"{host} {room.shell(host, 'cat /etc/ssh/ssh_host_ed25519_key.pub')}\n" for host in ("ws1.lab", "ws2.lab")]
    room.made.file.with_name("known_hosts").write_text("".join(lines))
    room.shell("ws2.lab", "mv /etc/sudoers.d /etc/sudoers.d.kept; mkdir /etc/sudoers.d")
    up = room.made.run("up", room.made.file, "--yes")
    room.shell("ws2.lab", "rmdir /etc/sudoers.d; mv /etc/sudoers.d.kept /etc/sudoers.d")
    assert up.status != 0
    assert "ubuntu cannot become root with sudo" in up.stderr
    assert "box-1" in up.stderr
    assert not {path for path in room.ours("ws1.lab") if path.startswith("/etc/")}


def test_machines_that_exist_are_configured_and_proven(room: Room) -> None:
    room.shell("ws1.lab", f"mkdir -p /etc/docker; printf '%s\\n' '{SETTINGS.strip()}' >/etc/docker/daemon.json")
    room.shell("ws1.lab", "apt-mark hold tar")
    room.up = room.made.run("up", room.made.file, "--yes", "--json")
    assert room.up.status == 0, room.up.stderr
    assert wrongs(room.up) == []
    again = room.made.run("up", room.made.file, "--yes", "--json")
    assert again.json["changes"] == {"resources": 0, "configured": 0}


def test_replace_says_what_a_person_has_to_do(room: Room) -> None:
    done = room.made.run("replace", room.made.file, "box-0", "--yes", "--even-if-healthy")
    assert done.status != 0
    assert "ws1.lab cannot be replaced by gpuprov" in done.stderr


def test_down_undoes_what_gpuprov_did_and_nothing_else(room: Room) -> None:
    assert room.ours("ws1.lab")
    assert "7m" not in room.shell("ws1.lab", "cat /etc/docker/daemon.json")
    down = room.made.run("down", room.made.file, "--yes", "--json")
    assert down.status == 0, down.stderr
    for host in ("ws1.lab", "ws2.lab"):
        assert room.ours(host) == set()
        keys = room.shell(host, "cat /home/ubuntu/.ssh/authorized_keys").splitlines()
        assert keys == [keys[0]], "the owner's key stays, and no other"
        assert room.shell(host, "systemctl --failed --no-legend") == ""
    assert room.shell("ws1.lab", "cat /etc/docker/daemon.json") + "\n" == SETTINGS
    assert room.shell("ws1.lab", "apt-mark showhold") == "tar", "held before gpuprov came"
    assert room.shell("ws2.lab", "apt-mark showhold") == ""
    stays = json.loads(down.stdout)["stays"]
    assert any("nvidia" in sentence for sentence in stays["box-0"])
    assert not (room.made.file.parent / ".gpuprov").exists()
