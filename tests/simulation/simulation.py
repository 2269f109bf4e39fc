"""One history: commands, edits, faults and events, with the invariants looked at after every step."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation import commands
from tests.simulation.cluster_file import ClusterFile
from tests.simulation.contracts import Contracts, load, rows_of
from tests.simulation.edits import EDITS
from tests.simulation.hosts import hosts
from tests.simulation.person import Person
from tests.simulation.processes import Fault, Process
from tests.simulation.seams import installed
from tests.simulation.snapshot import Snapshot
from tests.simulation.world import World

PUBLIC_KEY = "ssh-ed25519 AAAA simulated"
"""Of access.ssh_key."""


def drawing(picks: Sequence[int]) -> Callable[[int], int]:
    """Gives numbers below a count, one after the other; the first ones when they are used up."""
    drawn = iter(picks)
    return lambda count: next(drawn, 0) % count


def corpus_row(typed: Typed, process: Process) -> dict[str, Any]:
    """A command as the corpus has it: the faults that struck, by what they struck."""
    faults = [f"{fault.kind} at {fault.at} {fault.name}" for fault in process.met]
    row = {"words": " ".join(typed.words), "operator": typed.operator, "faults": faults}
    return row | ({"held": True} if typed.held else {})


@dataclass(frozen=True, slots=True)
class Typed:
    """A command with the faults that will strike it; `operator`: whose project folder; `held`: see Process."""

    words: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    operator: int = 0
    held: bool = False


@dataclass
class Simulation:
    """`root`: an empty directory. `file`: cluster.yaml as it is now; `former`: as it was, oldest first."""

    root: Path
    sites: int = 1
    shared: bool = False
    hooks: bool = True
    metal: int = 0
    """So many of its sites have hosts of one's own at the beginning."""
    world: World = field(init=False)
    file: ClusterFile = field(init=False)
    former: list[ClusterFile] = field(default_factory=list)
    versions: list[ClusterFile] = field(default_factory=list)
    """All that it ever said, oldest first."""
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Kind → how many struck."""
    commands: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Edit of cluster.yaml or event of the world → how often it was."""
    states: set[str] = field(default_factory=set)
    """Digests of the states that were seen, for counting."""

    removed: set[str] = field(default_factory=set)
    """Names of files that people have removed from a run directory: in the shared files they end with the next push."""

    excused: set[str] = field(default_factory=set)
    """Drained nodes of which people have lost the record: somebody has to look in the scheduler."""

    def __post_init__(self) -> None:
        self.world = World(self.root)
        self.operators = 2 if self.shared else 1
        start = {"sites": self.sites, "shared": self.shared, "hooks": self.hooks}
        self.world.steps.append({"start": start | ({"metal": self.metal} if self.metal else {})})
        self.world.folders = [self.root / f"operator-{number}" for number in range(self.operators)]
        for folder in self.world.folders:
            folder.mkdir()
        self.key = self.root / "key"
        self.key.write_text("simulated")
        self.key.with_name("key.pub").write_text(PUBLIC_KEY)
        self.world.cloud.machines |= {host.id: host for host in hosts(PUBLIC_KEY)}
        self.file = ClusterFile.of(shared=self.shared, sites=self.sites, hooks=self.hooks, metal=self.metal)
        self.write()

    # what people do

    def write(self) -> None:
        self.world.hooks = self.file.hooks
        for folder in self.world.folders:
            self.file.write(folder, self.key)

    def edit(self, sentence: str, change: Callable[[ClusterFile], None]) -> None:
        """cluster.yaml is edited; everybody has the new one."""
        previous = self.file.copy()
        change(self.file)
        self.file.fit()
        if self.file == previous:
            return
        self.former.append(previous)
        self.versions.append(previous)
        self.write()
        self.say(f"# {sentence}")

    def remove(self, file: Path) -> None:
        """A person removes a file of a run directory."""
        if not self.is_shared_too(file):
            self.removed.add(file.name)
        self.happens(f"{file.name} is removed", file.unlink)

    def is_shared_too(self, file: Path) -> bool:
        """Whether the shared files have a file of a run directory as it is: a command restores it from there."""
        run = next(folder for folder in file.parents if folder.parent.name == ".gpuprov")
        blob = self.world.bucket.blobs.get(f"{run.name}/fleet.json.gz")
        if blob is None:
            return False
        text = json.loads(gzip.decompress(blob[0]))["files"].get(file.relative_to(run).as_posix())
        return bool(text == file.read_text(encoding="utf-8", errors="replace"))

    def excuse(self, name: str) -> None:
        """A file is lost; what only it knew is nobody's fault."""
        if name in ("quarantine.json", "upgrade.json"):
            books = [load(run / name) for run in self.run_directories()]
            self.world.lost_holds |= {node for document in books for node in rows_of(document)}
        if name in ("quarantine.json", "replace.json", "upgrade.json"):
            self.excused |= set(self.world.drained)
        if name in ("applied.json", "upgrade.json"):
            for machine in self.world.cloud.machines.values():
                machine.in_use = False

    def edit_by(self, name: str, picks: Sequence[int]) -> None:
        """One of EDITS."""
        edited = self.file.copy()
        sentence = EDITS[name](edited, drawing(picks))
        edited.fit()
        if any(map(self._is_forgotten, self.file.used_sites() - edited.used_sites())):
            return  # after an older backup `up` runs before a site is taken out (docs/guides/operators.md)
        if edited != self.file:
            self.world.steps.append({"edit": name, "picks": list(picks)})
            self.changes[name] += 1
        self.edit(sentence, lambda file: vars(file).update(vars(edited)))

    def _is_forgotten(self, site: str) -> bool:
        """Whether machines run there and no run directory has the site any more."""
        if self.shared or any((run / "sites" / site / "site.json").exists() for run in self.run_directories()):
            return False
        return any((machine.cluster, machine.site) == (self.file.name, site) for machine in self.world.cloud.running())

    def put_back(self) -> bool:
        """cluster.yaml as it was before the last edit; whether there was one."""
        if not self.former:
            return False
        self.versions.append(self.file)
        self.file = self.former.pop()
        self.world.steps.append({"edit": "put_back"})
        self.write()
        self.say("# cluster.yaml is put back as it was before")
        return True

    def happens(self, sentence: str, change: Callable[[], object]) -> None:
        """Something happens in the world."""
        change()
        self.say(f"# {sentence}")

    def run(self, *typed: Typed, picks: Sequence[int] = ()) -> list[Process]:
        """Commands, side by side where there are several; then everything is looked at. `picks` say who goes on."""
        started = []
        previous = self.snapshot()
        for entry in typed:
            folder = self.world.folders[entry.operator]
            name = f"{next(self.world.names):08x}" * 4
            process = Process(" ".join(entry.words), folder, list(entry.faults), self.world.account, name)
            process.held = entry.held
            started.append((process, partial(commands.call, entry.words, folder, process)))
        self.world.processes.pick = drawing(picks)
        with installed(self.world):
            self.world.processes.run(started)
        done = [process for process, _ in started]
        self.world.steps.append(
            {"run": [corpus_row(entry, process) for entry, process in zip(typed, done, strict=True)]}
        )
        if picks and len(done) > 1:
            self.world.steps[-1]["picks"] = list(picks)
        for process, entry in zip(done, typed, strict=True):
            separator = " &" if len(done) > 1 and process is not done[-1] else ""
            prompt = f"{self.world.folders[entry.operator].name}$ " if self.operators > 1 else "$ "
            struck = f"   # {'; '.join(process.struck)}" if process.struck else ""
            self.say(f"{prompt}gpuprov {process.command}{separator}{struck}   → {process.code}")
            self.faults.update(text.partition(" at ")[0] for text in process.struck)
            command, *names = process.command.split()
            self.commands[command] += 1
            if command == "release" and process.code == 0:
                self.world.lost_holds |= {
                    machine.node
                    for machine in self.world.cloud.serving()
                    if machine.node in names and machine.installed not in machine.proven
                }
            if process.code and (error_text := "".join(process.errors).strip()):
                self.say("    " + error_text.replace("\n", "\n    ")[:1500])
        Contracts(self).check(done, previous)
        return done

    def say(self, line: str) -> None:
        self.world.script.append(line)
        self.steps += 1

    # what must hold

    def run_directories(self) -> list[Path]:
        return [
            run for folder in self.world.folders for run in sorted(folder.glob(".gpuprov/*"))
            if run.is_dir() and (run / "id").exists()
        ]  # fmt: skip

    def types(self, *arguments: str) -> Process:
        """The first operator types a command, and no fault strikes."""
        (process,) = self.run(Typed(arguments))
        return process

    def finish(self) -> None:
        """No more faults: the commands that hints name bring the fleet back to health, then `down` leaves nothing."""
        Person(self).finish()

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self.world, self.run_directories(), shared=self.shared, removed=self.removed)


def remove(folder: Path) -> None:
    """Of a history that is over."""
    shutil.rmtree(folder, ignore_errors=True)
