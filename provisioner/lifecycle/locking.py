"""cluster.yaml → cluster.lock: solved once, honoured ever after."""

from __future__ import annotations

from provisioner import stack
from provisioner.errors import GpuprovError
from provisioner.events import Events
from provisioner.providers import base as providers
from provisioner.session import Cluster
from provisioner.stack import lockfile
from provisioner.stack.models import Lock, Stack


def current(cluster: Cluster, events: Events) -> Lock:
    """The lock to work by: the one that is there if it still fits cluster.yaml, a new one where there is none.

    Raises GpuprovError naming what has changed where a lock no longer fits. A rehearsal's lock lies in the run
    directory and nobody has committed it; it is made again each time, because its digests follow from this machine's
    image.
    """
    if cluster.sandbox:
        return renew(cluster, events)
    found = lockfile.read(cluster.paths.lock_file)
    if found is None:
        return renew(cluster, events)
    changed = lockfile.differences(found, stack.request(cluster.spec))
    if changed:
        raise GpuprovError(
            "the lock no longer fits cluster.yaml:\n  " + "\n  ".join(changed),
            where=str(cluster.paths.lock_file),
            hint=f"look at the changes, then run `gpuprov lock {cluster.file} --upgrade`",
        )
    return found


def renew(cluster: Cluster, events: Events) -> Lock:
    """Solve, let each group's provider pin images and repositories, write the lock."""
    events("stack", "started", "choosing versions that go together")
    solved = stack.solve(cluster.spec)
    pinned: dict[str, Stack] = {}
    for site in cluster.spec.sites:
        provider = providers.get(cluster.spec.sites[site].provider, sandbox=cluster.sandbox)
        mine = {name: wanted for name, wanted in solved.items() if cluster.spec.site_of(name) == site}
        pinned |= provider.pin(mine, events)
    lock = Lock(
        request=stack.request(cluster.spec),
        simulated=cluster.sandbox,
        groups={name: pinned[name] for name in cluster.spec.groups},
    )
    lockfile.write(cluster.paths.lock_file, lock)
    events("stack", "done", f"{len({s.driver for s in pinned.values()})} driver version(s) locked")
    return lock
