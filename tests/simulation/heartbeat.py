"""The threads that renew a lease, by the world's clock: they beat while their command does something else.

Real is what lifecycle/sharing/lease.py does in them. A renewal runs between two effects of its command, and may hang,
fail, or end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from provisioner.lifecycle.sharing.lease import BEAT_S

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

HANG_S = 300.0
"""Seconds for which a request of the heartbeat hangs: longer than a lease lives without a renewal."""


@dataclass(eq=False, slots=True)
class Heart:
    """The heartbeat of one lease; `last`: when it was renewed, `renewing`: while it is."""

    lease: Any
    last: float
    renewing: bool = False


class Heartbeats:
    """Of all commands of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def beat(self, process: Process) -> None:
        """Renew the leases of a command whose turn it is, where it is time for that, and look at them. A lease has a
        thread for each: it is looked at also while the answer to a renewal is late."""
        for heart in tuple(process.leases):
            due = self.world.clock - heart.last >= BEAT_S and self.world.clock >= process.silent_until
            if due and not (heart.renewing or heart.lease.lost):
                heart.renewing = True
                try:
                    heart.lease._renew()
                finally:
                    heart.renewing, heart.last = False, self.world.clock
            heart.lease._check()

    def strike(self, process: Process, kind: str) -> None:
        """A fault of the heartbeat alone: its request hangs, or its thread ends by an error that nobody expects."""
        if kind == "heartbeat hangs":
            process.silent_until = self.world.clock + HANG_S
            return
        for heart in process.leases:
            failing = mock.patch.object(heart.lease, "_renew", side_effect=MemoryError)
            with failing, mock.patch.object(heart.lease, "_over", SimpleNamespace(wait=lambda _: False, set=bool)):
                heart.lease._beat()


def threads(world: World) -> Any:
    """In place of the module threading in lifecycle/sharing/lease.py."""

    class Thread:
        def __init__(self, target: Callable[[], None], **_: Any) -> None:
            self.lease = target.__self__  # type: ignore[attr-defined]
            self.beats = target.__name__ == "_beat"

        def start(self) -> None:
            def refused() -> RuntimeError:
                return RuntimeError("can't start new thread")

            world.processes.effect("thread", "of the lease", lambda: None, refusal=refused)
            if self.beats:
                world.process.leases.append(Heart(self.lease, world.clock))

        def join(self) -> None:
            process = world.process
            process.leases = [heart for heart in process.leases if heart.lease is not self.lease]

    return SimpleNamespace(Thread=Thread, Event=threading.Event, Lock=threading.Lock)
