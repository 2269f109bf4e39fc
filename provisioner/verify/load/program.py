"""Loads one node, or several, and prints what it reached: runs under torchrun, one process for each GPU.

It knows PyTorch and the standard library alone, because it is sent to a node and runs inside the locked image
(probe/load.py) or beside it. Standard output gets lines that begin with MARK: `phase NAME` as each part begins, and at
the end `result JSON`, which parsers/load.py reads. Rates are in GB/s of 10⁹ bytes, work in TFLOP/s, sizes in bytes.

    torchrun --standalone --nproc-per-node 8 program.py --seconds 5 --budget 90

`--only all_reduce` is what several nodes together are asked for. `--tiny` shrinks everything to what a CPU does in a
second; a run without a GPU is marked `"device": "cpu"` and is no measurement.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

MARK = "@gpuprov-load-1 "
GIB = 1 << 30
ALL_REDUCE = (GIB, 2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB)
"""Messages below 1 GiB show less than the machine has (568 of 846 GB/s at 128 MiB on a B200, facts/health.yaml)."""
COPY, COPIES = GIB, 4
"""Bytes of a copy, and how many of them are timed."""
PATTERN_BYTES = 64 << 20
"""Bytes of a copy that is compared: 56 pairs of eight GPUs take about a second, also where PCIe joins them."""
ODD = 6364136223846793005
"""An odd factor: word i of a pattern is i times it, modulo 2^64, so no two words are equal and a copy that lands at
another place is wrong there (the multiplier of Knuth's MMIX generator)."""
SMALL = 40
"""All_reduces of one value in a round."""
MATRIX = 8192
MODEL = {"width": 1024, "heads": 16, "layers": 4, "tokens": 512, "batch": 8, "steps": 24, "vocabulary": 8192}
TINY = {"width": 32, "heads": 2, "layers": 1, "tokens": 16, "batch": 2, "steps": 4, "vocabulary": 64}
"""The reference model: a small transformer, the same for every machine, so that its rate compares only with itself."""


class Node:
    """This process's GPU, its ranks, and how time is taken on it."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.rank = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        bf16 = not self.cuda or torch.cuda.get_device_capability()[0] >= 8
        self.dtype = torch.bfloat16 if bf16 else torch.float16

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.all_reduce(torch.zeros(1))  # on the CPU, so by gloo
        self.wait()

    def phase(self, name: str) -> None:
        """Everybody begins the next part together, and whoever watches knows."""
        self.barrier()
        if self.rank == 0:
            say("phase " + name)

    def seconds(self, work: Callable[[], Any], repeat: int) -> float:
        """Of one call of `work`: the mean of `repeat`, after one that is not counted."""
        work()
        self.wait()
        started = time.perf_counter()
        for _ in range(repeat):
            work()
        self.wait()
        return (time.perf_counter() - started) / repeat

    def free(self) -> int:
        return int(torch.cuda.mem_get_info()[0]) if self.cuda else 1 << 28

    def all(self, value: Any) -> list[Any]:
        """`value` of every rank, in their order."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values


def say(text: str) -> None:
    sys.stdout.write(MARK + text + "\n")
    sys.stdout.flush()


def pci_address(index: int) -> str:
    """Of the GPU that this process calls `index`, as Linux writes it; "" where neither vendor's library says."""
    for library, start, function in (
        ("libcuda.so.1", "cuInit", "cuDeviceGetPCIBusId"),
        ("libamdhip64.so", "hipInit", "hipDeviceGetPCIBusId"),
    ):
        try:
            driver, text = ctypes.CDLL(library), ctypes.create_string_buffer(32)
            if getattr(driver, start)(0) == 0 and getattr(driver, function)(text, len(text), index) == 0:
                return text.value.decode().lower()
        except (OSError, AttributeError):
            continue
    return ""


def bind_to_gpu_node(address: str, root: str = "/sys") -> int | None:
    """Bind this process to the processors of the NUMA node at which a GPU hangs, so that memory it pins lies there; the
    number of that node. None where nobody says: a machine with one node, or a virtual one that hides it (-1)."""
    try:
        with open(f"{root}/bus/pci/devices/{address}/numa_node", encoding="ascii") as stream:  # noqa: PTH123
            numa = int(stream.read())
        if numa < 0:
            return None
        with open(f"{root}/devices/system/node/node{numa}/cpulist", encoding="ascii") as stream:  # noqa: PTH123
            spans = [span.split("-") for span in stream.read().strip().split(",") if span]
        os.sched_setaffinity(0, {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)})
    except (OSError, ValueError):
        return None
    return numa


def copies(node: Node) -> dict[str, Any]:
    """Host to device, device to host, device memory (read and write) and to the next GPU, GB/s.

    What crosses a wire that GPUs may share is done one GPU at a time: two GPUs of a p4d share one uplink to the host,
    and the published rates that a GPU is held to (limits.yaml) are those of one alone. The host's memory is that of the
    GPU's own NUMA node: `numa_node` is its number, None where the process could not be bound to one.
    """
    numa = bind_to_gpu_node(pci_address(node.local)) if node.cuda else None
    size = min(COPY, node.free() // 8) if not node.tiny else 1 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=node.cuda)
    host.zero_()  # its pages are made by the first touch, here
    source = torch.zeros(size, dtype=torch.uint8, device=node.device)
    target = torch.empty_like(source)
    rates: dict[str, Any] = {
        "numa_node": numa,
        "h2d_gbps": None,
        "d2h_gbps": None,
        "memory_gbps": 2 * size / node.seconds(lambda: target.copy_(source), 20) / 1e9,
        "peer_gbps": None,
    }
    count = torch.cuda.device_count() if node.cuda else 0
    for turn in range(node.processes):
        node.barrier()
        if turn != node.local:
            continue
        rates["h2d_gbps"] = size / node.seconds(lambda: source.copy_(host, non_blocking=True), COPIES) / 1e9
        rates["d2h_gbps"] = size / node.seconds(lambda: host.copy_(source, non_blocking=True), COPIES) / 1e9
        if count > 1 and node.local < count:
            peer = torch.device("cuda", (node.local + 1) % count)
            away = torch.empty(size, dtype=torch.uint8, device=peer)
            rates["peer_gbps"] = size / node.seconds(partial(away.copy_, source), 10) / 1e9
            del away
    node.barrier()
    return rates


def pattern(length: int, seed: int, device: Any) -> Any:
    """So many words of 64 bits that depend on their index and on `seed`, made on `device` itself."""
    return (torch.arange(length, dtype=torch.int64, device=device) * ODD) ^ seed


def wrong_bytes(copy: Any, seed: int) -> int:
    """How many bytes of `copy` differ from the pattern, which is made again on the device that the copy is on."""
    expected = pattern(copy.numel(), seed, copy.device)
    return int((copy.view(torch.uint8) != expected.view(torch.uint8)).sum())


def copied_wrong(source: Any, target: Any, seed: int) -> int:
    """Copy `source`, whose pattern has that seed, over a `target` that holds its inverse; a write that is dropped, and
    one that nobody made, are wrong bytes as well."""
    target.copy_(~pattern(target.numel(), seed, target.device))
    target.copy_(source)
    return wrong_bytes(target, seed)


def compare_copies(node: Node) -> dict[str, Any]:
    """How many bytes arrive wrong: from the host to this process's GPU and back, and, of the first process, from each
    GPU of the node to each other one (`wrong_peers`: [from, to, wrong bytes or None] of every ordered pair).

    PyTorch takes peer access where the driver offers it, which is the path that NCCL's P2P takes too. A driver that
    has no more peer mappings to give (eight on PCIe) leaves a pair uncompared: None. One process does all pairs,
    because a process takes some hundred MiB of each GPU that it touches.
    """
    length = (PATTERN_BYTES if not node.tiny else 1 << 16) // 8
    seed = int.from_bytes(os.urandom(7), "little")
    host = torch.empty(length, dtype=torch.int64, pin_memory=node.cuda)
    local = torch.empty(length, dtype=torch.int64, device=node.device)
    host.copy_(pattern(length, seed, "cpu"))
    result: dict[str, Any] = {"wrong_h2d": copied_wrong(host, local, seed)}
    local.copy_(pattern(length, seed + 1, node.device))
    result["wrong_d2h"] = copied_wrong(local, host, seed + 1)
    del host, local
    if node.local == 0:
        count = torch.cuda.device_count() if node.cuda else node.processes
        devices = [torch.device("cuda", i) if node.cuda else node.device for i in range(count)]
        result["wrong_peers"] = compare_peers(devices, length, seed + 1)
    node.barrier()
    return result


def compare_peers(devices: list[Any], length: int, seed: int) -> list[list[int | None]]:
    """[from, to, wrong bytes] of every ordered pair of GPUs; each pair has a pattern of its own."""
    rows: list[list[int | None]] = []
    for i, giver in enumerate(devices):
        for j, taker in enumerate(devices):
            if i == j:
                continue
            seed += 1
            source = pattern(length, seed, giver)
            target = torch.empty(length, dtype=torch.int64, device=taker)
            try:
                wrong: int | None = copied_wrong(source, target, seed)
            except RuntimeError as error:
                if "peer mapping resources exhausted" not in str(error):
                    raise
                wrong = None
            rows.append([i, j, wrong])
    return rows


def compute(node: Node, seconds: float) -> dict[str, Any]:
    """Matrix products for so long: TFLOP/s at the start and over the last second, and whether every product of the same
    matrices was the same to the bit."""
    side = MATRIX if not node.tiny else 128
    make = torch.Generator().manual_seed(7)
    a = torch.randn(side, side, generator=make).to(node.device, node.dtype)
    b = torch.randn(side, side, generator=make).to(node.device, node.dtype)
    weights = torch.arange(1, side + 1, device=node.device, dtype=torch.int64)

    def digest(product: Any) -> int:
        return int((product.view(torch.int16).to(torch.int64).sum(0) * weights).sum())

    first = digest(a @ b)
    wrong, started = 0, time.perf_counter()
    rates: list[float] = []
    step = max(1, int(0.25 / max(node.seconds(lambda: a @ b, 3), 1e-6))) if not node.tiny else 2
    while True:
        took = node.seconds(lambda: torch.mm(a, b), step)
        rates.append(2 * side**3 / took / 1e12)
        wrong += digest(a @ b) != first
        if time.perf_counter() - started > seconds:
            break
    last = rates[-4:]
    return {"tflops": rates[0], "tflops_last": sum(last) / len(last), "digest": first, "wrong_products": wrong}


def all_reduce(node: Node, budget: float, largest: int) -> tuple[list[dict[str, float]], int]:
    """Bus bandwidth by message size, GB/s, and how many values were wrong: every rank gives 1, so every value is the
    number of ranks."""
    rows: list[dict[str, float]] = []
    wrong, until = 0, time.perf_counter() + budget
    sizes = ALL_REDUCE if not node.tiny else (1 << 16, 1 << 18)
    for size in sizes:
        fits = node.free() - 2 * GIB > size if node.cuda else True
        # Everybody does the same sizes: the one with the least room and the least time decides.
        if not all(node.all(fits and time.perf_counter() < until)) or size > largest:
            break
        values = torch.ones(size // 2, dtype=node.dtype, device=node.device)
        dist.all_reduce(values)
        wrong += int((values != node.ranks).sum())
        values.fill_(0)
        took = max(node.all(node.seconds(partial(dist.all_reduce, values), 5 if not node.tiny else 2)))
        rows.append({"bytes": size, "busbw_gbps": size / took / 1e9 * 2 * (node.ranks - 1) / node.ranks})
        del values
        if took * 6 * 2 > until - time.perf_counter():
            break
    return rows, sum(node.all(wrong))


def latency(node: Node) -> float:
    """Microseconds of an all_reduce of one value: the median of rounds, each timed for itself by every rank and counted
    at its slowest."""
    value = torch.ones(1, dtype=node.dtype, device=node.device)
    rounds = sorted(max(node.all(node.seconds(partial(dist.all_reduce, value), SMALL))) for _ in range(5))
    return float(rounds[2] * 1e6)


def transports(log: str) -> dict[str, int]:
    """How NCCL's channels run, counted: P2P, SHM, NET/IB, NET/Socket …, with +GDR where the card reads the GPU's memory
    itself; NVLS where the switch adds up. The log is removed."""
    counts: dict[str, int] = {}
    try:
        with open(log, errors="replace", encoding="utf-8") as stream:  # noqa: PTH123
            for line in stream:
                if match := re.search(r" via (NET/[^/]+|[A-Z0-9]+)", line):
                    transport = match[1].strip() + ("+GDR" if "/GDRDMA" in line else "")
                    counts[transport] = counts.get(transport, 0) + 1
                elif "NVLS comm" in line or "NVLS multicast" in line:
                    counts["NVLS"] = counts.get("NVLS", 0) + 1
        os.unlink(log)  # noqa: PTH108
    except OSError:
        pass
    return counts


def train(node: Node) -> dict[str, float]:
    """The reference model, data parallel: samples/s of all ranks together and the loss at both ends."""
    torch.manual_seed(7)
    size = TINY if node.tiny else MODEL
    layer = torch.nn.TransformerEncoderLayer(
        size["width"], size["heads"], 4 * size["width"], dropout=0.0, batch_first=True, norm_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Embedding(size["vocabulary"], size["width"]),
        torch.nn.TransformerEncoder(layer, size["layers"], enable_nested_tensor=False),
        torch.nn.Linear(size["width"], size["vocabulary"]),
    ).to(node.device)
    if node.ranks > 1:
        ids = [node.local] if node.cuda else None
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    token_ids = torch.randint(size["vocabulary"], (size["batch"], size["tokens"] + 1), device=node.device)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(node.device.type, torch.bfloat16, enabled=node.dtype == torch.bfloat16):
            logits = model(token_ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), token_ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    first = float(step().detach())
    node.barrier()
    took = node.seconds(step, size["steps"])
    last = float(step().detach())
    took = max(node.all(took))
    return {"samples_per_s": size["batch"] * node.ranks / took, "loss_first": first, "loss_last": last}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the matrix products go on")
    parser.add_argument("--budget", type=float, default=90.0, help="most seconds for the messages of all_reduce")
    parser.add_argument("--largest", type=int, default=16, help="largest message, GiB")
    parser.add_argument("--only", choices=("all_reduce",))
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    log = f"/tmp/gpuprov-nccl.{os.getpid()}"  # noqa: S108 (of a container that is thrown away, or removed below)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=log)
    node = Node(arguments.tiny)
    if node.ranks > 1:
        # Gloo carries the small talk, so that a broken NCCL is told by all_reduce and not by the first barrier.
        dist.init_process_group("cpu:gloo,cuda:nccl" if node.cuda else "gloo")
    measures: dict[str, Any] = {}
    if arguments.only is None:
        node.phase("copies")
        measures.update(copies(node))
        measures.update(compare_copies(node))
        if node.cuda:
            torch.cuda.empty_cache()
        node.phase("compute")
        measures.update(compute(node, arguments.seconds))
        if node.cuda:
            torch.cuda.empty_cache()
    node.phase("all_reduce")
    reached, wrong = all_reduce(node, arguments.budget, arguments.largest * GIB) if node.ranks > 1 else ([], 0)
    apart = latency(node) if arguments.only is not None and node.ranks > 1 else None
    trained = None
    if arguments.only is None:
        node.phase("train")
        trained = train(node)
    channel_counts = node.all(transports(log))
    gpus = node.all(dict(measures, rank=node.rank, index=node.local, host=os.environ.get("GROUP_RANK", "0")))
    counted = {
        transport: sum(counts.get(transport, 0) for counts in channel_counts)
        for transport in sorted(set().union(*channel_counts))
    }
    nccl = torch.cuda.nccl.version() if node.cuda and torch.version.cuda else None
    if node.rank == 0:
        result = {
            "torch": torch.__version__, "cuda": torch.version.cuda, "device": node.device.type, "ranks": node.ranks,
            "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
            "dtype": str(node.dtype).removeprefix("torch."), "gpus": gpus, "all_reduce": reached, "wrong": wrong,
            "train": trained, "transports": counted, "latency_us": apart,
        }  # fmt: skip
        say("result " + json.dumps(result))
    if node.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
