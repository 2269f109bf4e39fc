"""load.json: what became of the load program on a node, and what it reached.

Written by probe/load.py; "output" holds the marked lines of load/program.py. Traps: a program that printed phases and
no result has died or hung in the last of them; a result of a CPU run is no measurement; NaN and Infinity are valid for
Python's JSON and say that something went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.perftest import Card, cards
from provisioner.verify.parsers.rdma_sysfs import growth
from provisioner.verify.parsers.untrusted import holders, read_object, strays, strict_float, strict_text, strict_whole
from provisioner.verify.tool import Tool

MARK = "@gpuprov-load-1 "
State = Literal["ran", "busy", "absent"]


@dataclass(frozen=True, slots=True)
class LoadedGpu:
    """What one GPU reached: GB/s to and from the host, within its memory and to its neighbour; TFLOP/s at the start of
    the matrix products and at their end. `digest` stands for the product's bits, the same on all GPUs of a kind;
    `wrong_products` counts those that differed from the GPU's own first one."""

    index: int
    h2d_gbps: float | None = None
    d2h_gbps: float | None = None
    memory_gbps: float | None = None
    peer_gbps: float | None = None
    tflops: float | None = None
    tflops_last: float | None = None
    digest: int | None = None
    wrong_products: int | None = None
    wrong_h2d: int | None = None
    """Bytes of a pattern that arrived wrong from the host; `wrong_d2h` to it. None where none was compared."""
    wrong_d2h: int | None = None
    numa_node: int | None = None
    """The NUMA node whose memory the copies used, the GPU's own; None where the process was bound to none."""


@dataclass(frozen=True, slots=True)
class Load:
    """`state`: the program ran (whatever came of it), a job had the GPUs, or there was nothing to run it with (`why`).
    `finished` is True where a result came; `phase` is the last part that began. `busbw` has message size in bytes →
    GB/s of all_reduce over `ranks` GPUs, `wrong` counts its wrong values; `transports` how many of NCCL's channels went
    which way."""

    state: State
    why: str = ""
    launcher: str = ""
    busy: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    """Those of them that belong to no job."""
    rc: int | None = None
    timed_out: bool = False
    seconds: float | None = None
    error: str = ""
    simulated: bool = False
    finished: bool = False
    phase: str | None = None
    torch: str | None = None
    nccl: str | None = None
    device: str | None = None
    ranks: int | None = None
    gpus: tuple[LoadedGpu, ...] = ()
    busbw: tuple[tuple[int, float], ...] = ()
    wrong: int | None = None
    wrong_peers: tuple[tuple[int, int, int | None], ...] | None = None
    """(from, to, bytes of a pattern that arrived wrong) of the ordered pairs of GPUs, None of a pair that the driver
    maps no more; None where the load program is older and compares no copies."""
    transports: tuple[tuple[str, int], ...] = ()
    latency_us: float | None = None
    """Of an all_reduce of one value, where several nodes worked together."""
    samples_per_s: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    rails: tuple[Card, ...] = ()
    """What its network cards reached with another node's, where two worked together."""
    grown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """RDMA port → counter → by how much it grew meanwhile, where several nodes worked together."""

    @property
    def best_busbw(self) -> tuple[int, float] | None:
        """(bytes, GB/s) of the message size that went fastest."""
        return max(self.busbw, key=lambda row: row[1], default=None)


def parse(text: str) -> Load:
    document = read_object(text)
    state = document.get("state")
    if state not in ("ran", "busy", "absent"):
        raise Unreadable(f"no state in it: {first_line(text)}")
    output = document.get("output")
    lines = [line[len(MARK) :] for line in strict_text(output).splitlines() if line.startswith(MARK)]
    phases = [line.removeprefix("phase ") for line in lines if line.startswith("phase ")]
    results = [line.removeprefix("result ") for line in lines if line.startswith("result ")]
    common: dict[str, Any] = {
        "state": state,
        "why": strict_text(document.get("why"))[:300],
        "launcher": strict_text(document.get("launcher"))[:200],
        "busy": holders(document.get("busy")),
        "stray": strays(document.get("busy")),
        "rc": strict_whole(document.get("rc")),
        "timed_out": document.get("timed_out") is True,
        "seconds": strict_float(document.get("seconds")),
        "error": _last_line(strict_text(document.get("error"))),
        "phase": phases[-1][:40] if phases else None,
        "rails": cards(document.get("rails")),
        "grown": growth(document.get("grown")),
    }
    if not results:
        return Load(**common)
    return Load(**common, **_result(read_object(results[-1])))


def _result(document: dict[str, Any]) -> dict[str, Any]:
    rows, reached = document.get("gpus"), document.get("all_reduce")
    train = document.get("train") if isinstance(document.get("train"), dict) else {}
    transports = document.get("transports") if isinstance(document.get("transports"), dict) else {}
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Unreadable("a result without GPUs")
    assert train is not None and transports is not None
    reached_rows = [row for row in reached if isinstance(row, dict)] if isinstance(reached, list) else []
    sizes = [(strict_whole(row.get("bytes")), strict_float(row.get("busbw_gbps"))) for row in reached_rows]
    return {
        "finished": True,
        "simulated": document.get("simulated") is True,
        "torch": strict_text(document.get("torch"))[:80] or None,
        "nccl": strict_text(document.get("nccl"))[:40] or None,
        "device": strict_text(document.get("device"))[:20] or None,
        "ranks": strict_whole(document.get("ranks")),
        "gpus": tuple(_gpu(position, row) for position, row in enumerate(rows)),
        "busbw": tuple((size, rate) for size, rate in sizes if size is not None and rate is not None),
        "wrong": strict_whole(document.get("wrong")),
        "wrong_peers": _wrong_peers(rows),
        "transports": tuple(
            sorted((str(k)[:40], n) for k, v in transports.items() if (n := strict_whole(v)) is not None)
        ),
        "latency_us": strict_float(document.get("latency_us")),
        "samples_per_s": strict_float(train.get("samples_per_s")),
        "loss_first": strict_float(train.get("loss_first")),
        "loss_last": strict_float(train.get("loss_last")),
    }


def _gpu(position: int, row: dict[str, Any]) -> LoadedGpu:
    rates = ("h2d_gbps", "d2h_gbps", "memory_gbps", "peer_gbps", "tflops", "tflops_last")
    index = strict_whole(row.get("index"))
    return LoadedGpu(
        position if index is None else index,
        **{name: strict_float(row.get(name)) for name in rates},
        digest=strict_whole(row.get("digest")),
        wrong_products=strict_whole(row.get("wrong_products")),
        wrong_h2d=strict_whole(row.get("wrong_h2d")),
        wrong_d2h=strict_whole(row.get("wrong_d2h")),
        numa_node=strict_whole(row.get("numa_node")),
    )


PAIRS = 4096
"""Of more GPUs than any node has (64) no pair is read."""


def _wrong_peers(rows: list[dict[str, Any]]) -> tuple[tuple[int, int, int | None], ...] | None:
    """The first process has compared all pairs."""
    pairs = next((row["wrong_peers"] for row in rows if isinstance(row.get("wrong_peers"), list)), None)
    if pairs is None:
        return None
    values = [[strict_whole(cell) for cell in pair] for pair in pairs[:PAIRS] if isinstance(pair, list)]
    return tuple(
        (pair[0], pair[1], pair[2]) for pair in values if len(pair) == 3 and pair[0] is not None and pair[1] is not None
    )


def _last_line(text: str) -> str:
    """The last line that says something: of a Python traceback the error itself."""
    rows = [line.strip() for line in text.splitlines() if line.strip()]
    error_lines = [line for line in rows if "Error" in line and "ChildFailedError" not in line] or rows
    return "".join(c if c.isprintable() else "?" for c in error_lines[-1][:300]) if error_lines else ""


def _document(load: Load) -> dict[str, Any]:
    rates = {"busbw": {str(size): rate for size, rate in load.busbw}, "transports": dict(load.transports)}
    return {**plain(load), **rates}


TOOLS = (
    Tool(
        file="load.json",
        field="load",
        parse=parse,
        asked="load",
        label="the load program (torchrun)",
        by_hand=False,
        document={"load": _document},
    ),
)
