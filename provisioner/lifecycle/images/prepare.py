"""A builder that runs → a machine of which an image can be made: installed, proven, nothing of its own left on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from provisioner.lifecycle.images.builder import Builder
from provisioner.lifecycle.images.work import Build, teller
from provisioner.rundir.fleet import Node


def prepare(work: Build, name: str, builder: Builder, node: Node, between: Callable[[], None] = lambda: None) -> None:
    """`between` is called on the machine that is installed and still lets gpuprov in."""
    journal, report = work.journal, teller(work, name)
    report("installing")
    installed = builder.install(node)
    journal.done(name, "installed", asdict(installed))
    between()
    report("taking away what belongs to the builder alone, and looking for secrets")
    journal.done(name, "generalising")
    residue = builder.generalise(node, {"image": work.recipe.name, "build": work.id, "target": name})
    journal.done(name, "generalised", residue)
