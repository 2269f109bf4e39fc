"""Whether what a lock names can still be had: asked before machines are made, which cost money while apt fails on them.

Vendors take old packages out of their repositories, and keys expire. Lists are compared with a fresh, verified Release
(index.py), so this reads some kilobytes; of an archive the vendor is asked for its size alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from provisioner.errors import GpuprovError
from provisioner.preflight import Finding
from provisioner.stack import index
from provisioner.stack.assemble import belongs_to
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import Origin
from provisioner.stack.models import Archive, Repository, Stack
from provisioner.stack.package_index import PackageIndex
from provisioner.text import few

DEADLINE = 60.0
"""Seconds for all repositories together."""
PAUSE = 0.2
"""Seconds before the second try of a file: whoever has no network is told soon."""
FEW = 3
_EMBEDDED = "data:application/pgp-keys;base64,"


def look(stacks: Mapping[str, Stack], file: str) -> list[Finding]:
    """What of these stacks (group → stack) is gone: one finding for each repository that lacks something (`blocks`), or
    could not be asked (`unknown`). `file` is cluster.yaml, for what to do."""
    wanted: dict[Repository, dict[tuple[str, str], None]] = {}
    for stack in stacks.values():
        for repository in stack.repositories:
            names = wanted.setdefault(repository, {})
            names.update({(p.name, p.version): None for p in stack.packages if p.repository == repository.name})
    fetch = Fetch(deadline_s=DEADLINE, pause_s=PAUSE)
    try:
        with ThreadPoolExecutor(8, thread_name_prefix="gpuprov-preflight") as pool:
            asked = [pool.submit(_one, r, names, fetch, file) for r, names in wanted.items()]
            return [finding for one in asked for finding in one.result()]
    finally:
        fetch.stop()


def _one(repository: Repository, names: Iterable[tuple[str, str]], fetch: Fetch, file: str) -> list[Finding]:
    try:
        if repository.archives:
            return [f for archive in repository.archives for f in _archive(repository, archive, fetch, file)]
        key = repository.key_url.removeprefix(_EMBEDDED)
        own = base64.b64decode(key) if key != repository.key_url else None
        there = PackageIndex({repository.name: index.read(Origin(repository, key=own), fetch)})
    except GpuprovError as error:
        said = f"{error.message}; whether its packages are still there is not known"
        return [Finding("unknown", "packages", said, error.hint)]
    gone = [f"{n} {v}" for n, v in names if v not in {e.version for e in there.entries(n)}]
    if not gone:
        return []
    said = f"repository {repository.name} no longer has {few(gone, FEW, ',')}, which are locked: apt would fail"
    return [Finding("blocks", "packages", said, _renew(repository, file))]


def _archive(repository: Repository, archive: Archive, fetch: Fetch, file: str) -> list[Finding]:
    answer = fetch.get(archive.url, who=f"archive {repository.name}", limit=1 << 20, method="HEAD")
    size = answer.headers.get("content-length", "")
    if answer.status in (404, 410):
        said = f"{archive.url} is gone (HTTP {answer.status}): nodes could not fetch it"
        return [Finding("blocks", "packages", said, _renew(repository, file))]
    if answer.status != 200:
        said = f"{archive.url}: HTTP {answer.status}; whether nodes can fetch it is not known"
        return [Finding("unknown", "packages", said, "look at the vendor's status")]
    if size.isdigit() and int(size) != archive.size:
        said = f"{archive.url} has {size} bytes, the lock has {archive.size}: nodes would refuse it"
        return [Finding("blocks", "packages", said, _renew(repository, file))]
    return []


def _renew(repository: Repository, file: str) -> str:
    return f"`gpuprov lock {file} --upgrade {belongs_to(repository.name)}` takes what is there now"
