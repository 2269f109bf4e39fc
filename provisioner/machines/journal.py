"""How far the installation of each machine is: written down before each step, so that whoever goes on after a kill
installs nothing twice and leaves nothing attached."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole

STEPS = ("chosen", "attaching", "starting", "installing", "cleaning", "offered", "started", "installed", "failed")
"""chosen: nothing was changed. attaching: an image may be attached, and the boot override set; the machine is off.
starting: it may have been switched on, once. installing: it was; only waiting is left. cleaning: it answers by ssh; the
image is being taken out. Over the network: offered: it was told where its installer is. started: it has all of it.
installed: over. failed: it was started, and did not come up."""
STARTED = ("starting", "installing", "cleaning", "installed")


@dataclass(frozen=True, slots=True)
class Installation:
    """One machine's. `serial`: what its BMC showed, and must show ever after; `token`: of its image, and left on the
    machine; `url`: of the image; `order`: boot order before."""

    host: str
    serial: str
    step: str = "chosen"
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    url: str = ""
    order: tuple[str, ...] = ()
    drive: str = ""
    """The virtual drive that it was attached to."""
    host_key: str = ""
    """ssh-ed25519 AAAA…, which the machine made and its installer reported; "" where none was."""

    def is_of(self, serial: str) -> bool:
        """Whether that may be the machine by cluster.yaml's serial number, "" where it has none."""
        return not serial or serial.casefold() == self.serial.casefold()


@dataclass(slots=True)
class Journal:
    """bmc.json in the site's folder, or netboot.json: host → its installation."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> dict[str, Installation]:
        try:
            rows = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        try:
            return {host: _row(host, row) for host, row in rows["hosts"].items()}
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, cause: str) -> GpuprovError:
        return GpuprovError(
            f"is damaged: {cause}", where=str(self.file),
            hint="it lists the installed machines: restore it. Without it gpuprov does not install running machines "
            "again, and you must eject the media of their BMCs by hand",
        )  # fmt: skip

    def note(self, installation: Installation, step: str, **changes: Any) -> Installation:
        """Write down that a step begins."""
        updated = replace(installation, step=step, **changes)
        with self._lock:
            hosts = {**self.load(), installation.host: updated}
            rows = {
                host: {k: v for k, v in asdict(each).items() if k != "host"} for host, each in sorted(hosts.items())
            }
            write_whole(self.file, json.dumps({"schema": 1, "hosts": rows}, indent=1) + "\n")
        return updated


def _row(host: str, row: Mapping[str, Any]) -> Installation:
    installation = Installation(
        host,
        row["serial"],
        row["step"],
        row["token"],
        row["url"],
        tuple(row["order"]),
        row.get("drive", ""),
        row.get("host_key", ""),
    )
    if installation.step not in STEPS or not all(
        isinstance(text, str)
        for text in (installation.serial, installation.token, installation.url, installation.host_key)
    ):
        raise ValueError(f"{host} is at the step {installation.step!r}")
    if not re.fullmatch(r"[a-f0-9]{16,64}", installation.token):  # it becomes a part of paths
        raise ValueError(f"{host} has no token")
    return installation
