"""One history: commands, edits, faults and events, with the invariants looked at after every step."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from provisioner.lifecycle.upgrade.journal import AT_REST
from tests.simulation import commands
from tests.simulation.cloud import Machine
from tests.simulation.cluster_file import REGIONS, ClusterFile
from tests.simulation.edits import EDITS
from tests.simulation.processes import Fault, Process
from tests.simulation.seams import installed
from tests.simulation.snapshot import Snapshot
from tests.simulation.terraform_program import NETWORK, State
from tests.simulation.world import ACCOUNT, World

MOST_TRIES = 12
"""Commands that a person types until a fleet is well again."""


class BrokenInvariant(AssertionError):
    """Something that must hold does not; the message is the history, the machines, and what is broken."""

    def __init__(self, world: World, *broken: str) -> None:
        machines = [
            f"  {one.id} {one.node or one.kind}: cluster {one.cluster} ({one.identity[-6:]}), {one.region}, "
            f"account {one.account}, {'runs' if one.running else 'gone'}, driver {one.installed or '-'}, "
            f"proven with {', '.join(sorted(one.proven)) or '-'}"
            for one in world.cloud.machines.values()
        ]
        text = [*world.script, "", "machines:", *machines, "", "to be kept in tests/simulation/corpus/:"]
        text += [f"- {json.dumps(step)}" for step in world.steps]
        super().__init__("\n".join([*text, "", *dict.fromkeys(broken)]))


def drawing(picks: Sequence[int]) -> Callable[[int], int]:
    """Gives numbers below a count, one after the other; the first ones when they are used up."""
    drawn = iter(picks)
    return lambda count: next(drawn, 0) % count


def kept(typed: Typed, process: Process) -> dict[str, Any]:
    """A command as the corpus has it: the faults that struck, by what they struck."""
    faults = [f"{fault.kind} at {fault.at} {fault.name}" for fault in process.met]
    return {"words": " ".join(typed.words), "operator": typed.operator, "faults": faults}


@dataclass(frozen=True, slots=True)
class Typed:
    """A command with the faults that will strike it; `operator`: whose project folder."""

    words: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    operator: int = 0


@dataclass
class Simulation:
    """`root`: an empty directory. `file`: cluster.yaml as it is now; `former`: as it was, oldest first."""

    root: Path
    sites: int = 1
    shared: bool = False
    hooks: bool = True
    world: World = field(init=False)
    file: ClusterFile = field(init=False)
    former: list[ClusterFile] = field(default_factory=list)
    versions: list[ClusterFile] = field(default_factory=list)
    """All that it ever said, oldest first."""
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Kind → how many struck."""
    commands: Counter[str] = field(default_factory=Counter)
    states: set[str] = field(default_factory=set)
    """Digests of the states that were seen, for counting."""

    removed: set[str] = field(default_factory=set)
    """Names of files that people have removed from a run directory: in the shared files they end with the next push."""

    def __post_init__(self) -> None:
        self.world = World(self.root)
        self.operators = 2 if self.shared else 1
        self.world.steps.append({"start": {"sites": self.sites, "shared": self.shared, "hooks": self.hooks}})
        self.world.folders = [self.root / f"operator-{number}" for number in range(self.operators)]
        for folder in self.world.folders:
            folder.mkdir()
        self.key = self.root / "key"
        self.key.write_text("simulated")
        self.key.with_name("key.pub").write_text("ssh-ed25519 AAAA simulated")
        self.file = ClusterFile.of(shared=self.shared, sites=self.sites, hooks=self.hooks)
        self.write()

    # what people do

    def write(self) -> None:
        self.world.hooks = self.file.hooks
        for folder in self.world.folders:
            self.file.write(folder, self.key)

    def edit(self, sentence: str, change: Callable[[ClusterFile], None]) -> None:
        """cluster.yaml is edited; everybody has the new one."""
        before = self.file.copy()
        change(self.file)
        if self.file == before:
            return
        self.former.append(before)
        self.versions.append(before)
        self.write()
        self._say(f"# {sentence}")

    def remove(self, file: Path) -> None:
        """A person removes a file of a run directory."""
        self.removed.add(file.name)
        self.happens(f"{file.name} is removed", file.unlink)

    def edit_by(self, name: str, picks: Sequence[int]) -> None:
        """One of EDITS."""
        edited = self.file.copy()
        sentence = EDITS[name](edited, drawing(picks))
        if edited != self.file:
            self.world.steps.append({"edit": name, "picks": list(picks)})
        self.edit(sentence, lambda file: vars(file).update(vars(edited)))

    def put_back(self) -> bool:
        """cluster.yaml as it was before the last edit; whether there was one."""
        if not self.former:
            return False
        self.versions.append(self.file)
        self.file = self.former.pop()
        self.world.steps.append({"edit": "put_back"})
        self.write()
        self._say("# cluster.yaml is put back as it was before")
        return True

    def happens(self, sentence: str, change: Callable[[], object]) -> None:
        """Something happens in the world."""
        change()
        self._say(f"# {sentence}")

    def run(self, *typed: Typed, picks: Sequence[int] = ()) -> list[Process]:
        """Commands, side by side where there are several; then everything is looked at. `picks` say who goes on."""
        started = []
        before = self.snapshot()
        for one in typed:
            folder = self.world.folders[one.operator]
            process = Process(" ".join(one.words), folder, list(one.faults), self.world.account)
            started.append((process, partial(commands.call, one.words, folder, process)))
        self.world.processes.pick = drawing(picks)
        with installed(self.world):
            self.world.processes.run(started)
        done = [process for process, _ in started]
        self.world.steps.append({"run": [kept(one, process) for one, process in zip(typed, done, strict=True)]})
        if picks and len(done) > 1:
            self.world.steps[-1]["picks"] = list(picks)
        for process, one in zip(done, typed, strict=True):
            beside = " &" if len(done) > 1 and process is not done[-1] else ""
            where = f"{self.world.folders[one.operator].name}$ " if self.operators > 1 else "$ "
            struck = f"   # {'; '.join(process.struck)}" if process.struck else ""
            self._say(f"{where}gpuprov {process.command}{beside}{struck}   → {process.code}")
            self.faults.update(text.partition(" at ")[0] for text in process.struck)
            self.commands[process.command.partition(" ")[0]] += 1
            if process.code and (said := "".join(process.errors).strip()):
                self._say("    " + said.replace("\n", "\n    ")[:1500])
        self._check(done, before)
        return done

    def _say(self, line: str) -> None:
        self.world.script.append(line)
        self.steps += 1

    # what must hold

    def _check(self, done: Sequence[Process], before: Snapshot) -> None:
        broken = self.world.violations
        self.world.violations = []
        after = self.snapshot()
        self.states.add(after.digest())
        if len(done) == 1:
            (process,) = done
            looks = process.command.partition(" ")[0] in commands.CHANGES_NOTHING
            if looks and (changes := before.changes(after, notes=True)):
                broken.append(f"`{process.command}` changes {', '.join(changes)}")
            refused = process.refused and not process.questions and not process.struck and not process.changes
            refused = refused and "an upgrade is in progress" not in "".join(process.errors)  # machines may be recorded
            if refused and (changes := before.changes(after, notes=False)):
                broken.append(f"`{process.command}` was refused and changed {', '.join(changes)}")
        for run in self.run_directories():
            broken += self._files(run)
        for number in self._recorded():
            self.world.cloud.machines[number].in_use = True
        broken += [
            f"{one.id} ({one.node}) runs in {one.region} of account {one.account}, and no command names it"
            for one in self.world.cloud.running()
            if not self._named(one)
        ]
        for process in done:
            if process.command == "up" and process.code == 0 and len(done) == 1:
                broken += self._after_up()
            if process.command in ("up", "down") and process.code == 0 and len(done) == 1:
                broken += self._forgotten(process)
            if process.command == "up" and len(done) == 1 and process.code not in (-9, 130):
                broken += self._unrecorded(process.folder)
            if (
                process.applied
                and process.code not in (-9, 130)
                and not any(s.startswith(("full", "stays full")) for s in process.struck)
            ):
                left_out = set(re.findall(r"site ([\w-]+):", "".join(process.errors)))
                broken += [f"after `{process.command}` {sentence}" for sentence in self._unlisted(left_out)]
        if broken:
            raise BrokenInvariant(self.world, *broken)

    def run_directories(self) -> list[Path]:
        return [
            run for folder in self.world.folders for run in sorted(folder.glob(".gpuprov/*"))
            if run.is_dir() and (run / "id").exists()
        ]  # fmt: skip

    def _load(self, file: Path) -> Any:
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def _rows(self, file: Path) -> dict[str, Any]:
        """The `nodes` of a book or journal."""
        rows: dict[str, Any] = (self._load(file) or {"nodes": {}})["nodes"]
        return rows

    def _state(self, run: Path, site: str) -> State:
        """Terraform's state of a site, wherever it is kept."""
        blob = self.world.bucket.blobs.get(f"terraform/{run.name}/{site}")
        file = run / "sites" / site / "terraform.tfstate"
        text = blob[0].decode() if blob else file.read_text(encoding="utf-8") if file.exists() else ""
        return State.parse(text) if text.strip() else State()

    def _files(self, run: Path) -> Iterator[str]:
        """What is written down in a run directory, beside what is so."""
        nodes = self._load(run / "nodes.json")
        stages = (self._load(run / "state.json") or {}).get("nodes", {})
        applied = (self._load(run / "applied.json") or {"nodes": {}})["nodes"]
        if not isinstance(nodes, list):
            return
        machines = self.world.cloud.machines
        for node in nodes:
            machine = machines.get(node["id"])
            if machine is None:
                yield f"{node['name']} is {node['id']}, which never was"
            elif stages.get(node["name"], {}).get("ok") is True and not machine.proven:
                yield f"{node['name']} ({machine.id}) is noted as healthy and was never proven"
            entry = applied.get(node["name"])
            if machine and entry and entry["id"] == machine.id and not machine.proven:
                yield f"{node['name']} ({machine.id}) is in the ledger and was never proven"
        own = [one for one in self.run_directories() if one.name == run.name]  # of all operators
        book, replacing = (
            {name: row for one in own for name, row in self._rows(one / file).items()}
            for file in ("quarantine.json", "replace.json")
        )
        running = {one.node for one in self.world.cloud.running() if one.cluster == run.name}
        upgrading = {
            name for one in own for name, row in self._rows(one / "upgrade.json").items() if row["step"] not in AT_REST
        }
        for name in self.world.drained:
            exists = name in running & {node["name"] for node in nodes} and run.name == self.file.name
            if exists and not (name in book or name in replacing or name in upgrading):
                yield f"{name} is drained, and nothing that is written down puts it back"

    def _recorded(self) -> set[str]:
        """Ids of machines in the ledger: the shared one, where there is one."""
        if not self.shared:
            return {row["id"] for run in self.run_directories() for row in self._rows(run / "applied.json").values()}
        blobs = [content for name, (content, _, _) in self.world.bucket.blobs.items() if name.endswith("fleet.json.gz")]
        ledgers = [json.loads(gzip.decompress(content))["files"].get("applied.json") for content in blobs]
        return {row["id"] for text in ledgers if text for row in json.loads(text)["nodes"].values()}

    def _named(self, machine: Machine) -> bool:
        """Whether `up` and `down` look where it is, and know it for theirs."""
        for run in self.run_directories():
            settings = self._load(run / "sites" / machine.site / "site.json")
            at_home = run.name == machine.cluster and settings and settings.get("region") == machine.region
            if at_home and (run / "id").read_text(encoding="utf-8").strip() == machine.identity:
                return True
        return self.shared and f"{machine.cluster}/fleet.json.gz" in self.world.bucket.blobs

    def _unlisted(self, left_out: Collection[str]) -> Iterator[str]:
        """Machines that a state has and nodes.json does not, but of sites that the command says it left out."""
        for run in self.run_directories():
            nodes = self._load(run / "nodes.json")
            if self.operators > 1 or (nodes is None and (run / "nodes.json").exists()):
                continue
            known = {node["id"] for node in nodes or ()}
            for site in sorted({path.name for path in run.glob("sites/*")} - set(left_out)):
                for address, (attributes, tainted) in self._state(run, site).resources.items():
                    machine = self.world.cloud.machines[attributes["id"]]
                    if address != NETWORK and not tainted and machine.running and machine.id not in known:
                        yield f"{machine.id} ({machine.node}) is in Terraform's state and in no nodes.json"

    def _unrecorded(self, folder: Path) -> Iterator[str]:
        """Nodes that the last command put into service, and did not record as proven: the next one loads them again."""
        run = folder / ".gpuprov" / self.file.name
        stages = (self._load(run / "state.json") or {}).get("nodes", {})
        applied = self._rows(run / "applied.json")
        for node in self._load(run / "nodes.json") or ():
            proven = applied.get(node["name"], {}).get("id") == node["id"]
            if stages.get(node["name"], {}).get("ok") is True and not proven:
                yield f"{node['name']} ({node['id']}) is noted as healthy and not in the ledger"

    def _forgotten(self, process: Process) -> Iterator[str]:
        """Machines that this folder's file has made under another name, or that `down` has left. Of a shared state
        nobody can tell whether a cluster of another name is another one."""
        made = {run.name for run in self.run_directories() if process.folder in run.parents}
        for machine in () if self.shared else self.world.cloud.running():
            if machine.cluster in made and (process.command == "down" or machine.cluster != self.file.name):
                yield f"`{process.command}` ended well, and {machine.id} ({machine.node} of {machine.cluster}) runs"

    def _after_up(self) -> Iterator[str]:
        for name in self.file.nodes:
            running = [one for one in self.world.cloud.running() if (one.cluster, one.node) == (self.file.name, name)]
            group = self.file.groups[name.rpartition("-")[0]]
            if len(running) > 1:
                yield f"{name} is paid {len(running)} times: {', '.join(one.id for one in running)}"
            elif not running and not group["min"]:
                yield f"`up` ended well and {name} does not run"
            elif running and not running[0].proven:
                yield f"`up` ended well and {name} was never proven"
            if name in self.world.drained and running and not self._kept_out(name):
                yield f"`up` ended well and {name} is still drained"

    def _kept_out(self, name: str) -> bool:
        """Whether a person, or a verdict, keeps it out of service."""
        book = self._load(self.world.folders[0] / ".gpuprov" / self.file.name / "quarantine.json") or {"nodes": {}}
        return name in book["nodes"]

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self.world, self.run_directories(), shared=self.shared, removed=self.removed)

    # how it ends

    def finish(self) -> None:
        """No more faults: the commands that hints name bring the fleet back to health, then `down` leaves nothing."""
        self._say("# no more faults from here on")
        for machine in self.world.cloud.running():
            machine.recover()
        self.world.cloud.short.clear()
        self.world.bad_drivers.clear()
        self.world.account = ACCOUNT
        self.world.clock += 1000.0
        self._until(("up",), "the fleet does not get well")
        self._until(("down",), "`down` does not end")
        for name in {one.cluster for one in self.world.cloud.running()}:
            self.edit(f"name: {name}", lambda file, name=name: setattr(file, "name", name))
            self._until(("down",), f"`down` of {name} does not end")
        left = [f"{one.id} ({one.node or one.kind}, {one.cluster}, {one.region})"
                for kind in ("machine", "network") for one in self.world.cloud.running(kind)]  # fmt: skip
        if left:
            raise BrokenInvariant(self.world, f"after `down` there is still {', '.join(left)}")

    def _until(self, words: tuple[str, ...], complaint: str) -> None:
        """Type the command, and what its errors name, until it ends well."""
        following = words
        for _ in range(MOST_TRIES):
            (process,) = self.run(Typed(following))
            text = "".join(process.errors)
            if process.code == 0 and following == words:
                return
            if process.code == 1 and words == ("up",) and (names := self._kept_by_people()):
                self.run(Typed(("release", *names)))
            following = words if process.code == 0 or following != words else self._named_in(text, words)
        raise BrokenInvariant(self.world, complaint)

    def _set(self, key: str, value: str, site: re.Match[str] | None) -> None:
        """A key of cluster.yaml as an error says it was. `site`: the site that it names, or the group."""
        if key == "name":
            self.edit(f"name: {value}", lambda file: setattr(file, "name", value))
        elif key == "site" and site is not None:
            self.edit(f"groups.{site[2]}.site: {value}", lambda file: file.groups[site[2]].update(site=value))
        elif site is not None:
            first = {"region": REGIONS[value][0]} if key == "provider" else {}
            self.edit(f"sites.{site[1]}.{key}: {value}", lambda file: file.sites[site[1]].update({key: value, **first}))

    def _group_back(self, name: str) -> None:
        """A group as it was when cluster.yaml last had it."""
        group = next(file.groups[name] for file in reversed(self.versions) if name in file.groups)
        self.edit(f"group {name} is put back", lambda file: file.groups.update({name: dict(group)}))

    def _site_back(self, site: str) -> None:
        """A site and its groups as they were when cluster.yaml last had them."""
        before = next(file for file in reversed(self.versions) if any(g["site"] == site for g in file.groups.values()))

        def restore(file: ClusterFile) -> None:
            file.sites[site] = dict(before.sites[site])
            file.groups |= {name: dict(group) for name, group in before.groups.items() if group["site"] == site}

        self.edit(f"site {site} and its groups are put back", restore)

    def _kept_by_people(self) -> list[str]:
        """Nodes that somebody has put into quarantine, and has to take out."""
        book = self._load(self.world.folders[0] / ".gpuprov" / self.file.name / "quarantine.json") or {"nodes": {}}
        return [
            name for name, entry in book["nodes"].items() if entry["owner"] != "gpuprov" and name in self.file.nodes
        ]

    def _named_in(self, text: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """The command that an error names; cluster.yaml is put back where it says so."""
        if setting := re.search(r"put `(\w+): ([\w-]+)` back", text):
            self._set(setting[1], setting[2], re.search(r"(?:site ([\w-]+):|group ([\w-]+) is at)", text))
            return words
        if lost := re.search(r"cluster.yaml no longer has ([\w-]+)-\d+", text):
            self._group_back(lost[1])
            return words
        if abandoned := re.search(r"(?:no group is|machines exist) at (?:site )?([\w-]+)", text):
            self._site_back(abandoned[1])
            return words
        if re.search(r"\b(put|take) .*\bback\b", text) and self.put_back():
            return words
        if account := re.search(r"sign in to account (\d+)", text):
            self.happens(f"AWS_PROFILE is of account {account[1]}", lambda: setattr(self.world, "account", account[1]))
            return words
        if re.search(r"remove (it|the file)\b.*nodes\.json|nodes\.json.*: is damaged", text, re.S):
            for folder in self.world.folders:
                for file in folder.glob(".gpuprov/*/nodes.json"):
                    self.remove(file)
            return words
        hint = text.rstrip().rpartition("\n  ")[2]  # the error before it may name another command
        for found in re.finditer(r"`(?:sudo )?gpuprov (up|down|upgrade|release|replace|unlock|verify)\b([^`]*)`", hint):
            command, rest = found[1], found[2]
            names = tuple(name for name in rest.split() if name in self.file.nodes or name.startswith("--again"))
            if command in ("release", "replace") and not names:
                continue
            if (command, *names) != words:
                return (command, *names)
        for found in re.finditer(r"with --([a-z-]+)", text):
            return (*words, f"--{found[1]}")
        return words


def remove(folder: Path) -> None:
    """Of a history that is over."""
    shutil.rmtree(folder, ignore_errors=True)
