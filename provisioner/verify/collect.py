"""Fetch the raw outputs of all nodes at once: one round trip each, each within its deadline.

The probe goes to the node's `python3 -` by standard input and its one line of JSON comes back, compressed. A node that
cannot be reached, hangs or answers nonsense gives a bundle that says so; the others are not held up.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from time import monotonic, time
from typing import IO, TYPE_CHECKING, Any

from provisioner.events import Events, Stage
from provisioner.verify.bundle import Bundle
from provisioner.verify.expectations import INTERRUPTION
from provisioner.verify.probe import MARK

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

PARTS = ("probe.py", "probe_host.py", "probe_load.py", "probe_fabric.py", "probe_fio.py", "probe_shared.py")
"""Modules that are sent as one program, in this order."""


def probe_source() -> str:
    """The probe as one text: its modules one after the other, without what one imports of the other."""
    texts = [(resources("provisioner.verify") / name).read_text(encoding="utf-8") for name in PARTS]
    later = [re.sub(r"^from (__future__|provisioner)\b.*\n", "", text, flags=re.M) for text in texts[1:]]
    return "\n".join([texts[0], *later])


ROOT_PYTHON = 'if [ "$(id -u)" = 0 ]; then exec python3 -I -; else exec sudo -n python3 -I -; fi'
"""The command on the node. -I: neither the user's site packages nor the working directory reach the probe."""

WAY_S = 20
"""Seconds beyond the probe's own deadline, for the connection and the way back."""

LIMIT = 32 * 1024 * 1024
"""Bytes taken from one node, and of its answer when it is unpacked: about a hundred times a compressed answer, three
times an unpacked one."""
VALUES = 1_000_000
"""Lists and objects in an answer, at most: an empty one of three bytes takes seventy in memory. Braces within texts
count too; a real answer has some ten thousand."""

NVIDIA_FILES: Mapping[str, float] = {
    "nvidia-smi.xml": 30,
    "topo.txt": 30,
    "nvlink.txt": 30,
    "nvlink-errors.txt": 30,
    "nvidia-version.txt": 5,
    "nvidia-params.txt": 5,
    "nvidia-dev.txt": 5,
    "dcgm-exporter.prom": 10,
}
GPU_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("--gpus", "all"),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
}
"""docker's options that give a container the GPUs of a maker (container toolkit and ROCm installation guides)."""

AMD_FILES: Mapping[str, float] = {"rocm-smi.json": 30}
COMMON_FILES: Mapping[str, float] = {
    "dmesg.txt": 10,
    "dmesg-before.txt": 15,
    "lspci.txt": 15,
    "lsblk.json": 10,
    "packages.txt": 15,
    "holds.txt": 15,
    "services.txt": 10,
    "kernel.txt": 15,
    "os-release.txt": 5,
    "modules.txt": 15,
    "host.json": 30,
}
DRIFT_FILES: Mapping[str, float] = {"stamp.json": 5, "reboot.txt": 5, "unattended.txt": 10, "units.txt": 10}
"""What says, beside packages, holds, kernel, distribution and images, whether a node is what the lock says
(configure/drift.py)."""

SHARED_S = 27.0
"""For file systems of the network: two questions to each, all at once (probe_shared.py)."""
FRAMEWORK_S = 60.0
"""Seconds: a first torch import from a cold disk takes tens of them."""
ALL_REDUCE_S = 300.0
REHEARSED_S = 30.0
"""For a load program that is simulated, and takes a second."""
SETTLE_S = 2.0
"""Seconds of matrix products before clocks, power and links are those of a GPU at work."""
FIO_S = 150.0
"""For fio on scratch: writing, reading and small reads, each with its own seconds (SCRATCH), and 20 s around each."""
SCRATCH: Mapping[str, Any] = {"bytes": 8 << 30, "write_s": 30, "read_s": 10}
"""The file that fio works on, written twice over at most, and for how long. 8 GiB are more than disks keep in memory of
their own."""
AFTER_S = 150.0
"""For what is asked when the load has ended: four tools of 30 s at most, and the time to kill them."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How hard a level works a node: dcgmi's run level and its deadline; for how long matrices are multiplied, how long
    messages may take, and the deadline of the whole load program. Seconds."""

    diag: int
    diag_s: float
    products_s: float
    messages_s: float
    load_s: float
    scratch: bool = False
    """Whether fio works on the local disks."""


DEPTHS: Mapping[str, Depth] = {
    "standard": Depth(1, 180, 5, 60, 300),
    "stress": Depth(3, 2700, 300, 180, 1200, scratch=True),
}
"""NVIDIA gives -r 1 seconds and -r 3 about 15 minutes; awsome-distributed-training saw -r 2 alone take up to 10.5
minutes, so -r 3 gets three times its word. 300 s of products: imbue-ai/cluster-health's stress test."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What the probe is to run: file → deadline in seconds, and the images of the lock."""

    files: Mapping[str, float]
    images: tuple[Mapping[str, str], ...] = ()
    gpus: tuple[str, ...] = GPU_OPTIONS["nvidia"]
    gpu_count: int = 1
    port: int = 9400
    units: tuple[str, ...] = ()
    """systemd units to ask for."""
    shared: tuple[str, ...] = ()
    """Paths of file systems of the network to ask."""
    load: Mapping[str, Any] | None = None
    """What to load the node with (probe.py's head); then the files are made one after the other."""
    diag: int = 1
    """Run level of dcgmi diag."""

    @property
    def deadline(self) -> float:
        """Seconds for the whole probe: the slowest command, or all in turn, and the time to kill it."""
        if self.load is not None:
            return sum(self.files.values()) + AFTER_S
        return max(self.files.values(), default=5.0) + 8.0

    def to_json(self) -> dict[str, Any]:
        return {
            "files": dict(self.files),
            "images": [dict(image) for image in self.images],
            "gpus": list(self.gpus),
            "gpu_count": self.gpu_count,
            "port": self.port,
            "units": list(self.units),
            "shared": list(self.shared),
            "diag": self.diag,
            **({"load": dict(self.load)} if self.load is not None else {}),
            "deadline": self.deadline,
        }


def request_for(expected: Expected) -> ProbeRequest:
    """What there is to ask of a node: no fi_info where there is no EFA, no images where the lock names none."""
    wanted = {**COMMON_FILES, **DRIFT_FILES, **(AMD_FILES if expected.vendor == "amd" else NVIDIA_FILES)}
    if not expected.units:
        del wanted["units.txt"]
    if expected.network in ("infiniband", "roce", "eri"):
        wanted["ibstat.txt"] = 15
    if expected.network in ("infiniband", "roce", "efa"):
        wanted["rdma.json"] = 10
    if expected.network == "efa":
        wanted["fi_info.txt"] = 15
    if expected.fabric_manager:
        wanted["fabricmanager.txt"] = 10
    if INTERRUPTION in (expected.units or ()):
        wanted["interruption.json"] = 5
    if expected.shared:
        wanted["shared.json"] = SHARED_S
    if expected.images:
        wanted["container-images.json"] = 20
    return _request(wanted, expected)


def load_request(expected: Expected) -> ProbeRequest | None:
    """What a level starts on a node, beyond looking at it; None at level quick, which starts nothing."""
    depth = DEPTHS.get(expected.level)
    if depth is None:
        return None
    wanted: dict[str, float] = {}
    if expected.images:
        wanted["framework.json"] = FRAMEWORK_S
    if expected.vendor == "nvidia":
        wanted["dcgmi-diag.json"] = depth.diag_s
    image = next((image for image in expected.images or () if image.get("torch")), None)
    if not expected.mig:
        wanted["load.json"] = depth.load_s if not expected.simulated else REHEARSED_S
        if image is None:
            wanted["all_reduce.txt"] = ALL_REDUCE_S  # nccl-tests, where they are on the node
    load: dict[str, Any] = {
        "vendor": expected.vendor,
        "program": (resources("provisioner.verify") / "load" / "program.py").read_text(encoding="utf-8"),
        "image": image and (image.get("pull") or image["reference"]),
        "reference": image and image["reference"],
        "options": {"seconds": depth.products_s, "budget": depth.messages_s},
        "settle": 0.3 if expected.simulated else SETTLE_S,
    }
    if expected.scratch and depth.scratch:
        wanted["fio.json"] = FIO_S if not expected.simulated else REHEARSED_S
        size = SCRATCH["bytes"] if not expected.simulated else 4 << 20
        load["scratch"] = {**SCRATCH, "place": expected.scratch, "bytes": size}
    return replace(_request(wanted, expected), load=load, diag=depth.diag)


def drift_request(expected: Expected) -> ProbeRequest:
    """Only what tells whether a node is what the lock says: nothing that starts a container or wakes a GPU."""
    shared = ("packages.txt", "holds.txt", "kernel.txt", "os-release.txt")
    wanted = {**DRIFT_FILES, **{name: COMMON_FILES[name] for name in shared}}
    if not expected.units:
        del wanted["units.txt"]
    if INTERRUPTION in (expected.units or ()):
        wanted["interruption.json"] = 5
    if expected.shared:
        wanted["shared.json"] = SHARED_S
    if expected.images:
        wanted["container-images.json"] = 10
    return _request(wanted, expected)


def _request(files: Mapping[str, float], expected: Expected) -> ProbeRequest:
    images = tuple({"reference": str(i["reference"]), "pull": str(i["pull"])} for i in expected.images or ())
    return ProbeRequest(
        files,
        images,
        gpus=GPU_OPTIONS[expected.vendor],
        gpu_count=expected.gpu_count,
        units=(*(expected.units or ()), *expected.timers),
        shared=tuple(one["path"] for one in expected.shared),
    )


def waits_until(requests: Iterable[ProbeRequest]) -> float:
    """When the last of these probes is given up, in seconds since 1970, if all begin now."""
    return time() + max((request.deadline for request in requests), default=0.0) + WAY_S


def collect(
    targets: Mapping[str, Sequence[str]],
    request: ProbeRequest | Mapping[str, ProbeRequest],
    *,
    deadline_s: float | None = None,
    parallel: int = 64,
    events: Events | None = None,
    stage: Stage = "verify",
) -> dict[str, Bundle]:
    """Probe every target at once, `parallel` at a time; `stage` is the one that its events are told under.

    A target is an argv prefix to which one shell command is appended and that runs it on the node (an ssh command line,
    or ["sh", "-c"]). `request` is one for all, or one for each name. `deadline_s` is for one node, connection and all;
    left out it is the probe's own and 20 s for the way. Never raises for a node: its bundle says what happened.
    """
    run = _Run(request, deadline_s, events or Events(), len(targets), stage)
    return asyncio.run(run.all(targets, parallel))


@dataclass(slots=True)
class _Run:
    request: ProbeRequest | Mapping[str, ProbeRequest]
    deadline_s: float | None
    events: Events
    total: int
    stage: Stage = "verify"
    done: int = 0
    source: str = field(default_factory=probe_source)

    async def all(self, targets: Mapping[str, Sequence[str]], parallel: int) -> dict[str, Bundle]:
        slots = asyncio.Semaphore(max(1, parallel))

        async def one(name: str, target: Sequence[str]) -> Bundle:
            async with slots:
                bundle = await self.node(name, target)
            self.done += 1
            message = bundle.error or f"probed in {bundle.seconds or 0:.1f} s"
            kind = "warning" if bundle.error else "progress"
            self.events(self.stage, kind, message, node=name, done=self.done, total=self.total, unit="node")  # type: ignore[arg-type]
            return bundle

        names = list(targets)
        bundles = await asyncio.gather(*(one(name, targets[name]) for name in names))
        return dict(zip(names, bundles, strict=True))

    async def node(self, name: str, target: Sequence[str]) -> Bundle:
        request = self.request if isinstance(self.request, ProbeRequest) else self.request[name]
        deadline = self.deadline_s if self.deadline_s is not None else request.deadline + WAY_S
        # The request travels as a JSON text inside a Python literal: no value can end the string.
        program = f"{self.source}\nmain(json.loads({json.dumps(json.dumps(request.to_json()))}))\n"
        started = monotonic()
        with tempfile.TemporaryFile() as complaints:
            try:
                out, rc = await _talk([*target, ROOT_PYTHON], program.encode(), complaints, deadline)
            except TimeoutError:
                return Bundle(error=f"no answer within {deadline:.0f} s{_said(complaints)}")
            except OSError as error:
                return Bundle(error=f"{target[0] if target else 'nothing to run'}: {error.strerror or error}")
            except _TooMuchError:
                return Bundle(error=f"sent more than {LIMIT // 2**20} MiB")
            arrived = time()
            bundle = decode(out)
            if bundle.error:
                return Bundle(error=f"{bundle.error} (exit status {rc}){_said(complaints)}")
        return replace(bundle, seconds=monotonic() - started, received=arrived)


NO_CONFIG = "Can't open user config file"
"""ssh's words where gpuprov has written no configuration for it: a run was killed between making and reaching nodes."""


class _TooMuchError(Exception):
    pass


async def _talk(argv: list[str], program: bytes, complaints: IO[bytes], deadline: float) -> tuple[bytes, int | None]:
    """Run one command: program in, standard output back. Standard error goes to a file, because a connection that ssh
    keeps open for later would hold a pipe open as well. Raises TimeoutError, OSError, _TooMuchError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=complaints,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(deadline):
            feeding = asyncio.create_task(_feed(process.stdin, program))
            chunks, size = [], 0
            while chunk := await process.stdout.read(1 << 18):
                size += len(chunk)
                if size > LIMIT:
                    raise _TooMuchError
                chunks.append(chunk)
            await feeding
            return b"".join(chunks), await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await process.wait()


async def _feed(stdin: asyncio.StreamWriter, program: bytes) -> None:
    with suppress(ConnectionError):  # the other end is gone: its exit status and complaints say why
        stdin.write(program)
        await stdin.drain()
        stdin.close()


def decode(out: bytes) -> Bundle:
    """The bundle in the last line that bears the probe's mark; banners are ignored. What is no answer, or one that
    cannot be read, is a bundle whose error says so."""
    marked = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith(MARK)]
    if not marked:
        return Bundle(error="no answer from the probe")
    try:
        unpack = zlib.decompressobj()
        text = unpack.decompress(base64.b64decode(marked[-1][len(MARK) :]), LIMIT)
        if unpack.unconsumed_tail:
            return Bundle(error=f"no answer from the probe that is read: it has more than {LIMIT // 2**20} MiB")
        if text.count(b"{") + text.count(b"[") > VALUES:
            return Bundle(error=f"no answer from the probe that is read: it has more than {VALUES} values")
        document = json.loads(text)
    except (ValueError, zlib.error, RecursionError) as error:
        return Bundle(error=f"no answer from the probe that can be read: {type(error).__name__}")
    if not isinstance(document, dict):
        return Bundle(error="no answer from the probe that can be read: no object")
    return Bundle.from_json(document)


def _said(complaints: IO[bytes]) -> str:
    """The end of what ssh, sudo or Python complained, as ": …"."""
    size = complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, size - 2000))
    lines = [line.strip() for line in complaints.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if any(NO_CONFIG in line for line in lines):
        return ": no run has reached it yet, and `gpuprov up` goes on from there"
    return f": {' / '.join(lines[-3:])[-400:]}" if lines else ""
