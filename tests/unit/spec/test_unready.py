"""What a file names on this computer that is not there."""

from __future__ import annotations

from pathlib import Path

from provisioner import spec

CLUSTER = """name: lab
sites: {{ rack: {{ provider: baremetal, hosts: {{ n1: {{}} }} }} }}
groups: {{ g: {{ machine: dgx-h100 }} }}
access: {{ ssh_key: {key} }}
"""


def test_a_key_that_is_not_there_is_told_at_its_line(tmp_path: Path) -> None:
    file, key = tmp_path / "cluster.yaml", tmp_path / "id_ed25519"
    file.write_text(CLUSTER.format(key=key))
    (found,) = spec.unready(file, spec.load(file))
    assert (found.line, found.path, found.message) == (4, "access.ssh_key", f"there is no private key {key}")
    key.touch()
    assert spec.unready(file, spec.load(file)) == []
