"""What the load program prints on this node, and what the node shows while it runs and after it.

The container runtime's hook puts the lines into a container that is started for it; the simulated image's torchrun
reads them (registry.py). A fault says in hardware.json what goes wrong: `load` of a GPU or of the node, `under_load` of
a GPU (what nvidia-smi prints meanwhile), `after_load` (what stays).
"""

from __future__ import annotations

import json
import os

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Json = dict[str, Any]

MARK = "@gpuprov-load-1 "
LINES = "etc/gpuprov-sandbox/load"
"""In a container: what torchrun is to print. Lines with ! are for torchrun itself: loading, hang, fail TEXT."""
LOADING = "loading"
"""Beside LINES, while matrices are multiplied."""
LOADED = "run/gpuprov-sandbox/loaded.json"
"""Written when a load program was started: from then on what it left behind is shown."""
BYTES = (1 << 30, 2 << 30, 4 << 30, 8 << 30, 16 << 30)


def lines(machine: Json, gpus: list[Json]) -> list[str]:
    """What torchrun prints on these GPUs."""
    node = machine.get("load", {})
    out = [f"{MARK}phase copies", f"{MARK}phase compute", "!loading"]
    if node.get("hangs"):
        return [*out, "!hang"]
    out.append(f"{MARK}phase all_reduce")
    if "fails" in node:
        return [*out, f"!fail {node['fails']}"]
    return [*out, f"{MARK}phase train", MARK + "result " + json.dumps(result(machine, gpus))]


def result(machine: Json, gpus: list[Json]) -> Json:
    """The program's result; GPUs differ by parts of a per cent, as real ones do."""
    node, reaches, count = machine.get("load", {}), machine["reaches"], len(gpus)
    busbw = reaches["busbw"] * node.get("busbw", 1)
    sizes = BYTES if count > 1 else ()
    linked = any(link["active"] for gpu in gpus for link in gpu.get("links", []))
    rows = [_gpu(machine, position, gpu) for position, gpu in enumerate(gpus)]
    if rows:
        rows[0]["wrong_peers"] = _wrong_peers(gpus)
    return {
        "simulated": True, "torch": "simulated", "cuda": None, "nccl": None, "device": "cuda", "ranks": count,
        "dtype": "bfloat16", "gpus": rows,
        "all_reduce": [{"bytes": s, "busbw_gbps": round(busbw * (1 - 0.04 / (i + 1)), 2)} for i, s in enumerate(sizes)],
        "wrong": node.get("wrong", 0),
        "train": {"samples_per_s": reaches["samples_per_s"] * node.get("training", 1), "loss_first": 9.17,
                  "loss_last": node.get("loss", 6.42)},
        "transports": node.get("transports") or ({"P2P" if linked else "SHM": 16 * count} if count > 1 else {}),
    }  # fmt: skip


def _gpu(machine: Json, position: int, gpu: Json) -> Json:
    broken, factor = gpu.get("load", {}), 1 - 0.002 * (gpu["index"] * 5 % 7)
    rates: Json = {
        name: round(machine["reaches"][name] * factor * broken.get(name, 1), 2)
        for name in ("h2d_gbps", "d2h_gbps", "memory_gbps", "peer_gbps", "tflops")
    }
    if len(machine["gpus"]) < 2:
        rates["peer_gbps"] = None
    return {
        "rank": position, "index": position, **rates,
        "tflops_last": round(rates["tflops"] * 0.97 * broken.get("sustained", 1), 2),
        "digest": broken.get("digest", 4242), "wrong_products": broken.get("wrong_products", 0),
        "numa_node": gpu["numa"], "wrong_h2d": broken.get("wrong_h2d", 0), "wrong_d2h": 0,
    }  # fmt: skip


def _wrong_peers(gpus: list[Json]) -> list[list[int]]:
    """[from, to, wrong bytes] of every ordered pair."""
    wrong = [gpu.get("load", {}).get("wrong_peer", 0) for gpu in gpus]
    places = range(len(gpus))
    return [[i, j, wrong[j]] for i in places for j in places if i != j]


def started() -> None:
    """A load program begins: what it leaves behind is there from now on."""
    state.write(LOADED, {})


def is_loading() -> bool:
    """Whether a container of this node is in the middle of its matrix products."""
    # os.path.exists: False where this program may not look (the exporter runs as nobody).
    return any(
        os.path.exists(os.path.join(os.path.dirname(count_file), LOADING)) for count_file in state.read(state.GIVEN, [])
    )


FIRST = "run/gpuprov-sandbox/first-look.json"
"""Which faults of a moment nvidia-smi has shown: when hardware.json was written."""


def at_first(gpus: Sequence[Json]) -> tuple[Json, ...]:
    """The GPUs with what their faults show for a moment: when nvidia-smi -q -x is first asked after the injection."""
    if not any("at_first" in gpu for gpu in gpus):
        return tuple(gpus)
    written = os.stat(os.path.join(state.ROOT, state.HARDWARE)).st_mtime_ns
    if state.read(FIRST, None) == written:
        return tuple(gpus)
    state.write(FIRST, written)
    return tuple({**gpu, "printed": {**gpu.get("printed", {}), **gpu.get("at_first", {})}} for gpu in gpus)


def gpu_view(gpu: Json, *, running: bool, ran: bool) -> Json:
    """The GPU as nvidia-smi has to print it: with what its faults show under load, or have left behind."""
    view = dict(gpu)
    if running:
        view["awake"] = True  # at its highest clock, and no longer at PCIe generation 1
    if running and "under_load" in gpu:
        view["printed"] = {**gpu.get("printed", {}), **gpu["under_load"]}
    if ran and "after_load" in gpu:
        view |= gpu["after_load"]
    return view
