"""A node is taken in once: what a kill leaves is repaired by the next join, and a machine of one's own gets back what
it had. systemctl is a stand-in."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.lifecycle import slurm
from provisioner.scheduler import on_node

KEY = b"k" * 128


class Node:
    """Where a node's files are, and what systemctl was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[tuple[str, ...]]()
        self.noted: list[str] = []
        self.active = {on_node.MUNGE, on_node.SLURMD}
        self.fails = ""

    def systemctl(self, *arguments: str) -> None:
        if self.fails and self.fails in arguments:
            raise on_node.Failed("killed here")
        self.calls.append(arguments)

    @property
    def restarts(self) -> list[str]:
        return [call[-1] for call in self.calls if call[0] == "restart"]

    def join(self, key: bytes = KEY) -> None:
        self.calls = []
        on_node.join(key, str(self.folder / "lib" / "in-service"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    stand_in = Node(tmp_path)
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(on_node.pwd, "getpwnam", lambda _: SimpleNamespace(pw_uid=me.pw_uid, pw_gid=me.pw_gid))
    monkeypatch.setattr(on_node, "KEY_FILE", tmp_path / "munge.key")
    monkeypatch.setattr(on_node, "PENDING", tmp_path / "lib" / "pending")
    monkeypatch.setattr(on_node, "systemctl", stand_in.systemctl)
    monkeypatch.setattr(on_node, "is_active", lambda unit: unit in stand_in.active)
    monkeypatch.setattr(on_node, "note_file", lambda path, _: stand_in.noted.append(path), raising=False)
    monkeypatch.setattr(on_node, "note", lambda _, names: stand_in.noted.extend(names), raising=False)
    return stand_in


def test_a_new_node_gets_the_key_and_starts(node: Node) -> None:
    node.join()  # nothing of gpuprov's was there before, not even the folder
    assert (node.folder / "munge.key").read_bytes() == KEY
    assert oct((node.folder / "munge.key").stat().st_mode & 0o777) == "0o400"
    assert node.restarts == [on_node.MUNGE, on_node.SLURMD]
    assert (node.folder / "lib" / "in-service").exists()
    assert node.noted == [str(node.folder / "munge.key"), str(node.folder / "lib" / "in-service"), on_node.SLURMD]
    node.join()
    assert node.restarts == []  # its jobs go on


@pytest.mark.parametrize("unit", [on_node.MUNGE, on_node.SLURMD])
def test_a_join_that_was_cut_off_is_ended_by_the_next(node: Node, unit: str) -> None:
    node.fails = unit
    with pytest.raises(on_node.Failed):
        node.join()
    node.fails = ""
    node.join()  # the key is the right one by now, and munge has not read it
    assert node.restarts == [on_node.MUNGE, on_node.SLURMD]


def test_the_program_that_a_node_gets_runs_with_its_python_alone(tmp_path: Path) -> None:
    """The record's module goes before it; asked for a key without munge it answers."""
    program = slurm._join_source() + '\nmain({"key": "a2V5", "marker": "/nowhere/x"})\n'
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", program.replace("/etc/munge", str(tmp_path)).replace("/nowhere", str(tmp_path))
         .replace("/var/lib/gpuprov/slurm-key", str(tmp_path / "new"))],
        capture_output=True, text=True, check=True, env=env, timeout=60,
    )  # fmt: skip
    assert "error" in json.loads(done.stdout.removeprefix("gpuprov:"))
