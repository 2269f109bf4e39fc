"""Machines that exist already, as their owner meets gpuprov: one over real ssh with the owner's agent, and one that
gpuprov runs on itself. They are sandbox nodes that this test has started; gpuprov may neither make nor remove one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from provisioner.common.paths import cache
from provisioner.sandbox import network
from provisioner.sandbox.keys import keys
from provisioner.stack import lockfile
from tests.support import inside
from tests.support.aws_machines import Machines
from tests.support.baremetal_sandbox import Box
from tests.support.sandbox_cluster import ROOT, Done, SandboxCluster, wrongs
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(8)]
FILE = """
name: {name}
sites:
  room:
    provider: baremetal
    host_keys: known_hosts
    hosts: {{ {hosts} }}
groups: {{ box: {{ machine: workstation-rtx4090 }} }}
verify: {{ level: quick }}
"""
SETTINGS = '{"debug": true, "log-opts": {"max-size": "7m"}}\n'
"""docker's settings of the owner, from before gpuprov."""
HERE = "/home/ubuntu/desk"
WRAPPER = """\
#!/bin/sh
# podman whose new containers see this Python and this checkout
case "$3" in create) shift 3; exec {podman} --runtime {runtime} create {volumes} "$@";; esac
exec {podman} "$@"
"""


@dataclass
class Room:
    """A workstation that is reached by ssh, ws, and one that gpuprov runs on, desk."""

    made: SandboxCluster
    machines: Machines
    before: dict[str, set[str]] = field(default_factory=dict)
    """Host → what bore gpuprov's name there before it came: the sandbox's own."""

    def shell(self, host: str, script: str, *, stdin: str = "") -> str:
        done = inside.run(self.machines.running[host], "sh", "-ec", script, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def here(self, *arguments: str) -> Done:
        """gpuprov on the desk's own machine, as its owner: no root, no ssh, no Terraform."""
        python = "/usr/bin/env", f"PYTHONPATH={ROOT}", f"GPUPROV_TEST_CA={HERE}/ca", "HOME=/home/ubuntu", sys.executable
        argv = ["podman", "exec", "--user", "ubuntu", "--workdir", HERE, self.machines.running["desk"], *python]
        argv += ["-m", "tests.support.baremetal_sandbox", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def ours(self, host: str) -> set[str]:
        """What bears gpuprov's name there and did not before."""
        return self.named(host) - self.before[host]

    def named(self, host: str) -> set[str]:
        excluded = "-not -path '/proc/*' -not -path '/sys/*' -not -path '*/lists/*' -not -path '/home/ubuntu/*'"
        output = self.shell(host, f"find / -xdev -name '*gpuprov*' {excluded}")
        return {path for path in output.splitlines() if not path.startswith("/run/")}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("metal")
    name = f"t-metal-{os.getpid() % 10_000}"
    sandbox_cluster = SandboxCluster(folder / "cluster.yaml", name)
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.baremetal_sandbox"]
    key = folder / "owner"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    owner = key.with_suffix(".pub").read_text()
    sandbox_cluster.file.write_text(FILE.format(name=name, hosts="ws.lab: {}"))
    (folder / "known_hosts").write_text("")
    with Agent(key):
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        machines = Machines(folder, name, lock)
        hosts = f'"ws.lab": {{ address: "127.77.{machines.octet}.[{network.FIRST}]" }}'
        sandbox_cluster.file.write_text(FILE.format(name=name, hosts=hosts))
        machines.assets = replace(
            machines.assets, podman=replace(machines.assets.podman, path=wrapper(folder, machines))
        )
        test_room = Room(sandbox_cluster, machines)
        try:
            for number, host in enumerate(("ws", "desk"), start=network.FIRST):
                box = Box(host, "workstation-rtx4090", f"{machines.prefix}.{number}", "box", owner)
                machines.boot(box, f"127.77.{machines.octet}.{number}")
            for host in machines.running:
                test_room.shell(
                    host, "for i in $(seq 100); do systemctl is-active -q ssh && exit; sleep 0.2; done; exit 1"
                )
                # Here the interpreter may lie in root's home, which its owner on the node cannot enter.
                for parent in Path(os.path.realpath(sys.executable)).parents:
                    test_room.shell(host, f"chmod o+x '{parent}' 2>/dev/null || true")
                test_room.before[host] = test_room.named(host)
            yield test_room
        finally:
            machines.close()


def wrapper(folder: Path, machines: Machines) -> str:
    """A program that is podman, but for what new containers see of this machine."""
    base = Path(sys.executable).resolve().parents[1]
    volumes = " ".join(f"--volume {path}:{path}:ro" for path in dict.fromkeys((base, ROOT, Path(sys.prefix))))
    podman, file = machines.assets.podman, folder / "podman"
    file.write_text(WRAPPER.format(podman=podman.path, runtime=podman.runtime, volumes=volumes))
    file.chmod(0o755)
    return str(file)


class Agent:
    """The owner's ssh-agent with one key, for as long as it lasts."""

    def __init__(self, key: Path) -> None:
        self.key, self.patch = key, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        output = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
        for variable in ("SSH_AUTH_SOCK", "SSH_AGENT_PID"):
            match = re.search(rf"{variable}=([^;]+);", output)
            assert match is not None
            self.patch.setenv(variable, match[1])
        subprocess.run(["ssh-add", "-q", str(self.key)], check=True, capture_output=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ssh-agent", "-k"], check=False, capture_output=True)
        self.patch.undo()


def test_what_keeps_gpuprov_out_is_told_before_anything_is_changed(room: Room) -> None:
    up = room.made.run("up", room.made.file, "--yes")
    assert up.status != 0
    assert "has no ed25519 key of ws.lab" in up.stderr
    public_key = room.shell("ws", "cat /etc/ssh/ssh_host_ed25519_key.pub")
    room.made.file.with_name("known_hosts").write_text(f"ws.lab {public_key}\n")
    room.shell("ws", "mv /etc/sudoers.d /etc/sudoers.d.kept; mkdir /etc/sudoers.d")
    up = room.made.run("up", room.made.file, "--yes")
    room.shell("ws", "rmdir /etc/sudoers.d; mv /etc/sudoers.d.kept /etc/sudoers.d")
    assert up.status != 0
    assert "ubuntu cannot become root with sudo" in up.stderr
    assert "box-0" in up.stderr
    assert room.ours("ws") == set()


def test_machines_that_exist_are_configured_and_proven(room: Room) -> None:
    room.shell("ws", f"mkdir -p /etc/docker; printf '%s\\n' '{SETTINGS.strip()}' >/etc/docker/daemon.json")
    room.shell("ws", "apt-mark hold tar")
    folder = room.made.file.parent
    files = {
        "cluster.yaml": FILE.format(name=room.made.name, hosts="local: {}").replace("    host_keys: known_hosts\n", ""),
        "cluster.lock": (folder / "cluster.lock").read_text(),
        "ca": keys(cache() / "sandbox" / "keys").ca,
    }
    room.shell("desk", "chmod 0711 /root; systemctl stop ssh; install -d -o ubuntu " + HERE)
    for name, text in files.items():
        room.shell("desk", f"cat >{HERE}/{name}; chown ubuntu {HERE}/{name}", stdin=text)
    with ThreadPoolExecutor() as pool:
        far = pool.submit(room.made.run, "up", room.made.file, "--yes", "--json")
        local = pool.submit(room.here, "up", "cluster.yaml", "--yes", "--json")
        for done in (far.result(), local.result()):
            assert done.status == 0, done.stderr
            assert wrongs(done) == []
    second = room.made.run("up", room.made.file, "--yes", "--json")
    assert second.json["changes"] == {"resources": 0, "configured": 0}
    assert "box-0: root" in room.here("exec", "cluster.yaml", "--", "sudo", "id", "-un").stdout


def test_replace_says_what_a_person_has_to_do(room: Room) -> None:
    done = room.made.run("replace", room.made.file, "box-0", "--yes", "--even-if-healthy")
    assert done.status != 0
    assert "ws.lab cannot be replaced by gpuprov" in done.stderr


def test_down_undoes_what_gpuprov_did_and_nothing_else(room: Room) -> None:
    settings = json.loads(room.shell("ws", "cat /etc/docker/daemon.json"))
    assert settings["debug"] is True, "the owner's, which is none of ours"
    assert settings["log-opts"] == {"max-size": "100m", "max-file": "3"}
    far, local = room.made.run("down", room.made.file, "--yes", "--json"), room.here("down", "cluster.yaml", "--yes")
    for host, done in (("ws", far), ("desk", local)):
        assert done.status == 0, done.stderr
        assert room.ours(host) == set()
        lines = room.shell(host, "cat /home/ubuntu/.ssh/authorized_keys").splitlines()
        assert len(lines) == 1, "the owner's key stays, and no other"
        assert room.shell(host, "systemctl --failed --no-legend") == ""
    assert room.shell("ws", "cat /etc/docker/daemon.json") + "\n" == SETTINGS
    assert room.shell("ws", "apt-mark showhold") == "tar", "held before gpuprov came"
    assert room.shell("desk", "apt-mark showhold") == ""
    stays = json.loads(far.stdout)["stays"]
    assert any("nvidia" in sentence for sentence in stays["box-0"])
    assert "they run on, and keep" in local.stdout
    assert not (room.made.file.parent / ".gpuprov").exists()


@pytest.mark.slow
def _has_ended(number: int, screen: str) -> bool:
    return re.search(rf"ended-{number} with \d+\.", screen) is not None


def test_the_ten_minutes_of_the_documentation(room: Room, tmp_path: Path) -> None:
    """The commands that docs/guides/metal.md gives a person with a new workstation, typed by an ordinary user with sudo
    at a terminal, from an empty folder to a verdict. What the installation of gpuprov itself needs is there already;
    the lock was made where the sandbox's mirror is."""
    page = (ROOT / "docs/guides/metal.md").read_text().partition("## Ten minutes")[2].partition("\n## ")[0]
    typed = re.findall(r"^    (gpuprov .+)$", page, re.M)
    assert [command.split()[1] for command in typed] == ["init", "validate", "plan", "up"]
    same = replace(room.made, file=tmp_path / "cluster.yaml", name="my-fleet")
    assert same.run("init", same.file, *typed[0].split()[2:]).status == 0
    assert same.run("lock", same.file).status == 0
    folder = "/home/ubuntu/mine"
    python = f"PYTHONPATH={ROOT} GPUPROV_TEST_CA={folder}/ca {sys.executable}"
    room.shell("desk", f"install -d -o ubuntu {folder}")
    room.shell("desk", f"cat >{folder}/ca", stdin=keys(cache() / "sandbox" / "keys").ca)
    room.shell("desk", f"cat >{folder}/cluster.lock", stdin=same.file.with_name("cluster.lock").read_text())
    shim = f'#!/bin/sh\nexec env {python} -m tests.support.baremetal_sandbox "$@"\n'
    room.shell("desk", "cat >/usr/local/bin/gpuprov; chmod 0755 /usr/local/bin/gpuprov", stdin=shim)
    argv = ["podman", "exec", "-it", "--user", "ubuntu", "--workdir", folder, "-e", "HOME=/home/ubuntu", "-e", "PS1=$ ",
            "-e", "TERM=xterm", room.machines.running["desk"], "sh"]  # fmt: skip
    try:
        with Terminal(argv, columns=160, lines=60) as terminal:
            for number, command in enumerate(typed):
                terminal.type(f"clear; {command}; echo 'ended'-{number} with $?.\n")
                if command.startswith("gpuprov up"):
                    terminal.wait_for("[y/N]", seconds=300)
                    terminal.type("y\n")
                screen = terminal.wait_until(partial(_has_ended, number), command, 900)
                assert f"ended-{number} with 0." in screen, terminal.text
        (node,) = json.loads(room.shell("desk", f"cat {folder}/.gpuprov/my-fleet/nodes.json"))
        assert (node["id"], node["name"]) == ("local", "train-0")
    finally:
        room.shell("desk", f"cd {folder} && runuser -u ubuntu -- gpuprov down cluster.yaml --yes || true")
