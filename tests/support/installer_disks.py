"""A computer's disks as its kernel shows them, and the installer's guard over them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from provisioner.machines.installer import seed
from provisioner.machines.installer.seed import Target

TARGET = Target("n1.lab", "ubuntu", "ssh-ed25519 " + "A" * 68, ("GPU-0001",), "ab" * 16)
TB = 1_875_385_008
"""Sectors of a 960 GB disk."""


class Server:
    """A computer's disks. A disk that has no file in /dev is one that the kernel makes no device of."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("sys/block", "dev", "bin", "tmp"):
            (root / folder).mkdir(parents=True)
        for name, text in {"sleep": "exit 0", "wget": "exit 0", "sync": "exit 0", "poweroff": "kill $PPID"}.items():
            (root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (root / "bin" / name).chmod(0o755)
        (root / "dev/ttyS0").touch()

    def disk(self, name: str, sectors: int = TB, *, content: bytes | None = b"\0" * 4096, **attributes: str) -> None:
        at = self.root / "sys/block" / name
        at.mkdir()
        for file, text in {"removable": "0", "ro": "0", "hidden": "0", "size": str(sectors), **attributes}.items():
            (at / file).write_text(f"{text}\n")
        if content is not None:
            at = self.root / "dev" / name.replace("!", "/")
            at.parent.mkdir(exist_ok=True)
            at.write_bytes(content)

    def two_ports(self, number: int) -> None:
        """An NVMe disk with two ports: the kernel shows its path beside it (cybozu-go/sabakan#301), and since 4.15 says
        of that path that it is hidden."""
        self.disk(f"nvme{number}c{number}n1", content=None, hidden="1")
        self.disk(f"nvme{number}n1")

    def guard(self, argument: str, target: Target = TARGET) -> tuple[str, str]:
        """What it prints, and why it switched the machine off."""
        text = seed.guard(target)
        text = re.sub(r"/(sys|dev|tmp)/(?!null)", rf"{self.root}/\1/", text)
        ran = subprocess.run(
            ["sh", "-c", text, "guard", argument], env={"PATH": f"{self.root}/bin:/usr/bin:/bin"}, text=True,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        outputs = (ran.stdout, (self.root / "dev/ttyS0").read_text())
        return outputs[0].strip().replace(f"{self.root}/", "/"), outputs[1].strip().replace(f"{self.root}/", "/")
