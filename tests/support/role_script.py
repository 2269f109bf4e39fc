"""A script of a role, run in this process on a simulated node: its commands are the sandbox's own tools."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import ansible_modules
from tests.support.sandbox_node import Node

ROLES = Path(__file__).resolve().parents[2] / "ansible" / "roles"


def load(role: str, name: str) -> ModuleType:
    """roles/<role>/<name> (files/…py or library/…py) as a module."""
    for shared in (ansible_modules.PLUGINS / "module_utils").glob("*.py"):  # a script of a role may import them
        ansible_modules.shared(shared.stem)
    spec = importlib.util.spec_from_file_location(f"role_{role}", ROLES / role / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Answer = Callable[..., "subprocess.CompletedProcess[str]"]


def on_node(node: Node, monkeypatch: pytest.MonkeyPatch, module: ModuleType, **programs: Answer) -> list[list[str]]:
    """Let the script's subprocess.run call the node's tools; `programs` answer for programs that the node has not.
    Returns the list that each command is added to."""
    called: list[list[str]] = []

    def run(command: Any, **_options: Any) -> subprocess.CompletedProcess[str]:
        argv = list(command)
        called.append(argv)
        answer = programs.get(argv[0].replace("-", "_").replace(".", "_"))
        if answer is not None:
            return answer(argv)
        code, out, err = node.run(argv[0], *argv[1:])
        return subprocess.CompletedProcess(argv, code, out, err)

    monkeypatch.setattr(module.subprocess, "run", run)
    return called
