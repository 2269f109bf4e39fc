"""One node at work against its group: the slow one is found by the check of what is slow, and nobody else."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from tests.support.healthy_bundle import bundle, expected, nth
from tests.support.healthy_load import load_files, ran, result
from tests.support.judging import judge

P4D, RTX = "p4d.24xlarge", "workstation-rtx4090"
SLOW = {check.id for check in declared() if check.id.startswith("fleet.slow_")} - {"fleet.slow_scratch"}
"""Of the load program; scratch is test_fio.py's."""
COUNT, ODD = 5, 3
BUSY = json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]})


def node(number: int, machine: str = P4D, *, gpu: dict[str, float] | None = None, **values: Any) -> dict[str, Any]:
    """A healthy node at work, a little unlike its neighbours; `gpu` is of all its GPUs, `values` of the result."""
    row = load().machine(machine)
    texts, document = dict(nth(machine, number)), deepcopy(result(row))
    texts |= load_files(row, texts)
    del texts["all_reduce.txt"]
    share = 1 + 0.002 * number
    for gpu_row in document["gpus"]:
        for name in ("h2d_gbps", "d2h_gbps", "memory_gbps", "tflops", "tflops_last"):
            gpu_row[name] *= share
        gpu_row.update(gpu or {})
    document["train"]["samples_per_s"] *= share
    texts["load.json"] = ran(document | values)
    return texts


def reduced(value: float) -> list[dict[str, float]]:
    return [{"bytes": 1 << 30, "busbw_gbps": value}]


TRAINED = {"samples_per_s": 2700.0, "loss_first": 9.1, "loss_last": 6.3}
FAULTS: dict[str, dict[str, Any]] = {
    "fleet.slow_nccl": {"all_reduce": reduced(600.0)},
    "fleet.slow_compute": {"gpu": {"tflops": 480.0, "tflops_last": 470.0}},
    "fleet.slow_memory": {"gpu": {"memory_gbps": 2300.0}},
    "fleet.slow_host_copy": {"gpu": {"h2d_gbps": 40.0}},
    "fleet.slow_training": {"train": TRAINED},
}


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases: dict[str, Case] = {}

    def group(name: str, *nodes: dict[str, Any], machine: str = P4D) -> None:
        for index, texts in enumerate(nodes):
            cases[f"{name}/{index}"] = Case(bundle(texts), expected(machine), group=name)

    group("healthy", *map(node, range(COUNT)))
    for id, fault in FAULTS.items():
        group(id, *(node(i, **(fault if i == ODD else {})) for i in range(COUNT)))
    group("all of it", *(node(i, **({"gpu": {"memory_gbps": 2300.0}, "train": TRAINED} if i == ODD else {}))
                         for i in range(COUNT)))  # fmt: skip
    group("below the limit", *(node(i, **({"all_reduce": reduced(100.0)} if i == ODD else {})) for i in range(COUNT)))
    group("busy", *(node(i) | ({"load.json": BUSY} if i == ODD else {}) for i in range(COUNT)))
    group("two", node(0), node(1, all_reduce=reduced(600.0)))
    group("one GPU", *(node(i, RTX) for i in range(3)), machine=RTX)
    return judge(cases)


def of(judged: dict[str, Judged], group: str, status: str = "fail", among: set[str] = SLOW) -> dict[str, set[str]]:
    """Node of a group → checks of that status, where there are some."""
    group_nodes = {
        name.partition("/")[2]: verdict for name, verdict in judged.items() if name.partition("/")[0] == group
    }
    assert group_nodes
    ids_by_node = {
        name: {c.id for c in node.checks if c.status == status and c.id in among} for name, node in group_nodes.items()
    }
    return {name: ids for name, ids in ids_by_node.items() if ids}


def message(judged: dict[str, Judged], node: str, id: str) -> str:
    return next(c.message for c in judged[node].checks if c.id == id)


def test_alike_nodes_are_fine(judged: dict[str, Judged]) -> None:
    assert of(judged, "healthy", "pass") == {str(i): SLOW for i in range(COUNT)}


@pytest.mark.parametrize("id", sorted(SLOW))
def test_the_slow_node_is_found_and_no_other(judged: dict[str, Judged], id: str) -> None:
    assert of(judged, id) == {str(ODD): {id}}
    everything = {c.id for c in judged[f"{id}/{ODD}"].checks}
    assert of(judged, id, among=everything) == {str(ODD): {id}}
    assert "5 nodes have a median of" in message(judged, f"{id}/{ODD}", id)


def test_slow_training_is_explained_by_what_is_slow(judged: dict[str, Judged]) -> None:
    assert of(judged, "all of it") == {str(ODD): {"fleet.slow_memory"}}
    assert "explained by fleet.slow_memory" in message(judged, f"all of it/{ODD}", "fleet.slow_training")
    both = {"nccl.bandwidth", "fleet.slow_nccl"}  # the limit is unverified: it only warns, and explains nothing
    assert of(judged, "below the limit", among={"nccl.bandwidth", *SLOW}) == {str(ODD): both}


def test_a_node_that_a_job_has_is_not_compared_and_the_others_are(judged: dict[str, Judged]) -> None:
    assert of(judged, "busy", "skip") == {str(ODD): SLOW}
    assert of(judged, "busy", "pass") == {str(i): SLOW for i in range(COUNT) if i != ODD}
    assert "a job is using the GPUs" in message(judged, f"busy/{ODD}", "fleet.slow_nccl")


def test_two_nodes_are_too_few(judged: dict[str, Judged]) -> None:
    assert of(judged, "two", "skip") == {"0": SLOW, "1": SLOW}


def test_one_gpu_reduces_with_nobody(judged: dict[str, Judged]) -> None:
    assert of(judged, "one GPU", "skip") == {str(i): {"fleet.slow_nccl"} for i in range(3)}
    assert of(judged, "one GPU", "pass") == {str(i): SLOW - {"fleet.slow_nccl"} for i in range(3)}
