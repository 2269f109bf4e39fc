"""Who is signed in at a cluster's clouds, asked before anything else is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Events
from provisioner.lifecycle.session import Cluster


def ask(cluster: Cluster, sites: Sequence[str], events: Events, *, refuse: bool) -> None:
    """Say at which sites nobody is signed in, or whose SDK is missing, before minutes go into images: the lock then has
    no image of their machines. Raises GpuprovError where that is so at all of them and `refuse`."""
    blocked = {}
    for site in sites:
        with contextlib.suppress(GpuprovError):  # a cloud that gpuprov makes no machines in yet
            state = cluster.providers.at(site).account()
            if state is not None and state.status == "blocks":
                blocked[site] = state
    if refuse and sites and len(blocked) == len(sites):
        lines = [f"site {site}: {blocker.message}" for site, blocker in blocked.items()]
        hints = dict.fromkeys(blocker.action for blocker in blocked.values() if blocker.action)
        raise ProviderError("\n  ".join(lines), where="credentials", hint="; ".join(hints))
    for site, state in blocked.items():
        hint = f" ({state.action})" if state.action else ""
        events("stack", "warning", f"site {site}: {state.message}{hint}: the lock gets no image of its machines")
