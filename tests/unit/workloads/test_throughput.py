"""Published training runs against the estimate: the formula reproduces each, and the range made of the other runs
contains it within 10 %, or the row is one of MISSES, which docs/guides/size.md lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.workloads import published
from provisioner.workloads.published import Measurement
from provisioner.workloads.ranges import Range
from provisioner.workloads.shapes import parameters, published_model, scaled_model, token_operations
from provisioner.workloads.throughput import Throughput, estimate, training_days
from tests.support.sandbox_cluster import ROOT

ROWS = published.measurements()
TOLERANCE = 0.1
MISSES = {
    "mpt-70b on 32 × H100-SXM5-80GB, sequence 2048, bf16, recompute full": -12,
    "mpt-3b on 8 × H100-SXM5-80GB, sequence 32768, bf16, recompute full": -14,
    "mpt-3b on 8 × H100-SXM5-80GB, sequence 32768, fp8, recompute full": -18,
    "mpt-30b on 8 × A100-SXM4-80GB, sequence 8192, bf16, recompute full": -19,
    "mpt-3b on 8 × A100-SXM4-80GB, sequence 32768, bf16, recompute full": -15,
    "mpt-760m on 8 × A100-SXM4-80GB, sequence 1024, bf16, recompute none": -16,
    "mpt-70b on 64 × A100-SXM4-40GB, sequence 2048, bf16, recompute full": -27,
    "mpt-1b on 32 × A100-SXM4-40GB, sequence 2048, bf16, recompute none": -11,
    "llama3-8b on 8 × H100-SXM5-80GB, sequence 8192, fp8, recompute unknown": 61,
    "llama3-405b on 256 × GB300, sequence 8192, fp8, recompute unknown": 15,
}
"""Conditions → per cent that the published rate is outside the range of the other runs."""
PUBLISHED_PARAMETERS = {
    "mpt-760m": 760470528, "mpt-1b": 1315950592, "mpt-3b": 2651837440, "mpt-7b": 6658859008, "mpt-13b": 12853954560,
    "mpt-30b": 29975214080, "mpt-70b": 64862437376,
}  # fmt: skip
"""NumParams of the rows with sequence 2048: github mosaicml/llm-foundry scripts/train/benchmarking/README.md."""


def rate_of_source(row: Measurement) -> float | None:
    """Tokens/s from the source's own MFU or TFLOP/s; None where it gives neither."""
    model = published_model(row.model, row.sequence)
    operations = token_operations(model, row.sequence, published.measurement_sources()[row.source].counts)
    if row.tflops is not None:
        return row.tflops * 1e12 / operations
    if row.mfu is None:
        return None
    peak = published.peaks()[row.gpu].bf16
    if row.precision == "fp8" and row.source == "llm-foundry":  # against the peak in FP8, twice that in bf16
        peak *= 2
    return row.mfu / 100 * peak * 1e12 / operations


def estimate_for(row: Measurement, rows: Sequence[Measurement]) -> Throughput:
    """The estimate under the conditions of a row, from those rows."""
    recompute = None if row.recompute == "unknown" else row.recompute
    model = published_model(row.model, row.sequence)
    throughput = estimate(model, row.gpu, row.sequence, row.precision, recompute, rows)
    assert throughput is not None
    return throughput


def outside_percent(throughput: Throughput, rate: float) -> float:
    """Per cent by which a rate is below (negative) or above the range; 0 inside."""
    if rate < throughput.rate.low:
        return 100 * (rate / throughput.rate.low - 1)
    return 100 * max(0.0, rate / throughput.rate.high - 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.conditions)
def test_the_formula_gives_the_published_rate(row: Measurement) -> None:
    expected = rate_of_source(row)
    if expected is None:
        assert row.source == "torchtitan-h200"
        return
    assert expected == pytest.approx(row.rate, rel=TOLERANCE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.conditions)
def test_the_other_runs_give_the_published_rate_or_it_is_a_listed_miss(row: Measurement) -> None:
    throughput = estimate_for(row, [other for other in ROWS if other is not row])
    if throughput.rate.contains(row.rate, TOLERANCE):
        assert row.conditions not in MISSES
    else:
        assert round(outside_percent(throughput, row.rate)) == MISSES[row.conditions]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.conditions)
def test_with_all_runs_the_range_contains_the_published_rate(row: Measurement) -> None:
    assert estimate_for(row, ROWS).rate.contains(row.rate, TOLERANCE)


def test_the_guide_lists_the_misses() -> None:
    """docs/guides/size.md, the table of misses."""
    guide = (ROOT / "docs/guides/size.md").read_text(encoding="utf-8")
    table = guide.partition("| published run |")[2].partition("\n\n")[0]
    listed = dict(re.findall(r"^\| (.+?) \| [^|]+ \| ([+-]\d+) % \|$", table, re.M))
    assert listed == {conditions: f"{percent:+d}" for conditions, percent in MISSES.items()}
    estimates = [(row, estimate_for(row, [other for other in ROWS if other is not row]).rate) for row in ROWS]
    middles = sum(abs((rate.low * rate.high) ** 0.5 / row.rate - 1) <= TOLERANCE for row, rate in estimates)
    width = median(rate.high / rate.low - 1 for _, rate in estimates)
    assert f"{width:.0%}".replace("%", " %") + " above the lower one" in guide
    assert f"published rate for {middles} runs" in guide
    assert f"{len(ROWS)} published runs" in guide and f"{len(ROWS) - len(MISSES)} of them" in guide


@pytest.mark.parametrize(("name", "count"), PUBLISHED_PARAMETERS.items())
def test_parameters_of_a_shape(name: str, count: int) -> None:
    assert parameters(published.shape(name), 2048) == pytest.approx(count, rel=0.001)


def test_every_row_is_of_a_known_model_gpu_and_source() -> None:
    gpus = {gpu.model for gpu in load().gpus()}
    for row in ROWS:
        assert row.model in published.shapes()
        assert row.gpu in gpus
        assert row.source in published.measurement_sources()
    assert {peak.gpu for peak in published.peaks().values()} <= gpus
    assert all(published.shape_source(row) for row in published.shapes().values())
    assert all(row.source for row in (*published.peaks().values(), *published.failure_rates()))


@given(st.floats(min_value=1e9, max_value=1e12), st.integers(min_value=128, max_value=32768))
def test_a_scaled_shape_has_the_parameters_that_it_is_scaled_to(count: float, sequence: int) -> None:
    model = scaled_model(count, sequence)
    assert parameters(model.shape, sequence) == pytest.approx(count, rel=0.15)
    assert model.parameters == count
    assert model.shape.heads % model.shape.kv_heads == 0 or model.shape.kv_heads == 8


@given(st.integers(min_value=1, max_value=4096), st.floats(min_value=1e6, max_value=1e13))
def test_time_falls_with_gpus_and_grows_with_tokens(gpus: int, tokens: float) -> None:
    throughput = estimate(published_model("mpt-7b", 2048), "A100-SXM4-80GB", 2048, "bf16")
    assert throughput is not None
    days = training_days(throughput, tokens, gpus)
    assert 0 < days.low <= days.high
    more_gpus, more_tokens = training_days(throughput, tokens, gpus + 1), training_days(throughput, 2 * tokens, gpus)
    assert more_gpus.low < days.low and more_gpus.high < days.high
    assert more_tokens == Range(pytest.approx(2 * days.low), pytest.approx(2 * days.high))


def test_a_gpu_without_published_runs_is_unknown() -> None:
    model = published_model("mpt-7b", 2048)
    assert estimate(model, "T4", 2048, "bf16") is None
    assert estimate(model, "H200-SXM5-141GB", 2048, "bf16") is None


def test_fewer_than_two_similar_runs_widen_the_condition() -> None:
    throughput = estimate(published_model("llama3-405b", 8192), "B200-SXM6-180GB", 8192, "fp8")
    assert throughput is not None
    assert throughput.similarity.startswith("the models of the nearest sizes")
    assert {row.model for row in throughput.rows} == {"llama3-8b", "llama3-405b"}
    assert throughput.rate.low < throughput.rate.high
    assert throughput.largest_run == 128
    assert not throughput.is_similar


def test_mfu_of_a_published_run() -> None:
    rows = [row for row in ROWS if row.model == "mpt-7b" and row.gpu == "A100-SXM4-80GB" and row.sequence == 2048]
    throughput = estimate(published_model("mpt-7b", 2048), "A100-SXM4-80GB", 2048, "bf16", "none", rows)
    assert throughput is not None and throughput.mfu is not None
    assert throughput.mfu.low == pytest.approx(0.6423, rel=0.001)
