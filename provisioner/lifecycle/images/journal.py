"""What a build has done: each step is written down when it has ended, so that a build that was killed goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, write_whole


class Journal:
    """journal.json of one build. Raises GpuprovError for one that is damaged."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "journal.json"
        try:
            document = stored.load(self.file)
            steps, failed = document["steps"], document.get("failed")
            if not isinstance(steps, dict) or not all(isinstance(step, dict) for step in steps.values()):
                raise ValueError("steps is not a mapping")
            if failed is not None and not (
                isinstance(failed, dict) and all(isinstance(failed.get(k), str) for k in ("step", "target", "message"))
            ):
                raise ValueError("its failure is not described")
        except FileNotFoundError:
            steps, failed = {}, None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = (
                f"`gpuprov image build` starts again after you remove {self.file.parent}; `gpuprov gc` finds leftovers"
            )
            raise GpuprovError(f"is damaged ({error})", where=str(self.file), hint=hint) from None
        self._steps: dict[str, dict[str, Any]] = steps
        self.failed: dict[str, str] | None = failed

    @property
    def build(self) -> str:
        """Whose it is."""
        return self.file.parent.name

    def of(self, target: str, step: str) -> Any:
        """What a step gave; None where it has not ended."""
        return self._steps.get(target, {}).get(step)

    def done(self, target: str, step: str, gave: Any = True) -> Any:
        """A step has ended with that."""
        self._steps.setdefault(target, {})[step] = gave
        self._write()
        return gave

    def undo(self, target: str) -> None:
        """Forget the steps of a target: it starts anew."""
        self._steps.pop(target, None)
        self._write()

    def fail(self, step: str, target: str, message: str) -> None:
        """The build has failed there."""
        self.failed = {"step": step, "target": target, "message": message}
        self._write()

    def _write(self) -> None:
        private_dir(self.file.parent)
        write_whole(self.file, json.dumps({"version": 1, "steps": self._steps, "failed": self.failed}, indent=1) + "\n")
