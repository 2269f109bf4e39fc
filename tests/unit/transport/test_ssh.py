"""ssh's configuration as ssh itself reads it, pinned keys, the key of the cluster."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.rundir.fleet import Node
from provisioner.transport import host_keys, keeper, ssh, ssh_config, ssh_keys, ssh_pins, ssh_sockets
from tests.support.logins import UBUNTU
from tests.unit.transport.test_process import alive, members, until

PINS: ssh_pins.Pins = {
    "train-0": ("i-0", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFirst"),
    "train-1": ("i-1", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAISecond"),
}
NODES = [
    Node(name, "train", "here", "m", pin[0], "", f"203.0.113.{i}", "10.0.0.1")
    for i, (name, pin) in enumerate(PINS.items())
]
FOLDERS = ["plain", "with space", "100%", "%C", "%h and %%", "qu'ote", "ünï", "#hash", "a=b", "$HOME", "~tilde"]
FOLDERS += ['double"quote', "back\\slash", "a,b", 'it\'s a "test" ünï $x', '\\"', "end\\"]


def paths_in(folder: Path) -> ClusterPaths:
    paths = ClusterPaths(folder / "cluster.yaml", "test", sandbox=True)
    private_dir(paths.root)
    return paths


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return paths_in(tmp_path)


def as_ssh_reads_it(paths: ClusterPaths, node: str) -> dict[str, str]:
    """`ssh -G`: every option with the value that ssh would use, in lower case."""
    argv = [*ssh.argv(paths, node)[:-1], "-G", node]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.parametrize("name", FOLDERS)
def test_ssh_accepts_the_configuration(name: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path / name)
    ssh_keys.ensure_key(paths, None)
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    read = as_ssh_reads_it(paths, "train-1")
    assert read["hostname"] == "203.0.113.1"
    assert read["hostkeyalias"] == "train-1.test"
    assert read["user"] == "ubuntu"
    assert read["stricthostkeychecking"] in ("yes", "true")
    assert read["passwordauthentication"] == "no"
    assert read["batchmode"] == "yes"
    assert read["globalknownhostsfile"] == "/dev/null"
    assert read["updatehostkeys"] in ("no", "false")
    assert read["identityagent"] == "none"
    known_hosts = str(paths.known_hosts)
    assert read["userknownhostsfile"] in (known_hosts, known_hosts.replace("%", "%%"))  # by version: expanded or not
    assert read["controlpath"].startswith(str(ssh_sockets.control_dir(paths)))


@pytest.mark.parametrize("name", FOLDERS)
def test_ssh_opens_the_identity_there(name: str, tmp_path: Path) -> None:
    """-G prints paths before ssh expands them; -v says which file it really loaded (type 3 is ed25519)."""
    paths = paths_in(tmp_path / name)
    ssh_keys.ensure_key(paths, None)
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    argv = ssh.argv(
        paths, "train-0", "-v", "-o", "LogLevel=DEBUG1", "-o", "ControlPath=none", "-o", "ProxyCommand=true"
    )
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    loaded = [line for line in done.stderr.decode(errors="replace").splitlines() if "identity file" in line]
    assert [line.rpartition(" type ")[2] for line in loaded[:1]] == ["3"], done.stderr


@pytest.mark.parametrize("name", ["${HOME}", "line\nbreak"])
def test_a_folder_that_ssh_can_not_be_told_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="cannot contain this path"):
        ssh_keys.ensure_key(paths_in(tmp_path / name), None)
    (tmp_path / name / "mine").touch()
    (tmp_path / name / "mine.pub").touch()
    with pytest.raises(GpuprovError, match="cannot contain this path"):
        ssh_keys.ensure_key(paths_in(tmp_path), str(tmp_path / name / "mine"))


def test_a_host_that_is_no_node_has_no_address(paths: ClusterPaths) -> None:
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    assert as_ssh_reads_it(paths, "elsewhere")["hostname"] == "elsewhere"
    assert as_ssh_reads_it(paths, "elsewhere")["stricthostkeychecking"] in ("yes", "true")


def test_pins_survive_and_known_hosts_has_them_by_alias(paths: ClusterPaths) -> None:
    assert ssh_pins.load_pins(paths) == {}
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    assert ssh_pins.load_pins(paths) == PINS
    assert paths.known_hosts.read_text().splitlines() == [f"{name}.test {key}" for name, (_, key) in PINS.items()]
    for file in (paths.known_hosts, paths.ssh / "pins.json", paths.ssh / "config"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"train-0": 7}', '{"train-0": ["i-0"]}', "\x00"], ids=repr)
def test_damaged_pins_are_an_error_and_nothing_is_pinned_anew(text: str, paths: ClusterPaths) -> None:
    private_dir(paths.ssh)
    (paths.ssh / "pins.json").write_text(text)
    with pytest.raises(GpuprovError, match="damaged"):
        ssh_pins.load_pins(paths)


def test_a_fingerprint_is_the_one_that_ssh_keygen_prints(paths: ClusterPaths) -> None:
    public = ssh_keys.ensure_key(paths, None)
    result = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(paths.ssh / "id_ed25519.pub")], capture_output=True, text=True, check=True
    )
    assert host_keys.fingerprint(public) == result.stdout.split()[1]


def test_a_key_is_made_once_and_is_private(paths: ClusterPaths) -> None:
    public = ssh_keys.ensure_key(paths, None)
    assert public.startswith("ssh-ed25519 ")
    assert public.endswith(" gpuprov-test")
    assert ssh_keys.ensure_key(paths, None) == public
    assert stat.S_IMODE((paths.ssh / "id_ed25519").stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.ssh.stat().st_mode) == 0o700
    assert sorted(path.name for path in paths.ssh.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_half_a_key_is_made_again(paths: ClusterPaths) -> None:
    ssh_keys.ensure_key(paths, None)
    (paths.ssh / "id_ed25519").unlink()
    public = ssh_keys.ensure_key(paths, None)
    result = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(paths.ssh / "id_ed25519")], capture_output=True, text=True, check=True
    )
    assert result.stdout.split()[:2] == public.split()[:2]


def test_the_users_own_key_is_used_where_it_lies(paths: ClusterPaths, tmp_path: Path) -> None:
    user_key = tmp_path / "my key"
    user_key.write_text("private")
    (tmp_path / "my key.pub").write_text("ssh-ed25519 AAAA me@here\n")
    assert ssh_keys.ensure_key(paths, str(user_key)) == "ssh-ed25519 AAAA me@here"
    assert ssh_keys.identity(paths) == user_key
    assert not (paths.ssh / "id_ed25519").exists()
    ssh_keys.ensure_key(paths, None)
    assert ssh_keys.identity(paths) == paths.ssh / "id_ed25519"


@pytest.mark.parametrize("missing", ["private", "public"])
def test_a_missing_key_of_the_user_is_an_error(missing: str, paths: ClusterPaths, tmp_path: Path) -> None:
    (tmp_path / ("id.pub" if missing == "private" else "id")).write_text("x")
    with pytest.raises(GpuprovError, match=f"no {missing} key") as caught:
        ssh_keys.ensure_key(paths, str(tmp_path / "id"))
    assert caught.value.where == "access.ssh_key"
    assert "ssh-keygen" in caught.value.hint


def test_sockets_lie_in_a_private_folder_of_the_runtime_directory(paths: ClusterPaths, runtime_dir: Path) -> None:
    control_folder = ssh_sockets.control_dir(paths)
    assert control_folder.parent == runtime_dir
    assert stat.S_IMODE(control_folder.stat().st_mode) == 0o700


def test_a_long_runtime_directory_is_left_alone(
    paths: ClusterPaths, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(runtime_dir))
    control_folder = ssh_sockets.control_dir(paths)
    assert control_folder.parent == runtime_dir
    assert list(long.iterdir()) == []


def test_the_longest_folder_has_room_for_a_socket_of_a_run(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sun_path holds 107 bytes; while it makes a socket ssh adds 17, a point and 16 letters."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        name = f"/gpuprov-{os.getuid()}-01234567"
        base = Path(short) / ("x" * (ssh_sockets.SOCKET_PATH_MAX - len(short) - 1 - len(name)))
        base.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        ssh_config.save(paths, NODES, PINS, UBUNTU)
        control_path = as_ssh_reads_it(paths, "train-0")["controlpath"]
        assert control_path.startswith(f"{base}/gpuprov-")
        assert len(control_path) + 17 == 107
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(control_path + "." + "x" * 16)


def test_a_socket_folder_that_others_have_made_is_not_used(
    paths: ClusterPaths, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot somebody makes folders of the name that they once saw, in every base: another name is recorded,
    and ssh's configuration has it."""
    monkeypatch.setattr(ssh_sockets, "_control_dirs", lambda name: [runtime_dir / f"gpuprov-{os.getuid()}-{name}"])
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    previous_folder = ssh_sockets.control_dir(paths)
    previous_folder.chmod(0o777)
    ssh_sockets.mend(paths)
    after = ssh_sockets.control_dir(paths)
    assert after != previous_folder and after.parent == runtime_dir and stat.S_IMODE(after.stat().st_mode) == 0o700
    assert as_ssh_reads_it(paths, "train-0")["controlpath"].startswith(str(after))
    assert ssh_sockets.control_dir(paths) == after


def test_nobody_can_tell_the_name_of_the_folder_of_sockets(paths: ClusterPaths, runtime_dir: Path) -> None:
    """Of the same run directory, made anew: nothing that others know decides the name."""
    names = set()
    for _ in range(3):
        names.add(ssh_sockets.control_dir(paths).name)
        (paths.ssh / ssh_sockets.SOCKETS).unlink()
    assert len(names) == 3


def test_where_no_folder_can_be_made_it_is_an_error(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_sockets, "_made_mine", lambda _: False)
    with pytest.raises(GpuprovError, match="control sockets"):
        ssh_sockets.control_dir(paths)


def test_closing_removes_the_sockets(paths: ClusterPaths) -> None:
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    folder = ssh_sockets.control_dir(paths)
    (folder / "left-over").touch()
    ssh_sockets.close(paths, NODES)
    assert not folder.exists()


def test_a_folder_of_sockets_that_has_gone_is_made_again(
    paths: ClusterPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    ssh_sockets.mend(paths)
    first, other = runtime_dir / "f", runtime_dir / "o"
    first.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(first))
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    previous_config = (paths.ssh / "config").read_text()
    folder = ssh_sockets.control_dir(paths)
    folder.rmdir()
    ssh_sockets.mend(paths)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (paths.ssh / "config").read_text() == previous_config
    folder.rmdir()
    first.rename(other)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))  # another login
    ssh_sockets.mend(paths)
    assert as_ssh_reads_it(paths, "train-0")["controlpath"].startswith(f"{other}/")
    assert (paths.ssh / "config").read_text() == previous_config.replace(str(first), str(other))


@pytest.mark.parametrize(
    ("nodes", "pins"),
    [
        ([replace(NODES[0], address="203.0.113.1\n  ProxyCommand touch /tmp/x")], PINS),
        ([replace(NODES[0], name="a\nHost *")], PINS),
        ([replace(NODES[0], name="*")], PINS),
        ([replace(NODES[0], address="-oProxyCommand=x y")], PINS),
        (NODES, {"train-0": ("i-0", "ssh-ed25519 AAAA\n@cert-authority * ssh-ed25519 AAAA")}),
        (NODES, {"* x": ("i-0", "ssh-ed25519 AAAA")}),
        (NODES, {"train-0": ("i-0", "ssh-rsa AAAA")}),
    ],
)
def test_what_is_no_node_or_key_never_becomes_configuration(
    nodes: list[Node], pins: ssh_pins.Pins, paths: ClusterPaths
) -> None:
    with pytest.raises(GpuprovError, match="is no"):
        ssh_config.save(paths, nodes, pins, UBUNTU)
    assert not (paths.ssh / "config").exists()


def test_a_connection_that_is_carried(paths: ClusterPaths) -> None:
    ssh_keys.ensure_key(paths, None)
    ssh_config.save(paths, NODES, PINS, UBUNTU, {"train-1": "carry 100% of i-1"})
    assert as_ssh_reads_it(paths, "train-1")["proxycommand"] in ("carry 100% of i-1", "carry 100%% of i-1")
    assert "proxycommand" not in as_ssh_reads_it(paths, "train-0")


HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBastion"
STANDS_FOR = ssh_config.SimulatedJumpHost({"bastion.example.com": "me", "gate": "jump"}, "127.77.250.3", HOST_KEY)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_simulated_jump_host_has_a_configuration_of_its_own(name: str, tmp_path: Path) -> None:
    """Read by ssh, and passed on by the shell that runs the ProxyCommand, whatever the folder is called."""
    paths = paths_in(tmp_path / name)
    ssh_keys.ensure_key(paths, None)
    ssh_config.save_jump(paths, "east", STANDS_FOR)
    config = ssh_config.jump_config(paths, "east")
    command = ssh_config.jump("ops@bastion.example.com:2222", "10.77.250.4", config=config)
    assert shlex.split(command)[:3] == ["ssh", "-F", str(config)]
    ssh_config.save(paths, NODES, PINS, UBUNTU, {"train-0": command})
    carried = as_ssh_reads_it(paths, "train-0")["proxycommand"]
    assert carried in (command, command.replace("%", "%%"))
    done = subprocess.run(
        ["sh", "-c", command.replace("ssh ", "ssh -G ", 1)], capture_output=True, text=True, timeout=20, check=True
    )
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (settings["hostname"], settings["port"], settings["user"]) == ("127.77.250.3", "2222", "ops")
    assert (settings["stricthostkeychecking"], settings["hostkeyalias"]) == ("true", "jump-east.test")
    assert (settings["identitiesonly"], settings["batchmode"]) == ("yes", "yes")
    known = paths.ssh / "jump-east.known_hosts"
    assert known.read_text() == f"jump-east.test {HOST_KEY}\n"
    ssh_config.refuse_foreign(paths, lambda: [command])
    ssh_config.save_jump(paths, "east", None)
    assert [path.name for path in paths.ssh.glob("jump-*")] == []


@pytest.mark.parametrize(
    "wrong",
    [
        replace(STANDS_FOR, users={"a b": "me"}), replace(STANDS_FOR, users={"*": "me"}),
        replace(STANDS_FOR, address="127.0.0.1\n  ProxyCommand x"), replace(STANDS_FOR, key="ssh-rsa AAAA"),
        replace(STANDS_FOR, key=""),
    ],
)  # fmt: skip
def test_what_is_no_jump_host_is_not_written(paths: ClusterPaths, wrong: ssh_config.SimulatedJumpHost) -> None:
    ssh_keys.ensure_key(paths, None)
    with pytest.raises(GpuprovError, match="is no jump host"):
        ssh_config.save_jump(paths, "east", wrong)
    assert not ssh_config.jump_config(paths, "east").exists()


def test_a_jump_host_is_reached_as_the_callers_own_ssh_does(paths: ClusterPaths) -> None:
    command = ssh_config.jump("me@bastion.example.com:2222", "10.0.0.5")
    assert command == ("ssh -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -W [10.0.0.5]:22 me@bastion.example.com")
    assert ssh_config.jump("bastion", "fd00::5").endswith(" -W [fd00::5]:22 bastion")
    ssh_config.save(paths, NODES, PINS, {"train-0": "azureuser", "train-1": "ubuntu"}, {"train-1": command})
    settings_by_node = {
        node.name: dict(
            line.split(" ", 1)
            for line in subprocess.run(
                ["ssh", "-G", "-F", str(paths.ssh / "config"), node.name], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if line.startswith(("user ", "proxycommand "))
        )
        for node in NODES
    }
    assert settings_by_node["train-0"] == {"user": "azureuser"}
    assert settings_by_node["train-1"] == {"user": "ubuntu", "proxycommand": command}


RUN = """
import subprocess, sys
from pathlib import Path
from provisioner.transport import process, ssh
from provisioner.common.paths import ClusterPaths
process.keep()
paths = ClusterPaths(Path(sys.argv[1]), "test", sandbox=True)
argv = [*ssh.argv(paths, "train-0")[:-1], "-G", "train-0"]
lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
control_path = next(line.split(" ", 1)[1] for line in lines if line.startswith("controlpath "))
title = f"ssh: {control_path} [mux]"
options = {"executable": "/usr/bin/sleep", "env": {}, "start_new_session": True, "stdout": subprocess.DEVNULL}
print(subprocess.Popen([title, "120"], **options).pid, process.keep(), control_path, flush=True)
sys.stdin.read()
"""
"""A command with a shared connection: a process with the title that ssh gives to one, at the path that ssh says."""


@dataclass
class Run:
    command: subprocess.Popen[str]
    connection: int
    name: str
    folder: Path

    def kill(self, *, keeper_too: bool = False) -> None:
        if keeper_too:
            for pid in members(Path(self.name)):
                os.kill(pid, signal.SIGKILL)
        self.command.kill()
        self.command.communicate()

    def end(self) -> None:
        self.command.communicate(timeout=60)
        assert self.command.returncode == 0

    @property
    def connected(self) -> bool:
        return alive(self.connection) and self.folder.is_dir()


@pytest.fixture
def begin(paths: ClusterPaths) -> Iterator[Callable[[], Run]]:
    """Begins a command on the cluster; what is left of them ends with the test."""
    ssh_keys.ensure_key(paths, None)
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    runs = list[Run]()

    def begun() -> Run:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = subprocess.Popen([sys.executable, "-c", RUN, str(paths.spec)], **pipes)  # type: ignore[call-overload]
        connection, name, control_path = command.stdout.readline().split()
        runs.append(Run(command, int(connection), name, Path(control_path).parent))
        return runs[-1]

    yield begun
    for run in runs:
        run.command.kill()
        run.command.communicate()
        assert until(lambda run=run: not run.connected)  # type: ignore[misc]


def test_a_killed_run_ends_its_own_connections_and_no_others(begin: Callable[[], Run]) -> None:
    """SIGKILL of `gpuprov exec` beside a `verify`: the nodes that this proves would count as not answering."""
    first, second = begin(), begin()
    assert first.folder != second.folder and first.folder.parent == second.folder.parent
    first.kill()
    assert until(lambda: not alive(first.connection) and not first.folder.exists())
    assert until(lambda: members(Path(first.name)) == [])  # its keeper has ended: nothing more will come
    assert second.connected
    second.end()
    assert until(lambda: not alive(second.connection) and not second.folder.exists())


def test_what_a_run_left_that_died_with_its_keeper_is_ended_by_the_next_one(begin: Callable[[], Run]) -> None:
    dead, living = begin(), begin()
    dead.kill(keeper_too=True)
    assert dead.connected
    following = begin()
    assert not dead.folder.exists()
    assert until(lambda: not alive(dead.connection))
    assert living.connected and following.connected


def test_the_connections_of_the_dead_holder_are_ended_and_no_others(
    begin: Callable[[], Run], paths: ClusterPaths
) -> None:
    dead, living = begin(), begin()
    dead.kill(keeper_too=True)
    ssh_sockets.abandon(paths, dead.name)
    assert not dead.folder.exists()
    assert until(lambda: not alive(dead.connection))
    assert living.connected
    for name in ("", "None", "../x", "/"):
        ssh_sockets.abandon(paths, name)
    assert living.connected


def test_closing_leaves_the_connections_of_a_living_run(begin: Callable[[], Run], paths: ClusterPaths) -> None:
    own_folder, living = ssh_sockets.run_config(paths).parent, begin()
    ssh_sockets.close(paths, NODES)
    assert not own_folder.exists() and living.connected
    living.end()
    assert until(lambda: not living.folder.exists())
    ssh_sockets.close(paths, NODES)
    assert not living.folder.parent.exists()


def test_connections_that_hang_neither_stop_a_run_nor_wait_for_each_other(
    paths: ClusterPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = private_dir(tmp_path / "bin") / "ssh"
    program.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/asked\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_sockets, "EXIT_TIMEOUT_S", 2)
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    names = [f"train-{number}" for number in range(ssh_sockets.PARALLEL_EXITS)]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.bind(str(ssh_sockets.control_dir(paths) / "shared"))
        began = time.monotonic()
        ssh_sockets.disconnect(paths, names)
    assert sorted((tmp_path / "asked").read_text().split()) == sorted(names)
    assert time.monotonic() - began < len(names)


def test_a_connection_of_ones_own_has_nothing_to_do_with_the_run(paths: ClusterPaths) -> None:
    """`gpuprov ssh` becomes ssh: a login outlives the command, and its files."""
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    argv = ssh.argv(paths, "train-0", "-o", ssh.OWN_CONNECTION)
    assert argv == ["ssh", "-F", str(paths.ssh / "config"), "-o", "ControlPath=none", "train-0"]
    assert not ssh_sockets._folders_of_runs(ssh_sockets.control_dir(paths))


def test_the_configuration_of_a_run_follows_that_of_the_run_directory(paths: ClusterPaths) -> None:
    assert ssh_sockets.run_config(paths) == paths.ssh / "config"  # none yet: ssh refuses a missing file
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    assert as_ssh_reads_it(paths, "train-0")["hostname"] == "203.0.113.0"
    ssh_config.save(paths, [replace(NODES[0], address="203.0.113.77")], PINS, UBUNTU)
    assert as_ssh_reads_it(paths, "train-0")["hostname"] == "203.0.113.77"
    texts = [file.read_text().splitlines() for file in (paths.ssh / "config", ssh_sockets.run_config(paths))]
    assert [a.split()[0] for a, b in zip(*texts, strict=True) if a != b] == ["ControlPath"]
    assert stat.S_IMODE(ssh_sockets.run_config(paths).stat().st_mode) == 0o600


def test_a_process_of_a_run_shares_its_connections(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible's worker and the processes that judge have the run's name in their environment."""
    ssh_config.save(paths, NODES, PINS, UBUNTU)
    monkeypatch.setenv(keeper.NAME, "c" * 32)
    file = ssh_sockets.run_config(paths)
    code = "import sys; from pathlib import Path\n"
    code += "from provisioner.transport import ssh_sockets; from provisioner.common.paths import ClusterPaths\n"
    code += "print(ssh_sockets.run_config(ClusterPaths(Path(sys.argv[1]), 'test', sandbox=True)))"
    argv = [sys.executable, "-c", code, str(paths.spec)]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert output == f"{file}\n"
    assert file.exists(), "the process that ended was not the run"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_with_sudo_the_connections_are_those_of_root(begin: Callable[[], Run], paths: ClusterPaths) -> None:
    """A person's run and one with sudo: each has a folder of its own user."""
    root_folder = ssh_sockets.control_dir(paths)
    person_folder = root_folder.parent / root_folder.name.replace("gpuprov-0-", "gpuprov-1000-")
    assert ssh_sockets._sockets(paths, 1000) == person_folder
    person = ssh_sockets._sockets(paths, 1000)
    assert person is not None
    (person / "0123abcd").mkdir(parents=True, mode=0o700)
    for folder in (person, person / "0123abcd"):
        os.chown(folder, 1000, 1000)
    (person / "0123abcd" / "config").touch()
    living = begin()
    assert (person / "0123abcd").exists(), "a run removes what is left of its own user"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUDO_UID", "1000")
        patch.setenv("SUDO_GID", "1000")
        ssh_sockets.close(paths, NODES)
    assert not person.exists() and living.connected
