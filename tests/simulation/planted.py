"""Bugs that are planted on purpose: the simulation has to find each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from provisioner.lifecycle import rollout, up, verifying
from provisioner.lifecycle.maintain.actions import MaintenanceActions
from provisioner.lifecycle.quarantine import book
from provisioner.lifecycle.rollout import Step
from provisioner.lifecycle.sharing.lease import HOLDER, Lease
from provisioner.machines.providers.state import Blob
from provisioner.transport import keeper
from tests.simulation.world import Remote

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def skipped_drain() -> contextlib.AbstractContextManager[Any]:
    """`up` removes machines without draining them."""
    return mock.patch.object(up, "_drain", lambda *_: None)


def lost_write() -> contextlib.AbstractContextManager[Any]:
    """quarantine.json is never written."""
    return mock.patch.object(book.Book, "save", lambda *_: None)


def name_instead_of_id() -> contextlib.AbstractContextManager[Any]:
    """A verdict is noted for whichever machine has the node's name now."""
    real = verifying.settle

    def settle(cluster: Any, verdict: Any, nodes: Sequence[Any], *arguments: Any, **keywords: Any) -> None:
        present = {node.name: node for node in cluster.nodes()}
        real(cluster, verdict, [present.get(node.name, node) for node in nodes], *arguments, **keywords)

    return mock.patch.object(verifying, "settle", settle)


def record_too_late() -> contextlib.AbstractContextManager[Any]:
    """An upgrade writes down that it drains nodes after it has drained them."""

    def out_of_service(
        journal: rollout.Rollout, actions: rollout.Actions, save: Callable[[], None], batch: Sequence[str],
        during: Step, *, done: Step, refused: Step,
    ) -> None:  # fmt: skip
        del during
        bad = actions.drain(batch) if batch else {}
        for name in batch:
            journal.nodes[name].step = refused if name in bad else done
        save()

    return mock.patch.object(rollout, "take_out_of_service", out_of_service)


def drained_for_good() -> contextlib.AbstractContextManager[Any]:
    """`maintain` that goes on takes a node for drained that a verdict has put back meanwhile."""
    return mock.patch.object(MaintenanceActions, "is_drained", lambda *_: True)


@contextlib.contextmanager
def unconditional_write() -> Iterator[None]:
    """A lease is taken whoever holds it."""
    real = Remote.write

    def write(remote: Remote, name: str, content: bytes, previous_tag: str | None) -> str:
        present = remote.world.bucket.blobs.get(f"{remote.cluster}/{name}")
        return real(remote, name, content, present[1] if name == HOLDER and present else previous_tag)

    def refuse(_: Lease, state: Blob) -> None:
        del state

    with mock.patch.object(Remote, "write", write), mock.patch.object(Lease, "_refuse_other", refuse):
        yield


def connections_of_all() -> contextlib.AbstractContextManager[Any]:
    """The keeper of a command that was killed ends the ssh connections of every command of the cluster."""
    return mock.patch.object(keeper, "remove_shared", lambda folder: keeper.close_shared(str(Path(folder).parent)))


PLANTS: tuple[Plant, ...] = (
    skipped_drain, lost_write, name_instead_of_id, record_too_late, unconditional_write, connections_of_all,
)  # fmt: skip
