"""Memory of one GPU: published runs within 10 % of the range, and properties of the parts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner.workloads import memory as training
from provisioner.workloads.memory import KINDS, RECOMPUTES, Layout, memory
from provisioner.workloads.published import Recompute
from provisioner.workloads.ranges import total
from provisioner.workloads.shapes import Model, published_model, scaled_model

PUBLISHED = yaml.safe_load((Path(__file__).parent / "published_memory.yaml").read_text(encoding="utf-8"))["rows"]
GIB = 2**30
models = st.floats(min_value=2e8, max_value=1e12).map(lambda count: scaled_model(count, 4096))
machine_counts = st.integers(min_value=1, max_value=128)
recomputes = st.sampled_from(RECOMPUTES)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['gpus']} GPUs, {row['sequence']}, {row['how']}")
def test_a_published_run(row: dict[str, Any]) -> None:
    model = published_model(row["model"], row["sequence"])
    estimated = memory(model, Layout("FSDP", row["gpus"]), row["micro_batch"], row["sequence"], row["recompute"])
    assert estimated.allocated.times(1 / GIB).contains(row["gib"], 0.1)


def test_bytes_of_a_parameter() -> None:
    """16 bytes in DDP, 4 + 12/N, 2 + 14/N, 16/N by ZeRO stage (arXiv:1910.02054), 6 + 12/DP in Megatron."""
    model = published_model("mpt-7b", 2048)
    gpus = 8
    per_parameter = {
        kind: memory(model, Layout(kind, gpus), 1, 2048, "full").states.low / model.parameters for kind in KINDS
    }
    assert per_parameter["DDP"] == pytest.approx(16)
    assert per_parameter["ZeRO-1"] == pytest.approx(4 + 12 / gpus)
    assert per_parameter["ZeRO-2"] == pytest.approx(2 + 14 / gpus)
    assert per_parameter["ZeRO-3"] == per_parameter["FSDP"] == pytest.approx(16 / gpus)
    assert per_parameter["TP×PP"] == pytest.approx(6 + 12 / gpus)


@given(models, machine_counts, recomputes)
def test_states_fall_with_the_zero_stage(model: Model, machines: int, recompute: Recompute) -> None:
    states = [
        memory(model, Layout(kind, 8 * machines), 1, 4096, recompute).states
        for kind in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    ]
    for more, less in pairwise(states):
        assert less.low <= more.low and less.high <= more.high


@given(models, machine_counts, recomputes, st.sampled_from(KINDS))
def test_memory_never_grows_with_gpus(model: Model, machines: int, recompute: Recompute, kind: training.Kind) -> None:
    fewer, more = (memory(model, Layout(kind, gpus), 1, 4096, recompute) for gpus in (8 * machines, 16 * machines))
    assert more.total.low <= fewer.total.low and more.total.high <= fewer.total.high


@given(models, machine_counts, recomputes, st.sampled_from(KINDS), st.integers(1, 64), st.integers(128, 131072))
def test_the_total_is_the_sum_of_the_parts(
    model: Model, machines: int, recompute: Recompute, kind: training.Kind, micro_batch: int, sequence: int
) -> None:
    estimated = memory(model, Layout(kind, 8 * machines), micro_batch, sequence, recompute)
    parts = dict(estimated.parts())
    assert all(0 <= part.low <= part.high for part in parts.values())
    summed = total(parts.values())
    assert estimated.total.low == pytest.approx(summed.low) and estimated.total.high == pytest.approx(summed.high)


@given(models, st.sampled_from(KINDS), st.integers(128, 65536))
def test_activations_fall_with_recomputation_and_grow_with_tokens(
    model: Model, kind: training.Kind, sequence: int
) -> None:
    stored = [memory(model, Layout(kind, 8), 1, sequence, recompute).activations for recompute in ("none", "full")]
    if model.shape.layers > 2:
        assert stored[1].high < stored[0].high
    longer = memory(model, Layout(kind, 8), 2, sequence, "none").activations
    assert longer.low == pytest.approx(2 * stored[0].low) and longer.high == pytest.approx(2 * stored[0].high)


@given(models, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_tensor_and_pipeline_parallelism_divide_the_states(model: Model, tensor: int, pipeline: int) -> None:
    undivided = memory(model, Layout("TP×PP", 64), 1, 4096, "full").states
    divided = memory(model, Layout("TP×PP", 64 * tensor * pipeline, tensor, pipeline), 1, 4096, "full").states
    assert divided.high <= undivided.high
    assert divided.high >= undivided.high / (tensor * pipeline) * 0.999


def test_layouts_have_titles_and_copies() -> None:
    assert Layout("TP×PP", 64, 8, 4).title == "TP 8 × PP 4"
    assert Layout("TP×PP", 64, 8, 4).copies == 2
    assert Layout("FSDP", 64).title == "FSDP"
