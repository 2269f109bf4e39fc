"""How far the installation of each machine is: written down before each step, so that whoever goes on after a kill
installs nothing twice and leaves nothing attached."""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Strict
from pydantic.dataclasses import dataclass as model

from provisioner.common.errors import DamagedFileError
from provisioner.common.paths import write_whole
from provisioner.rundir import records

InstallationStep = Literal[
    "chosen", "attaching", "starting", "installing", "cleaning", "offered", "started", "installed", "failed"
]
"""chosen: nothing was changed. attaching: an image may be attached, and the boot override set; the machine is off.
starting: it may have been switched on, once. installing: it was; only waiting is left. cleaning: it answers by ssh; the
image is being taken out. Over the network: offered: it was told where its installer is. started: it has all of it.
installed: over. failed: it was started, and did not come up."""
STARTED = ("starting", "installing", "cleaning", "installed")


@model(config=records.STRICT, frozen=True, slots=True)
class Installation:
    """One machine's. `serial`: what its BMC showed, and must show ever after; `token`: of its image, part of paths, and
    left on the machine; `url`: of the image; `order`: boot order before."""

    host: str
    serial: str
    step: InstallationStep = "chosen"
    token: Annotated[str, Field(pattern="^[a-f0-9]{16,64}$")] = field(default_factory=lambda: secrets.token_hex(16))
    url: str = ""
    order: Annotated[tuple[str, ...], Strict(False)] = ()
    drive: str = ""
    """The virtual drive that it was attached to."""
    host_key: str = ""
    """ssh-ed25519 AAAA…, which the machine made and its installer reported; "" where none was."""

    def is_of(self, serial: str) -> bool:
        """Whether that may be the machine by cluster.yaml's serial number, "" where it has none."""
        return not serial or serial.casefold() == self.serial.casefold()


def _with_names(hosts: Any) -> Any:
    """Each row with its key as the name of its host. Earlier releases wrote no `drive` and no `host_key`; other keys
    are required."""
    if not isinstance(hosts, dict):
        return hosts
    for host, row in hosts.items():
        if missing := [name for name in ("step", "token", "url", "order") if isinstance(row, dict) and name not in row]:
            raise ValueError(f"{host}: {', '.join(missing)} missing")
    return {host: {**row, "host": host} if isinstance(row, dict) else row for host, row in hosts.items()}


@model(config=records.STRICT, frozen=True, slots=True)
class InstallationFile:
    """bmc.json or netboot.json."""

    REPAIR: ClassVar[str] = (
        "it lists the installed machines: restore it. Without it gpuprov does not install running machines again, and "
        "you must eject the media of their BMCs by hand"
    )

    schema: Literal[1]
    hosts: Annotated[dict[str, Installation], BeforeValidator(_with_names)]


@dataclass(slots=True)
class Journal:
    """bmc.json in the site's folder, or netboot.json: host → its installation."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> dict[str, Installation]:
        """Raises DamagedFileError, also where the file cannot be read."""
        try:
            content = records.load_file(self.file, InstallationFile)
        except OSError as error:
            raise DamagedFileError(str(error), str(self.file), hint=InstallationFile.REPAIR) from error
        return content.hosts if content is not None else {}

    def note(self, installation: Installation, step: InstallationStep, **changes: Any) -> Installation:
        """Write down that a step begins."""
        updated = replace(installation, step=step, **changes)
        with self._lock:
            hosts = {**self.load(), installation.host: updated}
            rows = {
                host: {k: v for k, v in asdict(each).items() if k != "host"} for host, each in sorted(hosts.items())
            }
            write_whole(self.file, json.dumps({"schema": 1, "hosts": rows}, indent=1) + "\n")
        return updated
