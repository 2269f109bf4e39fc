"""What holds for every test of this folder."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.stack import still_there
from provisioner.transport import process


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


@pytest.fixture(autouse=True)
def nobodys_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test has anybody's credentials, and none waits for the metadata of a machine that it does not run on."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
def no_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight asks no vendor on the internet whether what a test has locked is still there."""
    monkeypatch.setattr(still_there, "look", lambda *_: [])


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A command that a test runs in this process may handle signals and has a keeper; the next test finds Python's own
    handlers, also where whoever started the tests had Ctrl-C ignored, and no keeper."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    previous_handlers = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    yield
    for sign, handler in previous_handlers.items():
        signal.signal(sign, handler)
    process._end_requested.clear()
    process.release()
