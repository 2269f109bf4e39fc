"""Why not another version: each other candidate of a component, tried in place of the one that was chosen."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.spec.models import ClusterSpec
from provisioner.stack.candidates import newest_first
from provisioner.stack.conflict import Place, StackConflict, conflict, joined
from provisioner.stack.image_facts import said
from provisioner.stack.models import Image
from provisioner.stack.resolve import Need, Problem, Unsolvable, resolve
from provisioner.stack.solve import group_problem

MOST = 6
"""Other versions that are named: the newest ones."""


def alternatives(
    spec: ClusterSpec, group: str, name: str, chosen: str, locate: Place, images: Iterable[Image] = ()
) -> list[str]:
    """One line for each of the newest other versions of a component: that it would go too, or what is against it.
    `images`: a lock's, of which what they said of themselves counts."""
    machine = spec.machine(group)
    problem = group_problem(spec, group, tuple(sorted((i.reference, said(i)) for i in images if i.basis == "measured")))
    versions = {c.version for c in problem.candidates.get(name, ())} - {chosen}
    try:
        other_versions = sorted(versions, key=newest_first)[:MOST]
    except ValueError:  # names of distributions are no versions
        other_versions = sorted(versions)
    lines = []
    for version in other_versions:
        conflicting_pin = next(
            (n for n in problem.needs if n.name == name and n.pin and not _allows(problem, n, version)), None
        )
        if conflicting_pin is not None:  # it and `need` would have the same key
            lines.append(f"{version}: cluster.yaml asks for {conflicting_pin.pin} ({locate(conflicting_pin.path)})")
            continue
        need = Need(name, (version,), path=f"stack.{name}", says=f"{name} {version}")
        extended = problem.with_need(need)
        try:
            resolve(extended)
            lines.append(f"{version}: compatible, but {chosen} is preferred")
        except Unsolvable:
            error: StackConflict = conflict(extended, f"group {group} on {machine.name}", locate)
            other_requests = [text for path, text in error.asked.items() if path != need.path]
            lines.append(
                f"{version}: {error.reasons[0] if error.reasons else f'conflicts with {joined(other_requests)}'}"
            )
    return lines


def _allows(problem: Problem, pin: Need, version: str) -> bool:
    return any(pin.met_by(c) for c in problem.candidates[pin.name] if c.version == version)
