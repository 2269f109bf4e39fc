"""Whether what a lock names can still be had: asked before machines are made, which cost money while apt fails on them.

Vendors take old packages out of their repositories, and keys expire. Lists are compared with a fresh, verified Release
(index.py), so this reads some kilobytes; of an archive the vendor is asked for its size alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.common.text import few
from provisioner.stack import index
from provisioner.stack.assemble import belongs_to
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import Origin
from provisioner.stack.models import Archive, Repository, Stack
from provisioner.stack.package_index import PackageIndex

DEADLINE = 60.0
"""Seconds for all repositories together."""
PAUSE = 0.2
"""Seconds before the second try of a file: whoever has no network is told soon."""
FEW = 3
_EMBEDDED = "data:application/pgp-keys;base64,"


def look(stacks: Mapping[str, Stack], file: str) -> list[Finding]:
    """What of these stacks (group → stack) is gone: one finding for each repository that lacks something (`blocks`), or
    could not be asked (`unknown`). `file` is cluster.yaml, for what to do."""
    names_by_repository: dict[Repository, dict[tuple[str, str], None]] = {}
    for stack in stacks.values():
        for repository in stack.repositories:
            names = names_by_repository.setdefault(repository, {})
            names.update({(p.name, p.version): None for p in stack.packages if p.repository == repository.name})
    fetch = Fetch(deadline_s=DEADLINE, pause_s=PAUSE)
    try:
        with ThreadPoolExecutor(8, thread_name_prefix="gpuprov-preflight") as pool:
            futures = [
                pool.submit(_check_repository, r, names, fetch, file) for r, names in names_by_repository.items()
            ]
            return [finding for future in futures for finding in future.result()]
    finally:
        fetch.stop()


def _check_repository(
    repository: Repository, names: Iterable[tuple[str, str]], fetch: Fetch, file: str
) -> list[Finding]:
    try:
        if repository.archives:
            return [f for archive in repository.archives for f in _archive(repository, archive, fetch, file)]
        key = repository.key_url.removeprefix(_EMBEDDED)
        key_bytes = base64.b64decode(key) if key != repository.key_url else None
        package_index = PackageIndex({repository.name: index.read(Origin(repository, key=key_bytes), fetch)})
    except GpuprovError as error:
        message = f"{error.message}; whether its packages are still there is not known"
        return [Finding("unknown", "packages", message, error.hint)]
    missing = [f"{n} {v}" for n, v in names if v not in {e.version for e in package_index.entries(n)}]
    if not missing:
        return []
    message = f"repository {repository.name} no longer has {few(missing, FEW, ',')}, which are locked: apt would fail"
    return [Finding("blocks", "packages", message, _renew(repository, file))]


def _archive(repository: Repository, archive: Archive, fetch: Fetch, file: str) -> list[Finding]:
    answer = fetch.get(archive.url, who=f"archive {repository.name}", limit=1 << 20, method="HEAD")
    size = answer.headers.get("content-length", "")
    if answer.status in (404, 410):
        message = f"{archive.url} is gone (HTTP {answer.status}): nodes could not fetch it"
        return [Finding("blocks", "packages", message, _renew(repository, file))]
    if answer.status != 200:
        message = f"{archive.url}: HTTP {answer.status}; whether nodes can fetch it is not known"
        return [Finding("unknown", "packages", message, "look at the vendor's status")]
    if size.isdigit() and int(size) != archive.size:
        message = f"{archive.url} has {size} bytes, the lock has {archive.size}: nodes would refuse it"
        return [Finding("blocks", "packages", message, _renew(repository, file))]
    return []


def _renew(repository: Repository, file: str) -> str:
    return f"`gpuprov lock {file} --upgrade {belongs_to(repository.name)}` takes what is there now"
