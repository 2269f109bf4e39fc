"""The signing keys of a lock's repositories as their vendors have them today: rotated, or about to expire?

A key that ends is noticed late: apt refuses the repository on every node at once.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.doctor import Diagnosis
from provisioner.stack import openpgp
from provisioner.stack.fetch import Fetch
from provisioner.stack.index import KEY_LIMIT
from provisioner.stack.models import Lock, Repository

SOON_DAYS = 60
"""Days before its end at which a key is named."""
DEADLINE = 60.0
PAUSE = 0.2
_EMBEDDED = "data:application/pgp-keys;base64,"


def examine(lock: Lock) -> list[Diagnosis]:
    """One diagnosis for each repository of a lock that has a key. Never raises."""
    some = {(r.name, r.key_url): r for stack in lock.groups.values() for r in stack.repositories if r.key_url}
    fetch = Fetch(deadline_s=DEADLINE, pause_s=PAUSE)
    try:
        return list(_each(some.values(), fetch))
    finally:
        fetch.stop()


def _each(repositories: Iterable[Repository], fetch: Fetch) -> Iterable[Diagnosis]:
    for repository in repositories:
        subject, job = f"key of {repository.name}", "installing packages on nodes"
        try:
            ends = openpgp.expires(_key(repository, fetch), repository.fingerprint)
        except GpuprovError as error:
            yield Diagnosis(subject, "unknown", error.message, job, error.hint)
            continue
        if ends is None:
            message = f"{repository.key_url} no longer has {repository.fingerprint}"
            mend = "look for the vendor's announcement of a new key, then `gpuprov lock` with a gpuprov that knows it"
            yield Diagnosis(subject, "missing", message, job, mend)
            continue
        days, day = (ends - time.time()) / 86400, time.strftime("%Y-%m-%d", time.gmtime(ends))
        if not ends or days > SOON_DAYS:
            yield Diagnosis(subject, "ok", f"valid until {day}" if ends else "does not expire", job)
        elif days > 0:
            mend = "look for the vendor's announcement of a new key before that day"
            yield Diagnosis(subject, "unknown", f"expires on {day}, in {days:.0f} days", job, mend)
        else:
            yield Diagnosis(subject, "missing", f"expired on {day}", job, "find the vendor's new key")


def _key(repository: Repository, fetch: Fetch) -> bytes:
    if repository.key_url.startswith(_EMBEDDED):
        return base64.b64decode(repository.key_url.removeprefix(_EMBEDDED))
    answer = fetch.get(repository.key_url, who=f"the key of repository {repository.name}", limit=KEY_LIMIT)
    if answer.status != 200:
        hint = "find its address in the vendor's documentation"
        raise GpuprovError(f"{repository.key_url}: HTTP {answer.status}", hint=hint)
    return answer.body
