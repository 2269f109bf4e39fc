"""What a site's Terraform state is like after a run that was killed while it wrote, or that could not write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ERRORED, STATE, STATE_BACKUP, write_whole


@dataclass(frozen=True, slots=True)
class StateFault:
    """Done at once to the files of a workspace, and mended by the next `up` or `down` alone."""

    name: str
    sentence: str
    damage: Callable[[Path], None]


def _cut(workspace: Path) -> None:
    """Killed while it wrote."""
    state = workspace / STATE
    content = state.read_bytes()
    state.write_bytes(content[: len(content) // 2])


def _unsaved(workspace: Path) -> None:
    """What Terraform leaves where it can't write the state ("Failed to persist state to backend"): the state as it was
    before, and the new one beside it. https://developer.hashicorp.com/terraform/cli/state/recover"""
    state, backup = workspace / STATE, workspace / STATE_BACKUP
    state.replace(workspace / ERRORED)
    if backup.exists():
        write_whole(state, backup.read_text(encoding="utf-8"))


FAULTS = (
    StateFault("state-cut", "Terraform's state is cut off half way, as by a run that was killed while it wrote", _cut),
    StateFault("state-unsaved", "Terraform could not save its state: what it made is in errored.tfstate", _unsaved),
)


def find(name: str) -> StateFault | None:
    return next((fault for fault in FAULTS if fault.name == name), None)


def inject(workspace: Path, fault: StateFault) -> None:
    """Raises GpuprovError where nothing was made yet."""
    if not (workspace / STATE).exists():
        raise GpuprovError(f"{workspace.name} has no Terraform state yet", hint="run `gpuprov up FILE --sandbox` first")
    fault.damage(workspace)
