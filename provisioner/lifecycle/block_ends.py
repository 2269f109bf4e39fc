"""When what machines are bought by ends (a Capacity Block), and the machines with it: `plan` and `up` ask the provider,
`status` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.session import Cluster
from provisioner.plan.models import Plan
from provisioner.rundir import node_state
from provisioner.rundir.node_state import FORM

SOON = timedelta(hours=2)


def queried_ends(cluster: Cluster, plan: Plan) -> dict[str, str]:
    """Group → when what its machines are bought by ends (ISO 8601, UTC), and the machines with it. What could not be
    asked is said."""
    ends: dict[str, str] = {}
    for site in plan.sites():
        if knows := cluster.providers.at(site).capacity:
            try:
                ends |= {name: when.strftime(FORM) for name, when in knows.ends(plan).items()}
            except GpuprovError as error:
                cluster.events("preflight", "warning", error.message)
    return ends


def note(cluster: Cluster, plan: Plan) -> None:
    """Ask, and write it down; of groups that are not of this plan, or could not be asked about, it stays as it was."""
    blocks = {name for name, group in cluster.spec.groups.items() if group.capacity.kind == "block"}
    ends = {name: when for name, when in noted(cluster).items() if name in blocks} | queried_ends(cluster, plan)
    node_state.note(cluster.paths, ends=[[name, when] for name, when in ends.items()])


def noted(cluster: Cluster) -> dict[str, str]:
    """Group → when its capacity block ends, as the last `up` was told; what is damaged is left out."""
    return {name: when for name, when in node_state.load(cluster.paths).ends if name in cluster.spec.groups}


def variables(cluster: Cluster) -> dict[str, Any]:
    """What the roles are told: group → when its machines begin to be taken (ISO 8601, UTC), before the block's end."""
    begins = {}
    for name, when in noted(cluster).items():
        early = catalog.load().provider(cluster.spec.machine(name).provider)
        begin = datetime.strptime(when, FORM).replace(tzinfo=UTC) - timedelta(seconds=early.block_ends_early_s)
        begins[name] = begin.strftime(FORM)
    return {"gpuprov_block_ends": begins}


def time_remaining(when: str, at: datetime | None = None) -> timedelta | None:
    """How long it is until then (ISO 8601, UTC); None for what is no time."""
    try:
        end = datetime.strptime(when, FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
    return end - (at or datetime.now(UTC))


def ending(ends: Mapping[str, str], at: datetime | None = None) -> list[str]:
    """What is to be said of blocks that end, a line each."""
    lines = []
    for name, when in ends.items():
        time_left = time_remaining(when, at)
        if time_left is None:
            continue
        minutes = int(time_left.total_seconds() // 60)
        due = "it is over" if minutes < 0 else f"in {minutes // 60} h {minutes % 60} min"
        soon = "WARNING: " if time_left < SOON else ""
        lines.append(f"{soon}{name}: its capacity block ends {when} ({due}); its machines end up to an hour before")
    return lines
