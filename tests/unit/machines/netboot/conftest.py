from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import netboot_lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[netboot_lab.Lab]:
    with netboot_lab.laid_out(tmp_path) as test_lab:
        yield test_lab
