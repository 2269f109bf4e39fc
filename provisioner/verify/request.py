"""What the probe is asked to run on a node: which tools, with which deadlines, and how hard a level loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from time import time
from typing import TYPE_CHECKING, Any

from provisioner.verify.parsers.systemd import JOB_SERVICES
from provisioner.verify.tool import Tool
from provisioner.verify.tools import FILES

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

CONNECTION_S = 20
"""Seconds beyond the probe's own deadline, for the connection and the way back."""
FRAMEWORK_S = 60.0
"""Seconds: a first torch import from a cold disk takes tens of them."""
ALL_REDUCE_S = 300.0
SANDBOX_S = 30.0
"""For a load program that is simulated, and takes a second."""
SETTLE_S = 2.0
"""Seconds of matrix products before clocks, power and links are those of a GPU at work."""
FIO_S = 150.0
"""For fio on scratch: writing, reading and small reads, each with its own seconds (SCRATCH), and 20 s around each."""
SCRATCH: Mapping[str, Any] = {"bytes": 8 << 30, "write_s": 30, "read_s": 10}
"""The file that fio works on, written twice over at most, and for how long. 8 GiB are more than disks keep in memory of
their own."""
LOOPBACK_S = 60.0
"""For ib_write_bw on all cards, a second or two each."""
AFTER_S = 150.0
"""For what is asked when the load has ended, at least: four tools of 30 s at most, and the time to kill them."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How hard a level works a node: dcgmi's run level; for how long matrices are multiplied, how long messages may
    take, and the deadline of the whole load program. Seconds."""

    diag: int
    products_s: float
    messages_s: float
    load_s: float
    scratch: bool = False
    """Whether fio works on the local disks."""
    rails: bool = False
    """Whether ib_write_bw works each network card by itself."""


DEPTHS: Mapping[str, Depth] = {
    "standard": Depth(1, 5, 60, 300),
    "stress": Depth(3, 300, 180, 1200, scratch=True, rails=True),
}
"""300 s of products: imbue-ai/cluster-health's stress test."""


REACH_S = 10.0
"""Seconds for an answer from where packages and images come from (github leptonai/gpud gives them 7)."""
DIAG_S = {1: 180.0, 2: 1200.0, 3: 2700.0, 4: 9000.0}
"""Deadline of each run level of dcgmi diag. NVIDIA gives -r 1 seconds and -r 3 about 15 minutes, which gets three times
its word; awsome-distributed-training saw -r 2 take up to 10.5 minutes and -r 4 from
45 minutes to 2.25 hours."""
EVERY_S = 5.0
"""Between two questions to the GPUs while they work: heat takes longer than that to come, and asking takes 0.1 s."""
LOOK_WAIT_S = 5.0
"""Between two looks at what may be momentary: three of them fit into the deadline of each tool that has some."""
MOMENTS = ("during", "throughout", "after")


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What the probe is to run: file → deadline in seconds, and the images of the lock."""

    files: Mapping[str, float]
    images: tuple[Mapping[str, str], ...] = ()
    gpu_count: int = 1
    port: int = 9400
    units: tuple[str, ...] = ()
    """systemd units to ask for."""
    shared: tuple[str, ...] = ()
    """Paths of file systems of the network to ask."""
    load: Mapping[str, Any] | None = None
    """What to load the node with (head of probe/runner.py); then the files are made one after the other."""
    reach: tuple[str, ...] = ()
    """Addresses of which a HEAD is asked."""
    writes: bool = False
    """Whether a file is written to the file systems of the network, read back and removed."""
    efa: int = 0
    """EFA devices for which it is worth waiting."""
    maintenance: Mapping[str, Any] | None = None
    """Whom to ask for scheduled maintenance."""
    diag: int = 1
    """Run level of dcgmi diag."""
    wait_s: float = LOOK_WAIT_S
    """Between two looks at what may be momentary."""

    @property
    def deadline(self) -> float:
        """Seconds for the whole probe: the slowest command, or all in turn, and the time to kill it."""
        if self.load is not None:
            return sum(self.files.values()) + max(AFTER_S, 30.0 * (1 + len(self.load.get("after", ()))))
        return max(self.files.values(), default=5.0) + 8.0

    def to_json(self) -> dict[str, Any]:
        return {
            "files": dict(self.files),
            "images": [dict(image) for image in self.images],
            "gpu_count": self.gpu_count,
            "port": self.port,
            "units": list(self.units),
            "shared": list(self.shared),
            "reach": list(self.reach),
            "writes": self.writes,
            "efa": self.efa,
            "diag": self.diag,
            "wait": self.wait_s,
            **({"maintenance": dict(self.maintenance)} if self.maintenance is not None else {}),
            "tools": self._tools(),
            **({"load": dict(self.load)} if self.load is not None else {}),
            "deadline": self.deadline,
        }

    def _tools(self) -> dict[str, Any]:
        """How each file is made that no function of the probe's makes."""
        load = self.load or {}
        names = [*self.files, *(n for moment in MOMENTS for n in load.get(moment, ()))]
        return {name: definition for name in names if (definition := FILES[name].to_json()) is not None}


def request_for(expected: Expected) -> ProbeRequest:
    """What there is to ask of a node: no fi_info where there is no EFA, no images where the lock names none."""
    return replace(_request(_deadlines(lambda tool: _applies(tool, expected)), expected), writes=True)


def drift_request(expected: Expected) -> ProbeRequest:
    """Only what tells whether a node is what the lock says: nothing that starts a container or wakes a GPU."""
    # what runs on it may depend on whether it has NVSwitches
    bus = {"lspci.txt"} if expected.units_on(0) != (expected.units or ()) else set()
    return _request(
        _deadlines(lambda tool: (tool.drift or tool.configured or tool.file in bus) and _applies(tool, expected)),
        expected,
    )


def unknown_machine_request() -> ProbeRequest:
    """Everything that can be asked of a machine of which nothing is known, whoever made its GPUs and network."""
    return ProbeRequest(_deadlines(lambda tool: not tool.configured), units=JOB_SERVICES)


def _deadlines(select: Callable[[Tool], object]) -> dict[str, float]:
    """File → deadline of the tools that only look; the longest first, because 16 run at once."""
    tools = [tool for tool in FILES.values() if tool.asked == "look" and select(tool)]
    return {tool.file: tool.seconds for tool in sorted(tools, key=lambda tool: -tool.seconds)}


def _applies(tool: Tool, expected: Expected) -> object:
    return tool.when is None or tool.when(expected)


def load_request(expected: Expected) -> ProbeRequest | None:
    """What a level starts on a node, beyond looking at it; None at level quick, which starts nothing."""
    depth = DEPTHS.get(expected.level)
    if depth is None:
        return None
    files: dict[str, float] = {}
    if expected.sources:
        files["reach.json"] = REACH_S
    diag = expected.diag or depth.diag
    if expected.images:
        files["framework.json"] = FRAMEWORK_S
    if expected.vendor == "nvidia":
        files["dcgmi-diag.json"] = DIAG_S[diag]
    image = next((image for image in expected.images or () if image.get("torch")), None)
    if not expected.mig and expected.vendor != "none":
        files["load.json"] = depth.load_s if not expected.simulated else SANDBOX_S
        if image is None:
            files["all_reduce.txt"] = ALL_REDUCE_S  # nccl-tests, where they are on the node
    load: dict[str, Any] = {
        "vendor": expected.vendor,
        "program": (resources("provisioner.verify") / "load" / "program.py").read_text(encoding="utf-8"),
        "image": image and (image.get("pull") or image["reference"]),
        "reference": image and image["reference"],
        "options": {"seconds": depth.products_s, "budget": depth.messages_s},
        "settle": 0.3 if expected.simulated else SETTLE_S,
        "every": 0.3 if expected.simulated else EVERY_S,
        **{moment: _files_at(moment, expected) for moment in MOMENTS},
    }
    if depth.rails and (cards := cards_request(expected)) is not None:
        load["rails"] = cards
        files["nic-loopback.json"] = LOOPBACK_S
    if expected.scratch and depth.scratch:
        files["fio.json"] = FIO_S if not expected.simulated else SANDBOX_S
        size = SCRATCH["bytes"] if not expected.simulated else 4 << 20
        load["scratch"] = {**SCRATCH, "place": expected.scratch, "bytes": size}
    return replace(_request(files, expected), load=load, diag=diag, reach=expected.sources)


def single_request(expected: Expected) -> ProbeRequest:
    """All that a level asks for, for one run of the probe: what looks at the node, then what loads it."""
    look, load = request_for(expected), load_request(expected)
    return look if load is None else replace(load, files={**look.files, **load.files}, writes=look.writes)


def cards_request(expected: Expected) -> dict[str, Any] | None:
    """Which network cards ib_write_bw works; None where it works none (EFA, plain Ethernet)."""
    if expected.network not in ("infiniband", "roce"):
        return None
    return {
        "layer": "InfiniBand" if expected.network == "infiniband" else "Ethernet",
        "rate_gbps": expected.rate_gbps,
        "pci": list(expected.rdma_pci),
    }


def _files_at(moment: str, expected: Expected) -> list[str]:
    """The files that are made beside the load program, or when it has ended."""
    return [tool.file for tool in FILES.values() if tool.asked == moment and _applies(tool, expected)]


def _request(files: Mapping[str, float], expected: Expected) -> ProbeRequest:
    images = tuple({"reference": str(i["reference"]), "pull": str(i["pull"])} for i in expected.images or ())
    return ProbeRequest(
        files,
        images,
        gpu_count=expected.gpu_count,
        units=(*(expected.units or expected.own_units), *expected.monitoring_units, *JOB_SERVICES),
        shared=tuple(mount["path"] for mount in expected.shared),
        efa=expected.ports if expected.network == "efa" and expected.efa and not expected.simulated else 0,
        maintenance=expected.maintenance,
        wait_s=LOOK_WAIT_S if not expected.simulated else 0.3,
    )


def waits_until(requests: Iterable[ProbeRequest]) -> float:
    """When the last of these probes is given up, in seconds since 1970, if all begin now."""
    return time() + max((request.deadline for request in requests), default=0.0) + CONNECTION_S
