"""What a file names on this computer that is not there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.spec import private_key

CLUSTER = """name: lab
sites: {{ rack: {{ provider: baremetal, hosts: {{ n1: {{}} }} }} }}
groups: {{ g: {{ machine: dgx-h100 }} }}
access: {{ ssh_key: {key} }}
"""


def test_a_key_that_is_not_there_is_told_at_its_line(tmp_path: Path) -> None:
    file, key = tmp_path / "cluster.yaml", tmp_path / "id_ed25519"
    file.write_text(CLUSTER.format(key=key))
    (problem,) = spec.unready(file, spec.load(file))
    assert (problem.line, problem.path, problem.message) == (4, "access.ssh_key", f"there is no private key {key}")
    make_key(key)
    assert spec.unready(file, spec.load(file)) == []


def make_key(path: Path, passphrase: str = "") -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True)


def test_a_public_half_is_no_private_key(tmp_path: Path) -> None:
    key = tmp_path / "id"
    make_key(key)
    public = tmp_path / "id.pub"
    assert private_key.problem(public) == (f"{public} is a public key", f"the private key is wanted: {key}")


def test_a_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "id"
    make_key(key, "secret")
    problem = private_key.problem(key)
    assert problem is not None and "has a passphrase: runs ask nobody" in problem[0]


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("nothing", 0o600, "is no private key of OpenSSH's"),
        (f"-----BEGIN OPENSSH {'PRIVATE'} KEY-----\nAAAA\n", 0o644, "others can read"),
        (None, 0o600, "cannot be read: this is a directory"),
        ("x" * 70_000, 0o600, "larger than 65536 bytes"),
    ],
)
def test_what_is_no_key_for_ssh(content: str | None, mode: int, message: str, tmp_path: Path) -> None:
    key = tmp_path / "id"
    if content is None:
        key.mkdir()
    else:
        key.write_text(content)
        key.chmod(mode)
    problem = private_key.problem(key)
    assert problem is not None and message in problem[0]
    assert content is not None or "ssh-keygen" not in problem[1]
