"""Containers of rehearsals whose run directory is gone: nobody can `down` them any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from provisioner.errors import ProviderError
from provisioner.providers.orphans import Found, Thing
from provisioner.sandbox import containers, network

PLACE = "this machine"


class OnThisMachine:
    """Containers by their labels. One whose run directory is there is `down`'s."""

    def find(self) -> Found:
        return Found(
            tuple(
                Thing(
                    "container", c.name, c.cluster, Path(c.workspace).name, PLACE, name=c.node or c.role, state=c.state,
                    workspace=c.workspace,
                )
                for c in containers.list_containers()
            )
        )  # fmt: skip

    def remove(self, things: Sequence[Thing], tell: Callable[[str], None]) -> list[str]:
        left = []
        for thing in things:
            tell(f"removing {thing.id}")
            try:
                containers.remove(thing.id)
            except ProviderError as error:
                left.append(f"{thing}: {error.message}")
        there = {container.workspace for container in containers.list_containers()}
        for workspace in {thing.workspace for thing in things} - there:
            network.release_octet(Path(workspace))
        return left
