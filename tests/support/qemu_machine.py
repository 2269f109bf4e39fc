"""A machine in QEMU behind a replayed BMC: what its BMC is told happens to it, and what it does its BMC shows.

It starts by UEFI (or BIOS) from the image that is attached, else as its own firmware has it; a restart keeps disk and
firmware's variables. It reaches 127.0.0.1 of this computer as 10.0.2.2 and nothing else; its sshd is at 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from provisioner.lifecycle.images.disk import tools
from tests.support import bmc as fake

HOST = "10.0.2.2"
"""This computer, as its machines call it: https://www.qemu.org/docs/master/system/devices/net.html"""


@dataclass
class Behind(fake.Bmc):
    """A BMC that calls this computer as its machine does."""

    def insert(self, slot: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        answer = super().insert(slot, {**body, "Image": local(body["Image"])})
        if slot.get("Inserted"):
            slot["Image"] = body["Image"]
        return answer


def local(url: str) -> str:
    return url.replace(f"//{HOST}:", "//127.0.0.1:")


@dataclass
class Machine:
    folder: Path
    serial: str
    bmc: fake.Bmc
    uefi: bool = True
    gib: int = 40
    starts: list[str] = field(default_factory=list)
    """Each start: the image that it was from, "" for its own disk."""
    process: subprocess.Popen[bytes] | None = None
    _ended: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.disk, self.console = self.folder / "disk.qcow2", self.folder / "console.txt"
        tools.run(["qemu-img", "create", "-q", "-f", "qcow2", self.disk, f"{self.gib}G"], 60)
        shutil.copyfile(tools.FIRMWARE_VARIABLES, self.folder / "variables.fd")
        self.bmc.booted = lambda _, image: self.start(image)  # type: ignore[assignment]

    def start(self, image: str) -> None:
        self._threads.append(threading.Thread(target=self._runs, args=(image,), daemon=True))
        self._threads[-1].start()

    def _runs(self, image: str) -> None:
        """Until it is off; after a restart it starts as its firmware has it."""
        media = None
        if image:
            media = self.folder / "attached.iso"
            with urllib3.PoolManager(cert_reqs="CERT_NONE") as web:
                media.write_bytes(web.request("GET", local(image), retries=False, timeout=60).data)
        first = True
        while first or self._restarted():
            self.starts.append(image if first else "")
            self._launch(media, first=first)
            first = False
        self.bmc.system["PowerState"] = "Off"

    def _launch(self, media: Path | None, *, first: bool) -> None:
        number = len(self.starts)
        log = self.folder / f"console-{number}.txt"
        argv = [
            "qemu-system-x86_64", "-nodefaults", "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2",
            "-m", "2048", "-display", "none", "-no-reboot", "-serial", f"file:{log}",
            "-smbios", f"type=1,serial={self.serial}",
            "-qmp", f"unix:{self.folder}/qmp-{number},server=on,wait=on",
            "-drive", f"if=none,id=disk,format=qcow2,cache=unsafe,file={self.disk}",
            "-device", "nvme,drive=disk,serial=NVME0",
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22",
            "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        ]  # fmt: skip
        if media is not None:
            argv += ["-drive", f"if=none,id=cd,media=cdrom,format=raw,readonly=on,file={media}"]
            argv += ["-device", "ide-cd,drive=cd" + (",bootindex=0" if first else "")]
        if self.uefi:
            argv += ["-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={tools.FIRMWARE}"]
            argv += ["-drive", f"if=pflash,format=raw,unit=1,file={self.folder / 'variables.fd'}"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=(self.folder / "qemu.log").open("ab"))
        self._reason = self._follow(self.folder / f"qmp-{number}")
        self.process.wait()

    def _follow(self, socket_path: Path) -> str:
        """Why it has ended, by QEMU's own word: guest-reset, guest-shutdown, or "" where it was killed."""
        reason = ""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as qmp:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    qmp.connect(str(socket_path))
                    break
                time.sleep(0.05)
            qmp.sendall(b'{"execute": "qmp_capabilities"}\n')
            with qmp.makefile() as lines:
                for line in lines:
                    message = json.loads(line)
                    if message.get("event") == "SHUTDOWN":
                        reason = message["data"]["reason"]
        return reason

    def _restarted(self) -> bool:
        return not self._ended and self._reason == "guest-reset"

    def end(self) -> None:
        self._ended = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        for thread in self._threads:
            thread.join(30)

    def said(self) -> str:
        """All that its serial port has said, without a terminal's codes."""
        logs = sorted(self.folder.glob("console-*.txt"), key=lambda log: int(log.stem.partition("-")[2]))
        text = "".join(f"--- start {n} ---\n{log.read_text(errors='replace')}" for n, log in enumerate(logs, 1))
        return re.sub(r"\x1b\[[0-9;?=]*[A-Za-z]", "", text).replace("\r", "")
