"""A pull request names a path: what lies there may be a pipe, a device or without end, or a file of secrets of the
machine that checks it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common import ownership
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.machines.providers.baremetal.known_hosts import host_key
from provisioner.stack import lockfile
from provisioner.verify.run import _refuse_no_checks

BASE = """
name: vision
sites: {{ rack: {{ provider: baremetal, {site} }} }}
groups: {{ train: {{ machine: dgx-h100, count: 1 }} }}
{more}
"""
HOSTS = "hosts: { n1.lab: { bmc: 10.9.0.1 } }"
KEYS = {
    "inventory": {"site": "inventory: there"},
    "host_keys": {"site": f"{HOSTS}, host_keys: there"},
    "credentials": {"site": f"{HOSTS}, credentials: 'file:there'"},
    "iso": {"site": f"{HOSTS}, method: redfish, credentials: 'env:BMC', install: {{ os: ubuntu-24.04, iso: there }}"},
    "image": {"site": f"{HOSTS}, method: redfish, credentials: 'env:BMC', install: {{ image: there }}"},
    "ssh_key": {"site": HOSTS, "more": "access: { ssh_key: there }"},
    "checks": {"site": HOSTS, "more": "verify: { checks: there }"},
    "repository": {
        "site": HOSTS, "more": "stack: { repositories: { docker: { uri: 'https://example.com', key: there } } }",
    },
}  # fmt: skip


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def directory(path: Path) -> None:
    path.mkdir()


KINDS = [pipe, device, sparse, unix_socket, directory]
Make = Callable[[Path], None]


def cluster(folder: Path, site: str, more: str = "") -> Path:
    file = folder / "cluster.yaml"
    file.write_text(BASE.format(site=site, more=more))
    return file


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("key", KEYS)
def test_validate_reads_regular_files_within_bounds(
    make: Make, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "there")
    status = run(["validate", str(cluster(tmp_path, **KEYS[key]))])
    text = "".join(capsys.readouterr())
    assert status in (0, 2) and "internal error" not in text
    if key == "inventory":
        assert status == 2 and "cannot read there" in text


@pytest.mark.parametrize("make", KINDS)
def test_a_lock_is_read_within_bounds(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "cluster.lock")
    with pytest.raises(GpuprovError, match="cannot be read"):
        lockfile.read(tmp_path / "cluster.lock")


@pytest.mark.parametrize("make", [pipe, device, sparse, unix_socket])
def test_host_keys_and_checks(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "x.py")
    _refuse_no_checks(tmp_path)  # pytest tells of one that can't be read
    with pytest.raises(GpuprovError, match=r"cannot be read|no file"):
        host_key(str(tmp_path / "x.py"), ["n1"], 22)


@pytest.mark.parametrize("name", ["state.json", "ssh/config", "locks/0123456789ab.lock", "sites/rack/provider"])
@pytest.mark.parametrize("make", [pipe, device])
def test_a_run_directory_that_came_with_a_checkout(make: Make, name: str, tmp_path: Path) -> None:
    root = private_dir(tmp_path / ".gpuprov" / "vision")
    private_dir((root / name).parent)
    make(root / name)
    with pytest.raises(GpuprovError, match="not a regular file"):
        ownership.refuse_foreign(root)


@pytest.mark.parametrize(
    "text",
    [
        "SECRETa:SECRETb\n",
        "SECRET[\n",
        "SECRET[1-\n",
        "[SECRET]\nn1\n",
        "n1 ansible_host=SECRET[x]\n",
        "n1 bmc=SECRET:SECRET\n",
        "n1 bmc=https://SECRET\n",
        "n1 ansible_host=SECRET[1-2]\n",
        "SECRET serial=a mac=SECRET\n",
        "SECRET\n",
        "SECRET ansible_port=x\n",
    ],
)
@pytest.mark.parametrize("method", ["ssh", "pxe"])
def test_no_text_of_an_inventory_is_shown(
    text: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text(text)
    assert run(["validate", str(cluster(tmp_path, f"inventory: hosts, method: {method}"))]) in (0, 2)
    assert "SECRET" not in "".join(capsys.readouterr())
