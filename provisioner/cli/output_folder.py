"""Folders that a person names for what a command writes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from provisioner.common.errors import GpuprovError


def refuse_unwritable(folder: Path, noun: str = "report") -> None:
    """Raises GpuprovError where nothing can be written, and as root where another user can change what is."""
    from provisioner.common.ownership import refuse_foreign_output
    from provisioner.common.paths import private_dir

    try:
        private_dir(folder)
        refuse_foreign_output(folder, noun)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        if folder.is_file():
            reason = "it is a file"
        raise GpuprovError(f"cannot write the {noun}: {reason}", where=str(folder), hint="pass a directory") from None
