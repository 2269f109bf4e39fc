from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import bmc as fake


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.certificate(tmp_path_factory.mktemp("bmc"))


@pytest.fixture
def start(pem: Path) -> Iterator[Callable[..., fake.Bmc]]:
    """Starts the BMC of a real tree."""
    with contextlib.ExitStack() as running:

        def start_bmc(name: str = "dell-poweredge-r750-h100pcie", **more: Any) -> fake.Bmc:
            manners = fake.MANNERS.get(name, fake.Manners())
            return running.enter_context(fake.serving(fake.Bmc(fake.tree(name), manners, **more), pem))

        yield start_bmc
