"""What holds for every test of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _runtime_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def runtime_dir(_runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ssh's control sockets lie in a short folder of the tests' own, and nothing of them is left in /tmp."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_runtime_dir))
    return _runtime_dir
