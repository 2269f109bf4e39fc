"""A simulated node for every test of this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.sandbox.node import kernel, smi_facts, state
from tests.support.sandbox_node import MakeNode, Node, healthy


@pytest.fixture
def make_node(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> MakeNode:
    """A node of that machine type with a driver installed and its module loaded, persistence on."""

    def make(machine: str, driver: str | None = "580.173.02", *, loaded: bool = True) -> Node:
        monkeypatch.setattr(state, "ROOT", tmp_path)
        node = Node(tmp_path, capsys, monkeypatch)
        content = healthy(machine)
        node.become(content)
        (tmp_path / f"lib/modules/{os.uname().release}/build").mkdir(parents=True, exist_ok=True)
        kernel.load_builtin()
        if driver is not None:
            volta = content["gpus"][0].get("arch") == "volta"
            for name in (
                "libnvidia-ml1",
                "libcuda1",
                "nvidia-kernel-dkms" if volta else "nvidia-kernel-open-dkms",
                "doca-ofed",
            ):
                node.install(name, f"{driver}-1")
            if loaded:
                assert kernel.load("nvidia") is None
                state.change(state.PERSISTENCE, lambda s: {**s, "all": True}, {})
                state.write(smi_facts.DAEMON, 1)
        return node

    return make
