"""PyTorch for sandbox nodes: the containers of `gpuprov run` there have no GPU, and train on the processors.

It is installed once into the cache and mounted read-only into each node. The containers of a job get it with the node's
own Python in place of the simulated image's (node/toolkit.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import cache, private_dir

PYTHON = "3.11"
"""Of the nodes: Debian 12's."""
TORCHRUN = """\
#!/bin/sh
exec /usr/bin/python3 -m torch.distributed.run "$@"
"""
DEADLINE_S = 3600.0


def folder() -> Path:
    """Where it lies, or will: a folder that nodes mount, with `site` in it once PyTorch is installed."""
    return private_dir(cache() / "sandbox-pytorch")


def is_installed() -> bool:
    return (folder() / "site").is_dir()


def install(version: str, pip_arguments: Sequence[str] = ()) -> bool:
    """Install PyTorch for the nodes' Python with pip; False where it is there already. `pip_arguments`: an index that
    has builds for processors, for one. Raises GpuprovError where pip fails."""
    target = folder()
    with FileLock(target / ".lock"):
        mark = target / "version"
        if is_installed() and mark.is_file() and mark.read_text(encoding="utf-8").strip() == version:
            return False
        with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as fresh:
            _pip(Path(fresh) / "site", version, pip_arguments)
            bin_folder = Path(fresh) / "site" / "bin"
            shutil.rmtree(bin_folder, ignore_errors=True)  # its programs name a Python of this machine
            bin_folder.mkdir()
            (bin_folder / "torchrun").write_text(TORCHRUN, encoding="utf-8")
            _make_readable(Path(fresh) / "site")
            shutil.rmtree(target / "site", ignore_errors=True)
            (Path(fresh) / "site").rename(target / "site")
        mark.write_text(f"{version}\n", encoding="utf-8")
    return True


def _pip(target: Path, version: str, arguments: Sequence[str]) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(target),
        "--python-version", PYTHON, "--only-binary=:all:", *arguments, f"torch=={version}", "numpy",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"pip did not end within {DEADLINE_S:.0f} s", where="pip") from None
    if done.returncode:
        raise GpuprovError(f"pip failed: {(done.stderr or done.stdout).strip()[-800:]}", where="pip")


def _make_readable(root: Path) -> None:
    """Nodes' users read it, whatever this user's umask is."""
    for base, folders, files in os.walk(root):
        for name in [".", *folders]:
            (Path(base) / name).chmod(0o755)
        for name in files:
            path = Path(base) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.parent.name == "bin" else 0o644)
