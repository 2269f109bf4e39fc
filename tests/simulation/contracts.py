"""The contracts of gpuprov, looked at after every step of a history."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.common.errors import Exit
from provisioner.lifecycle.rollout import AT_REST
from tests.simulation import commands
from tests.simulation.cloud import Machine
from tests.simulation.host_contracts import HostContracts
from tests.simulation.processes import Process
from tests.simulation.snapshot import Snapshot
from tests.simulation.terraform_program import NETWORK, State
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class BrokenInvariant(AssertionError):
    """Something that must hold does not; the message is the history, the machines, and what is broken."""

    def __init__(self, world: World, *broken: str) -> None:
        machines = [
            f"  {machine.id} {machine.node or machine.kind}: cluster {machine.cluster} ({machine.identity[-6:]}), "
            f"{machine.region}, account {machine.account}, {'runs' if machine.running else 'gone'}, "
            f"driver {machine.installed or '-'}, "
            f"proven with {', '.join(sorted(machine.proven)) or '-'}"
            for machine in world.cloud.machines.values() if machine.kind != "host" or machine.proven or machine.serves
        ]  # fmt: skip
        text = [*world.script, "", "machines:", *machines, "", "to be kept in tests/simulation/corpus/:"]
        text += ["finding: what went wrong, in a sentence", "steps:"]
        text += [f"- {json.dumps(step)}" for step in world.steps]
        super().__init__("\n".join([*text, "", *dict.fromkeys(broken)]))


def load(file: Path) -> Any:
    """A JSON file of a run directory; None where it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def rows_of(document: Any) -> dict[str, Any]:
    """Its `nodes`; none of what is no such document."""
    rows = document.get("nodes") if isinstance(document, dict) else None
    return rows if isinstance(rows, dict) else {}


@lru_cache(maxsize=16)
def unpacked(content: bytes) -> dict[str, Any]:
    """The JSON files of what operators share (fleet.json.gz), which is looked at several times after every step."""
    files = json.loads(gzip.decompress(content))["files"]
    return {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}


class Contracts:
    """Of one history."""

    def __init__(self, history: Simulation) -> None:
        self.history = history

    def check(self, done: Sequence[Process], previous: Snapshot) -> None:
        broken = self.history.world.violations
        self.history.world.violations = []
        after = self.history.snapshot()
        self.history.states.add(after.digest())
        if len(done) == 1:
            (process,) = done
            looks = process.command.partition(" ")[0] in commands.CHANGES_NOTHING
            if looks and (changes := previous.changes(after, notes=True)):
                broken.append(f"`{process.command}` changes {', '.join(changes)}")
            refused = process.refused and not process.questions and not process.struck and not process.changes
            text = "".join(process.errors)
            refused = refused and "an upgrade is in progress" not in text  # machines may be recorded
            refused = refused and "was made by a run that died" not in text  # Terraform's state was put in order
            refused = refused and " now; no capacity at " not in text  # what a former run left at the first site goes
            refused = refused and "it is written back first" not in text
            refused = refused and "Terraform's state does not have" not in text  # the site is recorded for `down`
            refused = refused and "may be configured, and neither" not in text  # so it is here
            if refused and (changes := previous.changes(after, notes=False)):
                broken.append(f"`{process.command}` was refused and changed {', '.join(changes)}")
        broken += [
            f"`{process.command}` created or removed machines, and then could not read a damaged file"
            for process in done
            if len(done) == 1 and not process.struck and previous.machines() != after.machines()
            if process.command != "down"  # a site that fails does not keep the others
            if process.code == Exit.BAD_INPUT and "damaged" in (text := "".join(process.errors))
            if "left out" not in text
        ]
        broken += HostContracts(self.history).check(done)
        broken += self._at_two_sites()
        for run in self.history.run_directories():
            broken += self._files(run)
        recorded = self._recorded()
        for machine in self.history.world.cloud.machines.values():
            names = {name for name, id in recorded if machine.is_called(id)}
            if machine.serves and (machine.node in names or (machine.in_use and names)):
                machine.in_use = not machine.drifted
            elif "applied.json" in self.history.removed:  # nothing is left that knows it for proven
                machine.in_use = False
        broken += [
            f"{running.id} ({running.node}) runs in {running.region} of account {running.account}, "
            "and no command names it"
            for running in self.history.world.cloud.running()
            if not self._named(running)
        ]
        for process in done:
            if process.command == "up" and process.code == 0 and len(done) == 1:
                broken += self._after_up()
            if process.command in ("up", "down") and process.code == 0 and len(done) == 1:
                broken += self._forgotten(process)
            if process.command == "up" and len(done) == 1 and process.code not in (-9, 130, Exit.LOCKED):
                broken += self._unrecorded(process)
            if (
                process.applied
                and process.code not in (-9, 130)
                and not any(s.startswith(("full", "stays full")) for s in process.struck)
            ):
                left_out = set(re.findall(r"site ([\w-]+)(?::| is left out| failed,)", "".join(process.errors)))
                left_out |= self._other_sites(process)
                broken += [f"after `{process.command}` {sentence}" for sentence in self._unlisted(left_out)]
        if broken:
            raise BrokenInvariant(self.history.world, *broken)

    def _at_two_sites(self) -> Iterator[str]:
        """Groups with a list of sites that have machines at more than one of them."""
        for name, group in self.history.file.groups.items():
            machines = [
                machine for machine in self.history.world.cloud.running()
                if machine.cluster == self.history.file.name and machine.node.rpartition("-")[0] == name
                and machine.site in self.history.file.sites_of(group)
            ]  # fmt: skip
            if group.get("next") and len({machine.site for machine in machines}) > 1:
                yield f"group {name} has machines at two sites: {', '.join(f'{m.id} at {m.site}' for m in machines)}"

    def _rows(self, file: Path) -> dict[str, Any]:
        """The `nodes` of a book or journal; none of one that is damaged."""
        return rows_of(load(file))

    def _state(self, run: Path, site: str) -> State:
        """Terraform's state of a site, wherever it is kept."""
        blob = self.history.world.bucket.blobs.get(f"terraform/{run.name}/{site}")
        file = run / "sites" / site / "terraform.tfstate"
        text = blob[0].decode() if blob else file.read_text(encoding="utf-8") if file.exists() else ""
        return State.parse(text) if text.strip() else State()

    def _documents(self, run: Path, *, prefer_own: bool = False) -> dict[str, Any]:
        """nodes.json, state.json and applied.json: the shared ones, where there are any. A pull that was cut off leaves
        a run directory half old, until the next command pulls again. `prefer_own`: those of the run directory where it
        is as new as the shared ones."""
        names = ("nodes.json", "state.json", "applied.json")
        blob = self.history.world.bucket.blobs.get(f"{run.name}/fleet.json.gz")
        record, shared = load(run / "shared.json"), self._shared(run)
        is_new = isinstance(record, dict) and blob is not None and record.get("tag") == blob[1]
        if blob is None or (prefer_own and is_new and all((run / name).exists() for name in names if name in shared)):
            return {name: load(run / name) for name in names}
        return {name: shared.get(name) for name in names}

    def _shared(self, run: Path) -> dict[str, Any]:
        """The JSON files that a cluster's operators share."""
        blob = self.history.world.bucket.blobs.get(f"{run.name}/fleet.json.gz")
        return unpacked(blob[0]) if blob is not None else {}

    def _files(self, run: Path) -> Iterator[str]:
        """What is written down in a run directory, beside what is so."""
        documents = self._documents(run)
        nodes = documents["nodes.json"]
        stages, applied = (rows_of(documents[name]) for name in ("state.json", "applied.json"))
        if not isinstance(nodes, list):
            return
        for node in nodes:
            machine = self.history.world.cloud.called(node["id"])
            if machine is None and node["id"].partition(".")[0] in self.history.world.cloud.machines:
                continue  # a host by a name that cluster.yaml gave it since it was entered last
            if machine is not None and machine.cluster not in ("", run.name):
                continue  # a host that was reinstalled, and that another cluster has configured since
            if machine is None:
                yield f"{node['name']} is {node['id']}, which never was"
            elif stages.get(node["name"], {}).get("ok") is True and not machine.proven and not machine.drifted:
                yield f"{node['name']} ({machine.id}) is noted as healthy and was never proven"
            entry = applied.get(node["name"])
            if machine and entry and entry["id"] == machine.id and not machine.proven:
                yield f"{node['name']} ({machine.id}) is in the ledger and was never proven"
        own_runs = [
            directory for directory in self.history.run_directories() if directory.name == run.name
        ]  # of all operators
        shared, rows = self._shared(run), dict[str, list[tuple[str, Any]]]()
        for file in ("quarantine.json", "replace.json", "upgrade.json"):
            documents = (shared.get(file), *(load(directory / file) for directory in own_runs))
            rows[file] = [row for document in documents for row in rows_of(document).items()]
        written_down = {name for file in ("quarantine.json", "replace.json") for name, _ in rows[file]}
        written_down |= {name for name, row in rows["upgrade.json"] if row["step"] not in AT_REST}
        running = {server.node for server in self.history.world.cloud.serving() if server.cluster == run.name}
        self.history.excused &= set(self.history.world.drained)
        for name in self.history.world.drained.keys() - self.history.excused:
            exists = name in running & {node["name"] for node in nodes} and run.name == self.history.file.name
            if exists and self._is_drained(name, run.name) and name not in written_down:
                yield f"{name} is drained, and nothing that is written down puts it back"

    def _recorded(self) -> set[tuple[str, str]]:
        """Nodes and ids of their machines in the ledger: the shared one, where there is one."""
        if not self.history.shared:
            ledgers = [self._rows(run / "applied.json") for run in self.history.run_directories()]
            return {(name, row["id"]) for rows in ledgers for name, row in rows.items()}
        blobs = [
            content
            for name, (content, _, _) in self.history.world.bucket.blobs.items()
            if name.endswith("fleet.json.gz")
        ]
        ledgers = [rows_of(unpacked(content).get("applied.json")) for content in blobs]
        return {(name, row["id"]) for rows in ledgers for name, row in rows.items()}

    def _named(self, machine: Machine) -> bool:
        """Whether `up` and `down` look where it is, and know it for theirs."""
        for run in self.history.run_directories():
            settings = load(run / "sites" / machine.site / "site.json")
            if settings is None and run.name == self.history.file.name:  # `up` goes by cluster.yaml
                settings = self.history.file.sites.get(machine.site)
            region = settings and settings.get("region", settings.get("method"))  # of MAAS its method
            at_home = run.name == machine.cluster and region == machine.region
            if at_home and (run / "id").read_text(encoding="utf-8").strip() == machine.identity:
                return True
        return self.history.shared and f"{machine.cluster}/fleet.json.gz" in self.history.world.bucket.blobs

    def _other_sites(self, process: Process) -> set[str]:
        """Sites that a `replace` does not look at: all but those of its nodes; none of another command. A node that has
        no machine now may be at any site of its group."""
        name, *nodes = process.command.split()
        if name != "replace":
            return set()
        file = self.history.file
        placed = {
            row["name"]: [row["site"]] for row in load(process.folder / ".gpuprov" / file.name / "nodes.json") or ()
        }
        groups = {node: file.groups.get(node.rpartition("-")[0]) for node in nodes}
        possible = {node: file.sites_of(group) for node, group in groups.items() if group is not None}
        return {*file.sites} - {site for node in nodes for site in placed.get(node) or possible.get(node, ())}

    def _unlisted(self, left_out: Collection[str]) -> Iterator[str]:
        """Machines that a state has and nodes.json does not, but of sites that the command says it left out."""
        for run in self.history.run_directories():
            nodes = load(run / "nodes.json")
            if self.history.operators > 1 or (nodes is None and (run / "nodes.json").exists()):
                continue
            known = {node["id"] for node in nodes or ()}
            for site in sorted({path.name for path in run.glob("sites/*")} - set(left_out)):
                for address, (attributes, tainted) in self._state(run, site).resources.items():
                    machine = self.history.world.cloud.machines[attributes["id"]]
                    if address != NETWORK and not tainted and machine.running and machine.id not in known:
                        yield f"{machine.id} ({machine.node}) is in Terraform's state and in no nodes.json"

    def _unrecorded(self, process: Process) -> Iterator[str]:
        """Nodes that the last command put into service, and did not record as proven: the next one loads them again."""
        run = process.folder / ".gpuprov" / self.history.file.name
        documents = self._documents(run, prefer_own=True)
        stages, applied = (rows_of(documents[name]) for name in ("state.json", "applied.json"))
        if not applied and (run / "applied.json").exists():
            return  # it is damaged
        if "applied.json" in self.history.removed and process.code != 0:
            return  # somebody has removed it, and `up` did not come to its end
        for node in documents["nodes.json"] or ():
            proven = applied.get(node["name"], {}).get("id") == node["id"]
            if stages.get(node["name"], {}).get("ok") is True and not proven:
                yield f"{node['name']} ({node['id']}) is noted as healthy and not in the ledger"

    def _forgotten(self, process: Process) -> Iterator[str]:
        """Machines that this folder's file has made under another name, or that `down` has left. Of a shared state
        nobody can tell whether a cluster of another name is another one."""
        own_names = {run.name for run in self.history.run_directories() if process.folder in run.parents}
        for machine in () if self.history.shared else self.history.world.cloud.running():
            if machine.cluster in own_names and (
                process.command == "down" or machine.cluster != self.history.file.name
            ):
                yield f"`{process.command}` ended well, and {machine.id} ({machine.node} of {machine.cluster}) runs"

    def _after_up(self) -> Iterator[str]:
        for name in self.history.file.nodes:
            running = [
                machine
                for machine in self.history.world.cloud.serving()
                if (machine.cluster, machine.node) == (self.history.file.name, name)
            ]
            group = self.history.file.groups[name.rpartition("-")[0]]
            if len(running) > 1:
                yield f"{name} is {len(running)} machines: {', '.join(machine.id for machine in running)}"
            elif not running and not group["min"]:
                yield f"`up` ended well and {name} does not run"
            elif running and not running[0].proven:
                yield f"`up` ended well and {name} was never proven"
            drained = self._is_drained(name, self.history.file.name) and name not in self.history.excused
            if drained and running and not self._kept_out(name):
                yield f"`up` ended well and {name} is still drained"

    def _is_drained(self, name: str, cluster: str) -> bool:
        """Whether a drain command of this cluster named it, and none a node of this name in another one afterwards."""
        drained = self.history.world.drained.get(name) if self.history.world.drained_by.get(name) == cluster else None
        machine = self.history.world.cloud.called(drained) if drained else None
        return drained is not None and (machine is None or machine.cluster in ("", cluster))

    def _kept_out(self, name: str) -> bool:
        """Whether a person, or a verdict, keeps it out of service."""
        return name in self._rows(
            self.history.world.folders[0] / ".gpuprov" / self.history.file.name / "quarantine.json"
        )
