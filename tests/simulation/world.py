"""Everything that is not gpuprov: the cloud, the nodes, the scheduler that hooks talk to, the bucket that operators
share, the disks; and what must hold of it, whatever happens (`violations`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.common.errors import LockedError, ProviderError
from provisioner.lifecycle.sharing.lease import DEAD_S, HOLDER, LOST_S
from provisioner.machines.providers.state import Blob, Conflict
from tests.simulation.cloud import Cloud, Machine
from tests.simulation.heartbeat import Heartbeats
from tests.simulation.hosts import Host
from tests.simulation.processes import Process, Processes
from tests.simulation.terraform_program import Failed, StateStore

ACCOUNT = "111111111111"
EFFECT_S = 3.0
"""Seconds that an effect takes."""
WAITING_EFFECT_S = 1.0
"""The same while a command waits for a late answer: others act within seconds of each other."""
LATE_S = 260.0
"""After which a late answer comes: longer than a lease lives without a renewal."""
HELD_S = (LOST_S + 5, DEAD_S + 5)
"""Of these, after which others try to take over."""
STOP_S = 60.0
"""For which a Terraform may go on whose command has lost its lease (terraform.workspace.STOP_GRACE_S)."""


@dataclass
class Bucket(StateStore):
    """A place with conditional writes, as S3 is: name → content, tag, and when it was written."""

    world: World
    blobs: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    _tags: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, name: str, content: bytes, previous_tag: str | None, *, always: bool = False) -> str:
        present = self.blobs.get(name)
        if not always and (present[1] if present else None) != previous_tag:
            raise Conflict(name)
        tag = f"tag-{next(self._tags)}"
        self.blobs[name] = (content, tag, self.world.clock)
        return tag

    def read(self, key: str) -> str | None:
        blob = self.blobs.get(f"terraform/{key}")
        return blob[0].decode() if blob else None

    def write(self, key: str, text: str) -> None:
        failed = Failed(("Failed to upload state: RequestTimeout", ""))
        self.world.processes.effect(
            "store", f"state {key}", lambda: self.put(f"terraform/{key}", text.encode(), None, always=True),
            refusal=lambda: failed, lost=lambda: failed, finishes=True,
        )  # fmt: skip


class Remote:
    """providers/state.py's contract over the bucket."""

    def __init__(self, world: World, cluster: str) -> None:
        self.world, self.cluster = world, cluster
        self.where, self.there = f"s3://simulated/{cluster}", True

    def terraform(self, site: str) -> tuple[str, dict[str, object]]:
        return "s3", {"bucket": "simulated", "key": f"{self.cluster}/{site}", "use_lockfile": True}

    def prepare(self, *, make: bool = True) -> list[object]:
        return []

    def _error(self) -> ProviderError:
        return ProviderError("connection reset", where=self.where, hint="run it again")

    def read(self, name: str, known: str | None = None) -> Blob | None:
        present = self.world.processes.effect(
            "store", f"read {name}", lambda: self.world.bucket.blobs.get(f"{self.cluster}/{name}"), refusal=self._error
        )
        if present is None:
            return None
        content, tag, written = present
        return Blob(b"" if tag == known else content, tag, self.world.clock - written)

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        """Of a lost answer the caller sees either the error, or, where the SDK has repeated the call by itself, that
        somebody else wrote meanwhile."""
        lost: list[BaseException] = [self._error(), Conflict(name)]

        def put() -> str:
            tag = self.world.bucket.put(f"{self.cluster}/{name}", content, previous_tag)
            if name == HOLDER:
                self.world.holding[self.cluster] = self.world.process
            return tag

        if name != HOLDER:
            self.world.sharing(self.cluster, name)

        return self.world.processes.effect(
            "store", f"write {name}", put,
            refusal=self._error, lost=lambda: lost[len(self.world.bucket.blobs) % 2],
        )  # fmt: skip

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        def action() -> None:
            present = self.world.bucket.blobs.get(f"{self.cluster}/{name}")
            if previous_tag is not None and (present is None or present[1] != previous_tag):
                raise Conflict(name)
            self.world.bucket.blobs.pop(f"{self.cluster}/{name}", None)
            if name == HOLDER:
                self.world.holding.pop(self.cluster, None)

        self.world.processes.effect("store", f"remove {name}", action, refusal=self._error, lost=self._error)

    def names(self) -> list[str]:
        head = f"{self.cluster}/"
        listed = self.world.bucket.blobs
        own_names = [name.removeprefix(head) for name in listed if name.startswith(head)]
        states = [name for name in listed if name.startswith(f"terraform/{head}")]
        return own_names + [f"terraform/{name.removeprefix(f'terraform/{head}')}" for name in states]


@dataclass
class World:
    """`folders`: each operator's project folder. `drained`: node → id of the machine that a drain command named;
    `drained_by`: node → the cluster of that command. `violations`: invariants that were broken, in words."""

    root: Path
    processes: Processes = field(default_factory=Processes)
    cloud: Cloud = field(default_factory=Cloud)
    drained: dict[str, str] = field(default_factory=dict)
    drained_by: dict[str, str] = field(default_factory=dict)
    clock: float = 0.0
    lost_holds: set[str] = field(default_factory=set)
    """Nodes of a quarantine.json or upgrade.json that is lost, and those that a person has released with a driver that
    they were never proven with: out of service until they are proven again."""
    bad_drivers: set[str] = field(default_factory=set)
    """Drivers with which no node is healthy."""
    hooks: bool = True
    """Whether cluster.yaml has hooks now."""
    violations: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    """What happened, for people."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What happened, to be done again (replay.py)."""
    folders: list[Path] = field(default_factory=list)
    bucket: Bucket = field(init=False)
    hearts: Heartbeats = field(init=False)
    account: str = ACCOUNT
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of which the commands' names are made."""
    tokens: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of which random names are made, so that one history gives one run."""
    applying: dict[tuple[str, str], Process] = field(default_factory=dict)
    """Cluster and site → the command whose Terraform changes it now."""
    holding: dict[str, Process] = field(default_factory=dict)
    """Cluster → the command that has written its lease last."""

    def __post_init__(self) -> None:
        self.bucket = Bucket(self)
        self.hearts = Heartbeats(self)
        self.processes.beat, self.processes.strike_heartbeat = self.beat, self.hearts.strike
        self.processes.wait_for_answer = self.wait_for_answer

    def beat(self, process: Process) -> None:
        """Time goes by."""
        waiting = any(process.waiting for process in self.processes.running)
        self.clock += WAITING_EFFECT_S if waiting else EFFECT_S
        self.hearts.beat(process)

    def stop(self, error: LockedError) -> None:
        """The command at work has lost its lease."""
        self.process.lost_lease, self.process.lost_at = error, self.clock

    def wait_for_answer(self, process: Process) -> None:
        """An answer is late; the other commands go on."""
        began, until, process.waiting = self.clock, self.clock + LATE_S, True
        held_until = began + HELD_S[self.processes.pick(len(HELD_S))]
        try:
            while self.clock < until and not process.is_stopped(self.clock - STOP_S):
                if self.clock >= held_until:
                    for other in self.processes.running:
                        other.held = False
                self.beat(process)
                self.processes.switch(away=True)
        finally:
            process.waiting = False

    @property
    def process(self) -> Process:
        return self.processes.current

    def account_of(self, region: str) -> str:
        """Whose machines the command at work sees in a region; a MAAS has no accounts."""
        return "" if region == "maas" else self.process.account

    def broken(self, sentence: str) -> None:
        self.violations.append(f"{sentence} (by `{self.process.command}`)")

    def sharing(self, cluster: str, name: str) -> None:
        """A command is about to write an object beside the shared state. The write may arrive when another one holds
        the lease; then it is refused where that has written the object."""
        holder = self.holding.get(cluster)
        if holder is not None and holder is not self.process:
            self.broken(f"{name} of {cluster} is written while `{holder.command}` holds the lease")

    def named(self, node: str, process: Process) -> bool:
        """Whether the command line or a question that was answered with yes names the node."""
        texts = [process.command, *process.questions]
        return any(re.search(rf"(?<![\w-]){re.escape(node)}(?![\w-])", text) for text in texts)

    def agree(self, question: str) -> None:
        """A person says yes. A host whose node is given back may become another one, also after a kill."""
        self.process.questions.append(question)
        parts = re.findall(r"(?:give back|take another machine for) ([^;(?]*)", question, re.IGNORECASE)
        nodes = {node for part in parts for node in part.strip().split(", ")}
        for host in self.cloud.machines.values():
            if isinstance(host, Host) and host.node in nodes:
                host.asked = True

    def removing(self, machine: Machine) -> None:
        """A machine is about to be removed."""
        command, machine.removed_by = self.process.doing.partition(" ")[0], self.process.name
        if self.process is self.processes.outside:
            return
        if machine.in_use and command not in ("down", "gc"):
            self._refuse_in_service(machine, "destroyed")
        if machine.kind == "machine" and machine.in_use and not self.named(machine.node, self.process):
            self.broken(f"{machine.id} ({machine.node}), which was proven, is destroyed and no question named it")

    def changing(self, machine: Machine) -> None:
        """A machine that was proven is about to get another driver."""
        if self.process.doing.startswith("upgrade"):
            self._refuse_in_service(machine, "changed")

    def renaming(self, host: Host, node: str) -> None:
        """A host is about to be that node. One in service as another node is drained before, and out of service until
        it is proven."""
        if host.node == node:
            return
        if host.in_use:
            self._refuse_in_service(host, f"made {node}")
        if self.drained.get(host.node) == host.known_as:
            host.in_use = False

    def undoing(self, host: Host, node: str) -> None:
        """What was changed on a host is about to be undone. `node`: what nodes.json calls it, "" where it does not; the
        host may have another name, from before an `up` that came no further."""
        if not host.in_use:
            return
        if self.process.doing.partition(" ")[0] not in ("down", "gc"):
            self._refuse_in_service(host, "left")
        if not any(self.named(name, self.process) for name in (host.node, node) if name):
            self.broken(f"{host.id} ({host.node}), which was proven, is left and no question named it")

    def _refuse_in_service(self, machine: Machine, change: str) -> None:
        if self.hooks and self.drained.get(machine.node) != machine.known_as:
            self.broken(f"{machine.id} ({machine.node}), which was proven, is {change} and was not drained before")

    def hook(self, step: str, node: str, machine: str, cluster: str) -> None:
        """A hook has worked on a node of a cluster."""
        if step == "drain":
            known = self.cloud.called(machine)
            condemned = machine in self.process.condemned
            if known and known.in_use and known.running and not known.sick and not condemned:
                is_announced = self.named(node, self.process) or any("→" in text for text in self.process.questions)
                if not is_announced:
                    self.broken(f"{node} is healthy and is drained, and no question named it")
            self.drained[node], self.drained_by[node] = machine, cluster
        else:
            self.drained.pop(node, None)

    def judged(self, machine: Machine, *, healthy: bool, reachable: bool) -> None:
        """A verdict on a machine. It is of the moment of the probe: another command beside may remove it afterwards."""
        other_commands = {process.name for process in self.processes.running if process is not self.process}
        if healthy:
            if machine.sick or not (reachable or machine.removed_by in other_commands):
                self.broken(f"{machine.id} ({machine.node}) is called healthy and is not")
            machine.proven.add(machine.installed)
            self.lost_holds.discard(machine.node)
            if isinstance(machine, Host):
                machine.asked = False
        else:
            self.process.condemned.add(machine.known_as)
