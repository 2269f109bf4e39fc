"""Where things lie: package data, the run directory of a cluster, and files written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from provisioner.common import directories
from provisioner.common.errors import GpuprovError

DATA = ("terraform", "ansible", "templates", "images", "docs", "examples")

IDENTITY = re.compile(r"[0-9a-f]{12}\n?")
"""The file `id` of a run directory: what tells a cluster from every other one of its name (Cluster.identity)."""


MADE_BY = "provider"
"""File in a site's workspace: the name of the provider that made its machines."""
RUNS, IGNORE = ".gpuprov", ".gitignore"
"""The folder beside cluster.yaml that has the run directories, and its file that keeps keys and states out of git."""


def data(name: str) -> Path:
    """A folder of DATA: beside the package, or inside it in a wheel."""
    package = Path(str(resources.files("provisioner")))
    for base in (package / "_data", package.parent):
        if (base / name).is_dir():
            return base / name
    raise GpuprovError(f"gpuprov's data folder {name}/ is missing", hint="reinstall gpuprov")


def cache() -> Path:
    """Per-user cache (XDG_CACHE_HOME/gpuprov), 0700, made on first use. Everything in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return private_dir(Path(base) / "gpuprov")


def private_dir(path: Path) -> Path:
    """Make a directory that only its owner can enter, and so all those above it that are not there yet; with sudo they
    are the person's in whose folder they lie."""
    new_folders = [folder for folder in (path, *path.parents) if folder.name == RUNS and not folder.exists()]
    with directories.opened(path, create=True):
        pass
    for folder in new_folders:
        write_whole(folder / IGNORE, "*\n", mode=0o644)
    return path


def below(folder: Path, name: str) -> Path:
    """`folder`/`name`. Raises GpuprovError where the name leads out of it: by .., from the root, or through a link."""
    path = folder / name
    if ".." in Path(name).parts or "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise GpuprovError(f"{name!r} points outside of {folder}", hint="check where that name comes from")
    return path


def write_whole(
    path: Path, content: str | bytes | Iterator[str], *, mode: int = 0o600, durable: bool = True
) -> None:  # fmt: skip
    """Write a file whole or not at all: temporary file in the same directory, fsync (where `durable`), rename. Raises
    OSError with the file's own name, also where somebody puts another file in its place meanwhile. An iterator gives
    the text part by part."""
    parts = iter([content]) if isinstance(content, str | bytes) else content
    with naming(path), directories.replacing(path, mode=mode, durable=durable) as stream:
        for part in parts:
            stream.write(part.encode() if isinstance(part, str) else part)


def touch(path: Path) -> None:
    """Make an empty file where there is none yet: a lock that runs with sudo and without can both take."""
    with naming(path):
        directories.append(path).close()


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, also where another process is still writing into it for a moment.
    Nothing is done where it is missing."""
    try:
        with directories.opened(path.parent) as folder:
            _remove(path.name, folder)
    except FileNotFoundError:
        return


def _remove(name: str, folder: int) -> None:
    for _ in range(100):
        try:
            shutil.rmtree(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            if error.errno == errno.ENOENT and name not in os.listdir(folder):
                return
            time.sleep(0.05)
        else:
            return
    shutil.rmtree(name, dir_fd=folder)


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """A write that fails says where: the kernel's answer to write(2) and fsync(2) has no name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


SANDBOX_SUFFIX = ".sandbox"
"""Of the run directory of a sandbox. A dot can't be in a cluster's name, so it meets no other cluster's."""
HOLDER = "holder.json"
"""File in a run directory: the run that holds its lock."""
STATE, STATE_BACKUP, ERRORED = "terraform.tfstate", "terraform.tfstate.backup", "errored.tfstate"
"""Terraform's files in a site's workspace: the state where it is local, the one before its last change, and what could
not be saved ("Failed to persist state to backend")."""
APPLYING = "applying"
"""Beside them while an apply has made resources that no file records yet; it stays where the run was killed, or where
neither of the files could be written."""


def has_state(folder: Path) -> bool:
    """Whether a site's workspace has a state of Terraform's, be it one that could not be saved."""
    return any((folder / name).exists() for name in (STATE, ERRORED))


def _folder(file: Path) -> Path:
    """The folder of a file, absolute and without `..`: what is made for a cluster has its path as a label."""
    folder = file.absolute().parent
    return folder.resolve() if ".." in folder.parts else folder


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The run directory of one cluster: `.gpuprov/<name>` beside cluster.yaml, `.gpuprov/<name>.sandbox` for a
    sandbox. A dot can't be in a cluster's name, so the two never meet."""

    spec: Path
    name: str
    sandbox: bool

    @property
    def root(self) -> Path:
        return _folder(self.spec) / RUNS / (f"{self.name}{SANDBOX_SUFFIX}" if self.sandbox else self.name)

    @property
    def lock_file(self) -> Path:
        """cluster.lock beside cluster.yaml; a sandbox has its own, because its digests are simulated ones."""
        return self.root / "cluster.lock" if self.sandbox else self.user_lock

    @property
    def user_lock(self) -> Path:
        """The lock beside cluster.yaml, in the user's git; a sandbox takes its versions from it."""
        return _folder(self.spec) / f"{self.spec.stem}.lock"

    def locked(self) -> bool:
        """Whether there is a lock: its own, or the user's."""
        return self.lock_file.exists() or self.user_lock.exists()

    @property
    def run_lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def inventory(self) -> Path:
        return self.root / "inventory.yml"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def ssh(self) -> Path:
        return self.root / "ssh"

    @property
    def nodes(self) -> Path:
        return self.root / "nodes.json"

    @property
    def baseline(self) -> Path:
        """The fleet's own record of what its nodes reach."""
        return self.root / "baseline.json"

    @property
    def measures(self) -> Path:
        """What its nodes reached, run after run."""
        return self.root / "measures.jsonl"

    @property
    def intent(self) -> Path:
        return self.root / "intent.json"

    @property
    def used_spec(self) -> Path:
        """cluster.yaml as it was when machines were last made: `down` goes by it where the file is not valid any
        more. It stays on this machine."""
        return self.root / "cluster.yaml"

    def site(self, site: str) -> Path:
        return below(self.root / "sites", site)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def exists(self) -> bool:
        return self.root.is_dir()

    def made(self) -> bool:
        """Whether machines were made or installed, or were about to be: not so where somebody only looked."""
        state_files = ("terraform.tfstate", "netboot.json")
        return (
            self.intent.exists()
            or self.nodes.exists()
            or any(any(self.root.glob(f"sites/*/{file_name}")) for file_name in state_files)
        )

    def untouched(self) -> bool:
        """Whether nothing is there but what a look has left: Terraform's providers."""
        remains = {"sites", self.run_lock.name, HOLDER}  # the last two of a `down` that was killed at its very end
        return not self.exists() or ({path.name for path in self.root.iterdir()} <= remains and not self.made())
