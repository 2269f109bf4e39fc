"""An ordinary user beside root, as sudo leaves them: a folder of theirs, and gpuprov run with and without sudo."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import ROOT, SandboxCluster

UID, GID = (entry := pwd.getpwnam("nobody")).pw_uid, entry.pw_gid
"""An account that every machine has, and that is nobody's: ssh wants one."""


@pytest.fixture
def their_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of an ordinary user, where everybody may come by; commands of this test run as if they had called
    sudo."""
    folder = Path(tempfile.mkdtemp(prefix="gpuprov-person-"))
    shutil.chown(folder, UID, GID)
    monkeypatch.setenv("SUDO_UID", str(UID))
    monkeypatch.setenv("SUDO_GID", str(GID))
    yield folder
    shutil.rmtree(folder)


def without_sudo(sandbox_cluster: SandboxCluster) -> SandboxCluster:
    """The same cluster in the hands of that user. Skips where they can't run this Python."""
    packages = f"{ROOT}:{sysconfig.get_path('purelib')}"
    drop = ["setpriv", "--reuid", str(UID), "--regid", str(GID), "--clear-groups", "env", "-u", "SUDO_UID"]
    drop += [f"HOME={sandbox_cluster.file.parent}", f"PYTHONPATH={packages}", "PYTHONDONTWRITEBYTECODE=1"]
    for python in (sys.executable, "/usr/bin/python3"):
        tried = [*drop, python, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"]
        if subprocess.run(tried, capture_output=True, check=False, timeout=60).returncode == 0:
            return replace(sandbox_cluster, gpuprov=[*drop, python, "-m", "provisioner"])
    pytest.skip("no Python of this version that an ordinary user may run")


def not_theirs(folder: Path) -> list[str]:
    """Everything below a folder that is not that user's."""
    return [str(p) for p in folder.rglob("*") if (s := p.lstat()).st_uid != UID or s.st_gid != GID]
