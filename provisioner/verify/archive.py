"""The checks as one file for nodes: a zip that Python runs, of the modules that verify/health.py needs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

import provisioner
from provisioner.common.paths import cache as cache_dir
from provisioner.common.paths import write_whole

MODULES = (
    "__init__.py",
    "common/__init__.py",
    "common/directories.py",
    "common/errors.py",
    "common/events.py",
    "common/gpu_drivers.py",
    "common/ownership.py",
    "common/levels.py",
    "common/paths.py",
    "common/regular_file.py",
    "common/bounded.py",
    "transport/__init__.py",
    "transport/root_python.py",
    "transport/ssh_failure.py",
    "common/text.py",
    "verify/*.py",
    "verify/checks/*.py",
    "verify/parsers/*.py",
    "verify/probe/*.py",
)
"""What is taken of the package; a test runs it with nothing else on the path."""

NOT = {
    "plugin.py",
    "plugin_nodes.py",
    "pytest_runner.py",
    "run.py",
    "runbook.py",
    "testinfra_host.py",
    "user_checks.py",
}
"""Modules of verify that judge fleets and write documents."""

MAIN = "import sys\n\nfrom provisioner.verify.health import main\n\nsys.exit(main(sys.argv[1:]))\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same modules give the same file."""


@cache
def archive() -> bytes:
    """The zip."""
    root, stream = Path(provisioner.__file__).parent, io.BytesIO()
    files = sorted({file for pattern in MODULES for file in root.glob(pattern) if file.name not in NOT})
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(zipfile.ZipInfo("__main__.py", EPOCH), MAIN)
        for file in files:
            info = zipfile.ZipInfo(f"provisioner/{file.relative_to(root).as_posix()}", EPOCH)
            target.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def digest() -> str:
    """Of the zip, sha256."""
    return hashlib.sha256(archive()).hexdigest()


def write_archive() -> Path:
    """The zip as a file of the cache, for Ansible to copy."""
    file = cache_dir() / f"health-{digest()[:16]}.pyz"
    if not file.is_file() or file.read_bytes() != archive():
        write_whole(file, archive())
    return file
