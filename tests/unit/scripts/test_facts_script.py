"""`make facts`: what a package index tells becomes rows, and nothing that it does not tell."""

from __future__ import annotations

import importlib.util
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/facts.py"
ROW = """\
schema: 1
as_of: "2026-01-01"

pytorch:
  # builds
  - {version: "2.9.1", cuda_builds: [cu126], default: "12.6", python: "3.9-3.9", nccl: "2.27.5", cudnn: "9", source: ""}

pytorch_gpus: []
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("facts_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def wheels(version: str, *tags: str) -> list[dict[str, Any]]:
    return [{"filename": f"torch-{version}-cp{t}-cp{t}-manylinux_2_28_x86_64.whl", "yanked": False} for t in tags]


def test_releases_pythons_and_what_the_newest_asks_for(script: ModuleType) -> None:
    torch = {
        "info": {"version": "2.10.0", "requires_dist": ["nvidia-nccl-cu12==2.27.7; x", "nvidia-cudnn-cu12==9.10.2.21"]},
        "releases": {
            "1.11.0": wheels("1.11.0", "39"),
            "2.9.1": wheels("2.9.1", "310", "313"),
            "2.10.0": wheels("2.10.0", "310", "314"),
            "2.11.0rc1": wheels("2.11.0rc1", "314"),
            "2.11.0": [{"filename": "torch-2.11.0-cp314-cp314-win_amd64.whl"}],
        },
    }
    text = script.renewed(ROW, torch, date(2026, 11, 22))
    assert 'as_of: "2026-11-22"' in text and "1.11.0" not in text and "2.11.0" not in text
    assert '{version: "2.9.1", cuda_builds: [cu126], default: "12.6", python: "3.10-3.13", nccl: "2.27.5"' in text
    assert 'version: "2.10.0"' in text and 'python: "3.10-3.14", nccl: "2.27.7", cudnn: "9.10.2.21"' in text
    assert "builds as 2.9.1 (unverified)" in text
    assert script.renewed(text, torch, date(2027, 1, 1)) == text


NCCL = """\
as_of: "2026-01-01"

nccl:
  - {version: "2.27.5", released: "2025-06-26", needs: {cuda: ">=12,<13"}, source: "a page"}

dcgm: []
"""


def nccl(released: str, *versions: str, arch: str = "x86_64", yanked: bool = False) -> dict[str, Any]:
    name = f"nvidia_nccl-1-py3-none-manylinux_2_18_{arch}.whl"
    return {
        "releases": {v: [{"filename": name, "upload_time": f"{released}T10:00:00", "yanked": yanked}] for v in versions}
    }


def test_releases_of_nccl_and_the_cuda_of_their_wheels(script: ModuleType) -> None:
    releases = {
        11: nccl("2025-01-01", "2.21.5"),
        12: nccl("2026-02-03", "2.27.5", "2.28.9", "2.28.9.post1"),
        13: nccl("2026-02-01", "2.27.5", "2.28.9"),
    }
    text = script.renewed_nccl(NCCL, releases, date(2026, 11, 22))
    assert "2.21.5" not in text and "post1" not in text and 'as_of: "2026-11-22"' in text
    assert '{version: "2.27.5", released: "2025-06-26", needs: {cuda: ">=12,<14"}, source: "a page"}' in text
    assert (
        '{version: "2.28.9", released: "2026-02-01", needs: {cuda: ">=12,<14"}, source: "releases of the wheels' in text
    )
    assert text.endswith("dcgm: []\n")
    assert script.renewed_nccl(text, releases, date(2027, 1, 1)) == text


@pytest.mark.parametrize("how", [{"arch": "aarch64"}, {"yanked": True}])
def test_a_release_without_a_wheel_for_the_machines_is_none(script: ModuleType, how: dict[str, Any]) -> None:
    assert script.renewed_nccl(NCCL, {12: nccl("2026-02-03", "2.28.9", **how)}, date(2026, 11, 22)) == NCCL


def test_an_index_without_tls_is_not_asked(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="https"):
        script.project("http://index.example.com", "torch")
