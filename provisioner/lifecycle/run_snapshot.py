"""The files of a run directory before a question: what planning has written is taken back where the answer is no.

`plan`, `up` and `replace` let Terraform plan in the workspace of each site, which is rendered anew for that; `upgrade`
keeps the lock that it compares. None may leave anything of it: not where nobody asked for a change, nor where a person
declined it.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.paths import (
    APPLYING,
    ERRORED,
    HOLDER,
    STATE,
    STATE_BACKUP,
    ClusterPaths,
    private_dir,
    write_whole,
)

LARGEST = 8 << 20
"""Bytes of a file that planning may write: what is larger is an image."""
KEPT_FOLDERS = ("runs", ".terraform")
"""Logs, and the providers that Terraform has fetched."""
KEPT_FILES = (HOLDER, "run.lock", "shared.json", STATE, STATE_BACKUP, ERRORED, APPLYING, "state.json", "measures.jsonl")
"""The lock of this run, what the shared state was when it was last read, Terraform's states (a machine that was found
is not forgotten again), and what a `verify` writes that needs no lock."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """`files`: path → content and mode of each file that is put back."""

    root: Path
    files: dict[Path, tuple[bytes, int]]

    @classmethod
    def of(cls, paths: ClusterPaths) -> RunSnapshot:
        contents = {}
        for file in _files(paths.root):
            with contextlib.suppress(OSError):  # another command's temporary file is gone, or the file is an image
                content = regular_file.read(file, LARGEST, follow_links=False)
                contents[file] = content, stat.S_IMODE(file.stat().st_mode)
        return cls(paths.root, contents)

    def confirmed(self, paths: ClusterPaths, confirm: Callable[[], bool]) -> bool:
        """Whether a person says yes. Where not, or where the question fails, what was written since the snapshot is
        taken back."""
        is_confirmed, planned = False, RunSnapshot.of(paths)
        try:
            is_confirmed = confirm()
        finally:
            if not is_confirmed:
                self.restore(planned)
        return is_confirmed

    def restore(self, planned: RunSnapshot) -> None:
        """Put back each file that was another one when all was planned, and remove those that were new. `planned`: the
        files then; what another command has written since stays."""
        for file, (content, _) in planned.files.items():
            if _read(file) != content:
                continue
            if file not in self.files:
                file.unlink(missing_ok=True)
            elif self.files[file][0] != content:
                write_whole(file, self.files[file][0], mode=self.files[file][1])
        for file in self.files.keys() - planned.files.keys():
            if not file.exists():
                content, mode = self.files[file]
                private_dir(file.parent)
                write_whole(file, content, mode=mode)


def _read(file: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return regular_file.read(file, LARGEST, follow_links=False)
    return None


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, but those that stay as they are."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from () if path.name in KEPT_FOLDERS else _files(path)
        elif path.is_file() and path.name not in KEPT_FILES:
            yield path
