"""What podman knows of this machine, and which processes run: beside it stands what it does not know (leftovers.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import ProviderError
from provisioner.sandbox import podman_commands
from provisioner.sandbox.backends import BACKENDS
from provisioner.sandbox.runtime import Podman

TRIES = 3
LIST_ALL = ("ps", "--all", "--external", "--no-trunc", "--format", "json")
VANISHED = "container not known"
"""How podman's message ends then (ErrContainerUnknown of containers/storage)."""
OCTET = "gpuprov.octet"
"""Label and annotation of everything that terraform/sandbox makes."""
ALIVE = frozenset({"running", "paused", "stopping", "initialized"})
"""States of podman's containers that have a network (libpod/define/containerstate.go)."""


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """A container of podman's. `namespace`: the path of its network namespace; empty where it has none."""

    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class PodmanState:
    """What podman knows, and what runs. `containers`: by id; `stored`: id → name of those that only the storage knows;
    `volumes`: name → its label of an octet, or ""; `processes`: arguments by process."""

    podman: Podman
    containers: dict[str, KnownContainer]
    stored: dict[str, str]
    volumes: dict[str, str]
    processes: dict[int, list[str]]

    @property
    def names(self) -> set[str]:
        return {container.name for container in self.containers.values()}

    @property
    def namespaces(self) -> set[str]:
        return {container.namespace for container in self.containers.values()}

    def is_stale(self, container: str) -> bool:
        """Whether a container that has a lease has no network as podman knows it, and none is about to be made (the
        node boots again: its monitor has called podman)."""
        entry = self.containers.get(container)
        if entry is None or entry.namespace:
            return entry is None
        return not any(
            Path(arguments[0]).name == "podman"
            and not {container, entry.name}.isdisjoint(arguments)
            and podman_commands.is_root(pid)
            for pid, arguments in self.processes.items()
        )


def read(engine: Podman) -> PodmanState:
    """What it knows now. Containers come and go meanwhile. One whose creation or removal was killed cannot be inspected
    and has no network as podman knows it; one that runs and cannot be looked at could be the owner of anything. Raises
    ProviderError for such a one."""
    for _ in range(TRIES):
        listed = json.loads(_list_all(engine) or "[]") or []
        rows = {str(row["Id"]): (str(row["State"]).lower(), str((row.get("Names") or [""])[0])) for row in listed}
        stored = {id_: name for id_, (state, name) in rows.items() if state == "storage"}
        ids = [id_ for id_ in rows if id_ not in stored]
        containers = _inspect(engine, [id_ for id_ in ids if rows[id_][0] != "removing"])
        unclear = {id_: rows[id_] for id_ in ids if id_ not in containers}
        if not any(state in ALIVE for state, _ in unclear.values()):
            containers |= {id_: KnownContainer(name, "") for id_, (_, name) in unclear.items()}
            return PodmanState(engine, containers, stored, _octets(engine, "volume"), processes())
    names = ", ".join(f"{name} ({state})" for state, name in unclear.values())
    raise ProviderError(f"podman cannot inspect {names}", hint="`podman container inspect NAME` says why")


def _list_all(engine: Podman) -> str:
    """podman 4.3 fails where a container is removed while it is listed."""
    for _ in range(TRIES):
        try:
            return engine.run(*LIST_ALL)
        except ProviderError as error:
            if VANISHED not in error.message:
                raise
    return engine.run(*LIST_ALL)


def networks(engine: Podman) -> dict[str, str]:
    """Name → its label of an octet; "" for one without."""
    return _octets(engine, "network")


def _octets(engine: Podman, kind: str) -> dict[str, str]:
    """podman spells the keys of volumes with capitals, those of networks without."""
    rows = json.loads(engine.run(kind, "ls", "--format", "json") or "[]") or []
    entries = [{key.lower(): value for key, value in row.items()} for row in rows]
    return {str(entry["name"]): str((entry.get("labels") or {}).get(OCTET, "")) for entry in entries}


def _inspect(engine: Podman, ids: Sequence[str]) -> dict[str, KnownContainer]:
    """Those of these containers that podman can inspect. With one among them that it cannot, it prints none."""
    form = "{{.Id}} {{.Name}} {{.NetworkSettings.SandboxKey}}"
    details = engine.run("container", "inspect", "--format", form, *ids, check=False) if ids else ""
    containers = {row[0]: KnownContainer(row[1], row[2]) for line in details.splitlines() if (row := line.split(" "))}
    if len(ids) > 1:
        for id_ in {*ids} - containers.keys():
            containers |= _inspect(engine, [id_])
    return containers


def version(engine: Podman) -> tuple[int, ...]:
    """Its first two numbers."""
    text = engine.run("version", "--format", "{{.Client.Version}}")
    return tuple(int(part) for part in re.findall(r"[0-9]{1,6}", text)[:2])


def backend(engine: Podman) -> str:
    """The name of its network backend. Raises ProviderError for one that is not in BACKENDS."""
    name = engine.run("info", "--format", "{{.Host.NetworkBackend}}").strip()
    if name not in BACKENDS:
        raise ProviderError(f"podman's network backend {name} is not known", hint="gpuprov knows cni and netavark")
    return name


def processes() -> dict[int, list[str]]:
    """Arguments of every process of this machine, by its number."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: command_line for pid in numbers if (command_line := arguments(pid))[0]}


def arguments(pid: int) -> list[str]:
    """Those of one process; one empty text where it has ended or is a thread of the kernel."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return [""]
