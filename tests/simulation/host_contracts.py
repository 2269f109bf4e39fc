"""What must hold of hosts of one's own: gpuprov's changes on each are known, and undone in the end."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.hosts import OTHER, Host
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

LEFT = "left with gpuprov's changes"


@dataclass
class Recorded:
    """Of one cluster. `ids`, `sites`: of the nodes in any nodes.json; `lists`: site → hosts in its list of configured
    ones."""

    ids: set[str] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    lists: dict[str, set[str]] = field(default_factory=dict)


class HostContracts:
    """Of one history."""

    def __init__(self, history: Simulation) -> None:
        self.history = history

    def changed(self) -> list[Host]:
        """Hosts with a record of a simulated cluster, but those of which a command has said that it stays."""
        hosts = (machine for machine in self.history.world.cloud.machines.values() if isinstance(machine, Host))
        return [machine for machine in hosts if machine.record and machine.record[0] != OTHER and not machine.given_up]

    def excuse_forgotten(self) -> None:
        """Records are older again: hosts that were configured since are known to nobody until an `up` enters them."""
        recorded = self._recorded()
        for host in self.changed():
            host.told = host.told or not self._is_recorded(host, recorded)

    def check(self, done: Sequence[Process]) -> Iterator[str]:
        recorded = self._recorded()
        for host in self.changed():
            stays = rf"(?<![\w-])({re.escape(host.node)}|{re.escape(host.known_as)})(?![\w-]).*{LEFT}"
            host.told = host.told or any(re.search(stays, "".join(process.errors)) for process in done)
            host.given_up = host.told and not self._is_recorded(host, recorded)
        for host in self.changed():
            if not self._is_recorded(host, recorded):
                yield f"{host.id} ({host.node}, {host.name}) has gpuprov's changes, and no nodes.json has it"
        yield from self._twice()
        for process in done:
            if process.code == 0 and len(done) == 1 and process.command in ("up", "down"):
                yield from self._after(process)

    def _after(self, process: Process) -> Iterator[str]:
        """`up` has left every host that cluster.yaml does not list, `down` all."""
        file = self.history.file
        listed = {file.host_name(host) for host in file.listed()} if process.command == "up" else set()
        for host in self.changed():
            if host.cluster == file.name and host.name not in listed:
                yield f"`{process.command}` ended well, and {host.id} ({host.node}) has gpuprov's changes"

    def _twice(self) -> Iterator[str]:
        """Two nodes that are one host."""
        for run in self.history.run_directories():
            nodes: dict[str, str] = {}
            for row in _rows(_text(run / "nodes.json")):
                machine = self.history.world.cloud.called(row["id"])
                if isinstance(machine, Host) and (other := nodes.setdefault(row["id"], row["name"])) != row["name"]:
                    yield f"{other} and {row['name']} are both {row['id']}"

    @staticmethod
    def _is_recorded(host: Host, recorded: Mapping[tuple[str, str], Recorded]) -> bool:
        """Whether a command knows that it is changed: by a nodes.json, or by the list of its site, which `up` goes by
        where no nodes.json has a node of that site."""
        assert host.record is not None
        records = recorded.get(host.record)
        return records is not None and (
            host.name in records.ids
            or (host.site not in records.sites and host.name in records.lists.get(host.site, ()))
        )

    def _recorded(self) -> dict[tuple[str, str], Recorded]:
        """Cluster and identity → what is recorded, in the shared files and by the operators whose files are as new. The
        next command overwrites older ones, and removes those of a cluster that is gone."""
        recorded: dict[tuple[str, str], Recorded] = {}
        for run in self.history.run_directories():
            cluster = run.name, (run / "id").read_text(encoding="utf-8").strip()
            records = recorded.setdefault(cluster, Recorded())
            blob = self.history.world.bucket.blobs.get(f"{run.name}/fleet.json.gz")
            (own_record,) = _rows(f"[{_text(run / 'shared.json') or '{}'}]") or ({},)
            tag, sent = own_record.get("tag"), own_record.get("sent", ())
            if blob is None and tag is not None:
                continue
            texts = [_text(run / "nodes.json")]
            if blob is not None:
                is_new = tag == blob[1] or hashlib.sha256(blob[0]).hexdigest() in sent
                shared = json.loads(gzip.decompress(blob[0]))["files"].get("nodes.json")
                texts = [shared, *texts] if is_new else [shared]
            for row in (row for text in texts for row in _rows(text)):
                records.ids.add(row["id"])
                records.sites.add(row["site"])
            for file in run.glob("sites/*/hosts"):
                records.lists.setdefault(file.parent.name, set()).update((_text(file) or "").split())
        return recorded


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _rows(text: str | None) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text or "[]")
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
