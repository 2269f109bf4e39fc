"""A sandbox node without a container: its files in a temporary directory, its tools called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.sandbox import packages
from provisioner.sandbox.deb import File
from provisioner.sandbox.hardware import hardware
from provisioner.sandbox.node import main, state
from provisioner.stack.models import Package

CAPTURES = Path(__file__).parents[1] / "unit/sandbox/captures"


def capture(name: str) -> str:
    return (CAPTURES / name).read_text()


def healthy(machine: str) -> dict[str, Any]:
    catalog = load()
    machine_type = catalog.machine(machine)
    return hardware(machine_type, catalog.gpu(machine_type.gpu_model), "train-0", catalog)


@cache
def _files(name: str, version: str, architecture: str) -> dict[str, File]:
    return dict(packages.build(Package(name=name, version=version, part="driver"), [], architecture).files)


@dataclass
class Node:
    """A node of one machine type; `driver` is the version of its packages, None for none."""

    root: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def install(self, name: str, version: str, architecture: str = "amd64") -> None:
        for path, file in _files(name, version, architecture).items():
            if file.link is None:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_bytes(file.content)

    def become(self, machine: dict[str, Any]) -> None:
        state.write(state.HARDWARE, machine)

    def run(self, tool: str, *arguments: str, version: str = "580.173.02") -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        self.monkeypatch.setattr(sys, "argv", [tool, *arguments])
        self.capsys.readouterr()
        code = main.main(tool, version)
        output = self.capsys.readouterr()
        return code, output.out, output.err

    def says(self, tool: str, *arguments: str, version: str = "580.173.02") -> str:
        code, out, err = self.run(tool, *arguments, version=version)
        assert code == 0, (out, err)
        return out


MakeNode = Callable[..., Node]
