"""ssh's configuration as ssh itself reads it, pinned keys, the key of the cluster."""

from __future__ import annotations

import stat
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import host_keys, ssh
from provisioner.errors import GpuprovError
from provisioner.fleet import Node
from provisioner.paths import ClusterPaths, private_dir
from tests.support.logins import UBUNTU

PINS: ssh.Pins = {
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
    ssh.ensure_key(paths, None)
    ssh.save(paths, NODES, PINS, UBUNTU)
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
    assert read["controlpath"].startswith(str(ssh.control_dir(paths)))


@pytest.mark.parametrize("name", FOLDERS)
def test_ssh_opens_the_identity_there(name: str, tmp_path: Path) -> None:
    """-G prints paths before ssh expands them; -v says which file it really loaded (type 3 is ed25519)."""
    paths = paths_in(tmp_path / name)
    ssh.ensure_key(paths, None)
    ssh.save(paths, NODES, PINS, UBUNTU)
    argv = ssh.argv(
        paths, "train-0", "-v", "-o", "LogLevel=DEBUG1", "-o", "ControlPath=none", "-o", "ProxyCommand=true"
    )
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    loaded = [line for line in done.stderr.decode(errors="replace").splitlines() if "identity file" in line]
    assert [line.rpartition(" type ")[2] for line in loaded[:1]] == ["3"], done.stderr


@pytest.mark.parametrize("name", ["${HOME}", "line\nbreak"])
def test_a_folder_that_ssh_can_not_be_told_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="can't hold this path"):
        ssh.ensure_key(paths_in(tmp_path / name), None)
    (tmp_path / name / "mine").touch()
    (tmp_path / name / "mine.pub").touch()
    with pytest.raises(GpuprovError, match="can't hold this path"):
        ssh.ensure_key(paths_in(tmp_path), str(tmp_path / name / "mine"))


def test_a_host_that_is_no_node_has_no_address(paths: ClusterPaths) -> None:
    ssh.save(paths, NODES, PINS, UBUNTU)
    assert as_ssh_reads_it(paths, "elsewhere")["hostname"] == "elsewhere"
    assert as_ssh_reads_it(paths, "elsewhere")["stricthostkeychecking"] in ("yes", "true")


def test_pins_survive_and_known_hosts_has_them_by_alias(paths: ClusterPaths) -> None:
    assert ssh.load_pins(paths) == {}
    ssh.save(paths, NODES, PINS, UBUNTU)
    assert ssh.load_pins(paths) == PINS
    assert paths.known_hosts.read_text().splitlines() == [f"{name}.test {key}" for name, (_, key) in PINS.items()]
    for file in (paths.known_hosts, paths.ssh / "pins.json", paths.ssh / "config"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"train-0": 7}', '{"train-0": ["i-0"]}', "\x00"], ids=repr)
def test_damaged_pins_are_an_error_and_nothing_is_pinned_anew(text: str, paths: ClusterPaths) -> None:
    private_dir(paths.ssh)
    (paths.ssh / "pins.json").write_text(text)
    with pytest.raises(GpuprovError, match="damaged"):
        ssh.load_pins(paths)


def test_a_fingerprint_is_the_one_that_ssh_keygen_prints(paths: ClusterPaths) -> None:
    public = ssh.ensure_key(paths, None)
    said = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(paths.ssh / "id_ed25519.pub")], capture_output=True, text=True, check=True
    )
    assert host_keys.fingerprint(public) == said.stdout.split()[1]


def test_a_key_is_made_once_and_is_private(paths: ClusterPaths) -> None:
    public = ssh.ensure_key(paths, None)
    assert public.startswith("ssh-ed25519 ")
    assert public.endswith(" gpuprov-test")
    assert ssh.ensure_key(paths, None) == public
    assert stat.S_IMODE((paths.ssh / "id_ed25519").stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.ssh.stat().st_mode) == 0o700
    assert sorted(path.name for path in paths.ssh.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_half_a_key_is_made_again(paths: ClusterPaths) -> None:
    ssh.ensure_key(paths, None)
    (paths.ssh / "id_ed25519").unlink()
    public = ssh.ensure_key(paths, None)
    said = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(paths.ssh / "id_ed25519")], capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[:2] == public.split()[:2]


def test_the_users_own_key_is_used_where_it_lies(paths: ClusterPaths, tmp_path: Path) -> None:
    mine = tmp_path / "my key"
    mine.write_text("private")
    (tmp_path / "my key.pub").write_text("ssh-ed25519 AAAA me@here\n")
    assert ssh.ensure_key(paths, str(mine)) == "ssh-ed25519 AAAA me@here"
    assert ssh.identity(paths) == mine
    assert not (paths.ssh / "id_ed25519").exists()
    ssh.ensure_key(paths, None)
    assert ssh.identity(paths) == paths.ssh / "id_ed25519"


@pytest.mark.parametrize("missing", ["private", "public"])
def test_a_missing_key_of_the_user_is_an_error(missing: str, paths: ClusterPaths, tmp_path: Path) -> None:
    (tmp_path / ("id.pub" if missing == "private" else "id")).write_text("x")
    with pytest.raises(GpuprovError, match=f"no {missing} key") as caught:
        ssh.ensure_key(paths, str(tmp_path / "id"))
    assert caught.value.where == "access.ssh_key"
    assert "ssh-keygen" in caught.value.hint


def test_sockets_lie_in_a_private_folder_of_the_runtime_directory(paths: ClusterPaths, runtime_dir: Path) -> None:
    found = ssh.control_dir(paths)
    assert found.parent == runtime_dir
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_a_long_runtime_directory_is_left_alone(
    paths: ClusterPaths, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(runtime_dir))
    found = ssh.control_dir(paths)
    assert found.parent == runtime_dir
    assert len(str(found / ("0" * 40))) + 17 <= 107
    assert list(long.iterdir()) == []


def test_a_socket_folder_that_others_can_enter_is_not_used(
    paths: ClusterPaths, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who knew the name made it first: another base is taken, and where there is none it is an error."""
    ssh.control_dir(paths).chmod(0o777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(runtime_dir))
    fallen_back = ssh.control_dir(paths)
    try:
        assert fallen_back.parent == Path("/tmp")
        fallen_back.chmod(0o755)
        with pytest.raises(GpuprovError, match="control sockets"):
            ssh.control_dir(paths)
    finally:
        fallen_back.rmdir()


def test_closing_removes_the_sockets(paths: ClusterPaths) -> None:
    ssh.save(paths, NODES, PINS, UBUNTU)
    folder = ssh.control_dir(paths)
    (folder / "left-over").touch()
    ssh.close(paths, NODES)
    assert not folder.exists()


def test_a_folder_of_sockets_that_has_gone_is_made_again(
    paths: ClusterPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    ssh.mend(paths)
    first, other = runtime_dir / "f", runtime_dir / "o"
    first.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(first))
    ssh.save(paths, NODES, PINS, UBUNTU)
    before = (paths.ssh / "config").read_text()
    folder = ssh.control_dir(paths)
    folder.rmdir()
    ssh.mend(paths)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (paths.ssh / "config").read_text() == before
    folder.rmdir()
    first.rename(other)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))  # another login
    ssh.mend(paths)
    assert as_ssh_reads_it(paths, "train-0")["controlpath"].startswith(f"{other}/")
    assert (paths.ssh / "config").read_text() == before.replace(str(first), str(other))


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
    nodes: list[Node], pins: ssh.Pins, paths: ClusterPaths
) -> None:
    with pytest.raises(GpuprovError, match="is no"):
        ssh.save(paths, nodes, pins, UBUNTU)
    assert not (paths.ssh / "config").exists()


def test_a_connection_that_is_carried(paths: ClusterPaths) -> None:
    ssh.ensure_key(paths, None)
    ssh.save(paths, NODES, PINS, UBUNTU, {"train-1": "carry 100% of i-1"})
    assert as_ssh_reads_it(paths, "train-1")["proxycommand"] in ("carry 100% of i-1", "carry 100%% of i-1")
    assert "proxycommand" not in as_ssh_reads_it(paths, "train-0")


def test_a_jump_host_is_reached_as_the_callers_own_ssh_does(paths: ClusterPaths) -> None:
    command = ssh.jump("me@bastion.example.com:2222", "10.0.0.5")
    assert command == ("ssh -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -W [10.0.0.5]:22 me@bastion.example.com")
    assert ssh.jump("bastion", "fd00::5").endswith(" -W [fd00::5]:22 bastion")
    ssh.save(paths, NODES, PINS, {"train-0": "azureuser", "train-1": "ubuntu"}, {"train-1": command})
    told = {
        node.name: dict(
            line.split(" ", 1)
            for line in subprocess.run(
                ["ssh", "-G", "-F", str(paths.ssh / "config"), node.name], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if line.startswith(("user ", "proxycommand "))
        )
        for node in NODES
    }
    assert told["train-0"] == {"user": "azureuser"}
    assert told["train-1"] == {"user": "ubuntu", "proxycommand": command}
