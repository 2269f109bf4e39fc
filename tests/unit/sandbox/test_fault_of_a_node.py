"""A fault that a node cannot have: a person reads the node's name, never its container's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.sandbox import containers, faults

CONTAINER = "gpuprov-vision-train-0.250"


def test_a_gpu_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GpuprovError("p4d.24xlarge has GPUs 0 to 7, not 9", where=CONTAINER)

    monkeypatch.setattr(containers, "find_node", lambda *_: SimpleNamespace(name=CONTAINER))
    monkeypatch.setattr(faults, "inject", refuse)
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: vision\nsites:\n  here: {provider: aws, region: us-east-1}\n"
        "groups:\n  train: {site: here, machine: p4d.24xlarge, count: 1}\naccess: {allow: [203.0.113.0/24]}\n"
    )
    assert run(["sandbox", "fault", str(file), "train-0", "gpu-lost", "--gpu", "9"]) == 2
    stderr = capsys.readouterr().err
    assert "train-0: p4d.24xlarge has GPUs 0 to 7, not 9" in stderr and CONTAINER not in stderr
