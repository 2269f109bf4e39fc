"""The files of a run directory before a question: what planning has written is taken back where the answer is no.

`plan` and `up` let Terraform plan in the workspace of each site, which is rendered anew for that. Neither may leave
anything of it: not where nobody asked for a change, nor where a person declined it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioner import regular_file
from provisioner.paths import APPLYING, ERRORED, HOLDER, STATE, STATE_BACKUP, ClusterPaths, private_dir, write_whole

LARGEST = 8 << 20
"""Bytes of a file that planning may write: what is larger is an image."""
KEPT_FOLDERS = ("runs", ".terraform")
"""Logs, and the providers that Terraform has fetched."""
KEPT_FILES = (HOLDER, "run.lock", "shared.json", STATE, STATE_BACKUP, ERRORED, APPLYING)
"""The lock of this run, what the shared state was when it was last read, and Terraform's states: a machine that was
found is not forgotten again."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """`files`: path → content and mode of each file that is put back."""

    root: Path
    files: dict[Path, tuple[bytes, int]]

    @classmethod
    def of(cls, paths: ClusterPaths) -> RunSnapshot:
        contents = {}
        for file in _files(paths.root):
            status = file.stat()
            if status.st_size <= LARGEST:
                content = regular_file.read(file, LARGEST, follow_links=False)
                contents[file] = content, stat.S_IMODE(status.st_mode)
        return cls(paths.root, contents)

    def restore(self) -> None:
        """Put back each file that is another one now, and remove the new ones."""
        for file in list(_files(self.root)):
            if file not in self.files and file.stat().st_size <= LARGEST:
                file.unlink()
        for file, (content, mode) in self.files.items():
            if not file.is_file() or file.read_bytes() != content:
                private_dir(file.parent)
                write_whole(file, content, mode=mode)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, but those that stay as they are."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from () if path.name in KEPT_FOLDERS else _files(path)
        elif path.is_file() and path.name not in KEPT_FILES:
            yield path
