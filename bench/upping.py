"""How long `up` takes: with nothing cached (--cold), with the image cached, and with nothing to do; and its memory."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.fleet import Fleet
from bench.measure import Done, Failed, Timing, run
from bench.promises import Promise

NODES = 4
COLD_S, WARM_S = 300.0, 90.0
MEMORY_MIB = 4096.0
SECOND = 0.10
SECOND_OF_SIXTEEN = 0.05


def measure(*, cold: bool, reruns: int) -> list[Promise]:
    """Four p4d nodes: the first `up`, `reruns` more with nothing to do, and what all of it weighs."""
    promises = _cold() if cold else []
    with Fleet.of_example("aws-p4d", NODES) as fleet:
        fleet.warm_cache()
        first = run(fleet.up, weigh=True)
        second = Timing(tuple(run(fleet.up).seconds for _ in range(reruns)))
        changes = json.loads(run(fleet.up).stdout)["changes"]
        nodes = _nodes_mib(fleet.name)
    if changes != {"resources": 0, "configured": 0}:
        raise AssertionError(f"a second `up` changed something: {changes}")
    total = first.peak_mib + nodes
    return [
        *promises,
        Promise(
            f"`up`, {NODES} p4d nodes, image cached", f"at most {WARM_S:g} s", f"{first.seconds:.1f} s",
            first.seconds, WARM_S, unit="s",
        ),
        Promise(
            "a second `up` with nothing to do", "at most 0.10 × the first", f"{second} against {first.seconds:.1f} s",
            second.median / first.seconds, SECOND, numbers={"second": second.runs, "first": first.seconds},
        ),
        Promise(
            f"memory of `up` and its {NODES} nodes", "at most 4 GiB",
            f"{first.peak_mib:.0f} MiB gpuprov and its children at their peak, {nodes:.0f} MiB nodes and mirror",
            total, MEMORY_MIB, unit="MiB", numbers={"gpuprov_mib": first.peak_mib, "nodes_mib": nodes},
        ),
    ]  # fmt: skip


def measure_rerun(fleet: Fleet, first: Done, nodes: int, runs: int) -> Promise:
    """`up` on a fleet that its first `up` has just made: what asking every node and finding nothing costs."""
    seconds = []
    for _ in range(runs):
        done = run(fleet.up)
        seconds.append(done.seconds)
        changes = json.loads(done.stdout)["changes"]
        if changes != {"resources": 0, "configured": 0}:
            raise Failed(f"`up` with nothing to do changed something: {changes}")
    second = Timing(tuple(seconds))
    return Promise(
        f"a second `up` with nothing to do, {nodes} nodes", f"at most {SECOND_OF_SIXTEEN:.2f} × the first",
        f"{second} against {first.seconds:.1f} s", second.median / first.seconds, SECOND_OF_SIXTEEN,
        numbers={"second": second.runs, "first": first.seconds},
    )  # fmt: skip


def _cold() -> list[Promise]:
    """`up` with an empty cache and an empty podman storage of its own; nobody else's images are touched."""
    with _empty() as environment, Fleet.of_example("aws-p4d", NODES, environment) as fleet:
        first = run(fleet.up, env=environment)
    return [
        Promise(
            f"`up`, {NODES} p4d nodes, nothing cached", f"at most {COLD_S:g} s", f"{first.seconds:.1f} s",
            first.seconds, COLD_S, unit="s",
        )
    ]  # fmt: skip


@contextmanager
def _empty() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-cold-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        storage = folder / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
        environment = {"XDG_CACHE_HOME": str(folder / "cache"), "CONTAINERS_STORAGE_CONF": str(storage)}
        try:
            yield environment
        finally:
            subprocess.run(["umount", "-q", f"{folder}/graph/overlay"], check=False, capture_output=True)


def _nodes_mib(cluster: str) -> float:
    """What podman says that the containers of a cluster use now, MiB."""
    listed = run(["podman", "ps", "--filter", f"label=gpuprov.cluster={cluster}", "--format", "{{.ID}}"]).stdout.split()
    stats = json.loads(run(["podman", "stats", "--no-stream", "--format", "json", *listed]).stdout)
    return sum(_mib(row["mem_usage"].split("/")[0].strip()) for row in stats)


def _mib(text: str) -> float:
    """podman's "123.4MB" (decimal) in MiB."""
    factors = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0}
    for unit, factor in factors.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor / 2**20
    raise ValueError(text)
