"""What happens to the files of a run directory: damaged, removed, or put back from an older backup."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.stack import lockfile
from tests.simulation.contracts import load, rows_of
from tests.simulation.damage import EVENTS, Pick, event, happen
from tests.simulation.host_contracts import HostContracts
from tests.simulation.simulation import Simulation

__all__ = ["EVENTS", "happen"]  # those of damage.py and of this module

DECIDE = ("quarantine.json", "applied.json", "upgrade.json", "replace.json", "maintenance.json", "ssh/pins.json")
"""What decides of nodes: gpuprov says that it is damaged, and what to do."""
HELP = (
    "intent.json", "inventory.yml", "shared.json", "holder.json", "ssh/config", "known_hosts", "cluster.yaml",
    "sites/*/capacity.json", "sites/*/account", "runs/*/events.jsonl", "runs/*/report.html", "locks/*.lock",
)  # fmt: skip
"""What gpuprov writes again, can do without, or says what to do about."""
TERRAFORM = ("sites/*/plan.bin", "sites/*/.terraform/terraform.tfstate", "sites/*/main.tf")
"""The same, if they are gone; Terraform says what is wrong with a damaged one."""


def _matches(history: Simulation, *patterns: str) -> list[Path]:
    runs = history.run_directories()
    return [file for run in runs for pattern in patterns for file in sorted(run.glob(pattern)) if file.is_file()]


def _lose(history: Simulation, file: Path, sentence: str, content: bytes | None) -> None:
    """A file has another content, or (None) is gone. What only it knew is nobody's fault from then on."""
    history.excuse(file.name)
    if file.name in ("quarantine.json", "replace.json", "upgrade.json"):
        names = rows_of(load(file))
        for machine in history.world.cloud.running():
            machine.drifted = machine.drifted or machine.node in names

    def change() -> None:
        file.unlink() if content is None else file.write_bytes(content)

    history.happens(f"{file.name} {sentence}", change)


@event
def book_damaged(history: Simulation, pick: Pick) -> None:
    """Half of a file is lost, or all of it (a power cut), or it is another one."""
    if files := _matches(history, *DECIDE):
        file, manner = files[pick(len(files))], pick(3)
        content = file.read_bytes()
        _lose(history, file, "is damaged", (content[: len(content) // 2], b"", b'{"nodes": [1]}\n')[manner])


@event
def helpful_file_damaged(history: Simulation, pick: Pick) -> None:
    if files := _matches(history, *HELP):
        file, manner = files[pick(len(files))], pick(3)
        content = file.read_bytes()
        history.happens(
            f"{file.name} is damaged",
            lambda: file.write_bytes((content[: len(content) // 2], b"", b'{"nodes": [1]}\n')[manner]),
        )


@event
def book_removed(history: Simulation, pick: Pick) -> None:
    """A person removes a file. A command restores it where the shared files have it."""
    if files := _matches(history, *DECIDE):
        file = files[pick(len(files))]
        if history.is_shared_too(file):
            history.remove(file)
        else:
            history.removed.add(file.name)
            _lose(history, file, "is removed", None)


@event
def helpful_file_removed(history: Simulation, pick: Pick) -> None:
    if files := _matches(history, *HELP, *TERRAFORM):
        file = files[pick(len(files))]
        history.happens(f"{file.name} is removed", file.unlink)


@event
def old_runs_removed(history: Simulation, pick: Pick) -> None:
    """A person removes the records of former commands."""
    runs = [run for run in history.run_directories() if (run / "runs").is_dir()]
    if runs:
        run = runs[pick(len(runs))]
        history.happens("runs/ is removed", lambda: shutil.rmtree(run / "runs"))


@event
def backup_made(history: Simulation, pick: Pick) -> None:
    runs = history.run_directories()
    if runs and not history.shared:
        run = runs[pick(len(runs))]
        target = history.root / "backup" / run.name
        shutil.rmtree(target, ignore_errors=True)
        history.happens(f"{run.name} is backed up", lambda: shutil.copytree(run, target, symlinks=True))


@event
def backup_restored(history: Simulation, pick: Pick) -> None:
    """The run directory as it was when its backup was made, states of Terraform included."""
    del pick
    for run in history.run_directories():
        backup = history.root / "backup" / run.name
        if not backup.is_dir() or (backup / "id").read_bytes() != (run / "id").read_bytes():
            continue
        for name in ("quarantine.json", "applied.json"):
            history.excuse(name)

        def restore(run: Path = run, backup: Path = backup) -> None:
            shutil.rmtree(run)
            shutil.copytree(backup, run, symlinks=True)

        history.happens(f"{run.name} is restored from its backup", restore)
        for row in rows_of(load(run / "applied.json")).values():
            if machine := history.world.cloud.called(row["id"]):
                machine.drifted = machine.installed not in _drivers(run / "locks" / f"{row['lock']}.lock")
    HostContracts(history).excuse_forgotten()


def _drivers(lock: Path) -> set[str]:
    """Of a lock that is kept; none of one that is damaged or gone."""
    with contextlib.suppress(GpuprovError):
        lock_content = lockfile.read(lock)
        return {group.driver for group in lock_content.groups.values()} if lock_content else set()
    return set()
