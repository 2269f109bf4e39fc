"""Machines, days, cost, failures and checkpoints of a training."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.workloads.document import document, survey
from provisioner.workloads.memory import KINDS
from provisioner.workloads.ranges import Range
from provisioner.workloads.shapes import published_model, scaled_model
from provisioner.workloads.sizing import MachineSize, Request, advice, failure_rate, recommend, size_machine, strategies

CATALOG = load()
GIB = 2**30
REQUEST = Request(published_model("mpt-7b", 2048), 1e11, 2048)


def sized(machine: str, request: Request = REQUEST) -> MachineSize:
    return size_machine(request, CATALOG.machine(machine), CATALOG)


def test_a_small_model_fits_with_ddp_and_the_advice_says_so() -> None:
    result = sized("p4de.24xlarge", replace(REQUEST, model=scaled_model(1e9, 2048)))
    assert advice(result) == "DDP fits"
    assert result.recommended is not None and result.recommended.layout.kind == "DDP"


def test_a_model_that_needs_more_than_a_gpu_gets_sharded() -> None:
    result = sized("p4de.24xlarge", replace(REQUEST, model=scaled_model(13e9, 2048)))
    assert advice(result).startswith("DDP needs ")
    assert result.recommended is not None and result.recommended.layout.kind in ("ZeRO-2", "FSDP")
    assert [row.layout.kind for row in result.strategies] == list(KINDS)


def test_a_huge_model_does_not_fit_on_few_small_gpus() -> None:
    result = sized("g5.48xlarge", replace(REQUEST, model=published_model("llama3-405b", 2048), gpus=8))
    assert result.recommended is None and result.days is None and result.throughput is None
    assert advice(result).startswith("no strategy fits in 22 GiB on 8 GPUs")


def test_days_cost_and_failures_of_a_known_run() -> None:
    """7.2 days at 10,000 tokens/s of each of 16 GPUs: by hand from the range of the rate."""
    result = sized("p5.48xlarge", replace(REQUEST, gpus=16))
    assert result.throughput is not None and result.days is not None and result.cost is not None
    low, high = result.throughput.rate
    assert result.days == Range(pytest.approx(1e11 / high / 16 / 86400), pytest.approx(1e11 / low / 16 / 86400))
    assert result.cost.total is not None and result.failures is not None
    assert result.cost.total.low == pytest.approx(result.days.low * 24 * 2 * result.cost.price.price)
    rate = failure_rate()
    assert result.failures.high == pytest.approx(rate.high * 16 * result.days.high)
    assert rate == Range(pytest.approx(2.34 / 8000), pytest.approx(6.5 / 8000))
    assert result.between_failures.low == pytest.approx(24 / (16 * rate.high))


def test_llama_3_had_the_failures_that_its_rate_gives() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs (arXiv:2407.21783)."""
    assert failure_rate().times(54 * 16384).contains(419)


def test_the_interval_of_checkpoints_is_youngs() -> None:
    result = sized("p5.48xlarge", replace(REQUEST, gpus=16, write_rate=10))
    assert result.interval is not None and result.overhead is not None
    write_hours = 14 * REQUEST.model.parameters / 10e9 / 3600
    assert result.interval.high == pytest.approx(sqrt(2 * write_hours * result.between_failures.high))
    assert 0 < result.overhead.low < result.overhead.high < 0.05
    unknown = sized("p5.48xlarge", replace(REQUEST, gpus=16))
    assert unknown.interval is None and any("--write-rate" in text for text in unknown.unknown)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ("g5.48xlarge", "no published training throughput of A10G in bf16"),
        ("p5en.48xlarge", "no published training throughput of H200-SXM5-141GB in bf16; published for --precision fp8"),
    ],
)
def test_days_without_published_runs_are_unknown(machine: str, reason: str) -> None:
    result = sized(machine, replace(REQUEST, gpus=8))
    assert result.days is None and result.failures is None
    assert any(reason in text for text in result.unknown)
    assert result.recommended is not None


@pytest.mark.parametrize(
    ("machine", "gpus", "reason"),
    [
        ("ecs.ebmgn7e.32xlarge", 16, "the published runs have RDMA between machines"),
        ("p5.4xlarge", 16, "the published runs have NVLink"),
    ],
)
def test_days_on_another_network_are_unknown(machine: str, gpus: int, reason: str) -> None:
    result = sized(machine, replace(REQUEST, gpus=gpus))
    assert result.days is None and any(reason in text for text in result.unknown)


def test_a_slower_network_and_a_larger_run_are_said() -> None:
    result = sized("p4d.24xlarge", replace(REQUEST, gpus=512))
    assert result.days is not None
    assert any("1600 Gbit/s between machines, these have 400" in text for text in result.unknown)
    assert any("rate on more than 128 GPUs" in text for text in result.unknown)


def test_a_rate_of_other_sizes_is_said() -> None:
    result = sized("p6-b200.48xlarge", replace(REQUEST, precision="fp8"))
    assert "rate at this size and sequence: fewer than two such runs are published" in " ".join(result.unknown)
    assert "llama3-8b, llama3-405b" in " ".join(result.unknown)
    assert not any("rate at this size" in text for text in sized("p5.48xlarge").unknown)


def test_gpus_that_are_no_whole_machines_are_refused() -> None:
    with pytest.raises(GpuprovError) as raised:
        sized("p5.48xlarge", replace(REQUEST, gpus=12))
    assert "--gpus 12 is not a multiple of the 8 GPUs of p5.48xlarge" in raised.value.message
    assert raised.value.hint == "such as --gpus 8"


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(GpuprovError, match=r"m7i\.large has no GPU"):
        sized("m7i.large")


def test_price_of_a_region() -> None:
    prices = {price.region: price.price for price in CATALOG.prices(CATALOG.machine("p5.48xlarge"))}
    region = max(prices, key=lambda name: prices[name])
    result = sized("p5.48xlarge", replace(REQUEST, region=region))
    assert result.cost is not None and result.cost.price.price == prices[region]
    cheapest = sized("p5.48xlarge")
    assert cheapest.cost is not None and cheapest.cost.price.price == min(prices.values())
    missing = sized("p5.48xlarge", replace(REQUEST, region="eastus"))
    assert missing.cost is None and any("list price" in text for text in missing.unknown)


@settings(deadline=None)
@given(
    st.floats(min_value=5e8, max_value=2e11),
    st.floats(min_value=1e9, max_value=5e12),
    st.integers(min_value=1, max_value=200),
    st.sampled_from(["p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "dgx-h100"]),
)
def test_a_deadline_is_met(count: float, tokens: float, deadline: int, machine: str) -> None:
    request = Request(scaled_model(count, 2048), tokens, 2048, deadline=float(deadline))
    result = sized(machine, request)
    assert result.days is not None
    assert result.days.high <= deadline * (1 + 1e-6)
    assert 1 <= result.machines.low <= result.machines.high
    repeated = sized(machine, replace(request, deadline=None, gpus=result.gpus))
    assert repeated.days == result.days


@settings(deadline=None)
@given(st.floats(min_value=5e8, max_value=2e11), st.integers(min_value=1, max_value=64))
def test_more_gpus_never_fit_worse(count: float, machines: int) -> None:
    request = Request(scaled_model(count, 4096), 1e11, 4096)
    machine = CATALOG.machine("p4de.24xlarge")
    verdicts = ["fits", "may fit", "does not fit"]
    fewer, more = (strategies(request, machine, number) for number in (machines, 2 * machines))
    by_kind = {row.layout.kind: row for row in fewer}
    for row in more:
        assert verdicts.index(row.verdict) <= verdicts.index(by_kind[row.layout.kind].verdict)
    chosen = recommend(more)
    assert chosen is None or chosen.verdict != "does not fit"


def test_the_survey_sorts_and_says_what_is_left_out() -> None:
    answer = survey(replace(REQUEST, deadline=7.0), CATALOG)
    prices = [
        row.cost.total.low for row in answer.machines if row.cost and row.cost.total and row.cost.currency == "USD"
    ]
    assert prices == sorted(prices) and prices
    names = {row.machine for row in answer.machines}
    excluded = {name for row in answer.left_out for name in row.machines}
    retired = {machine.name for machine in CATALOG.listed.values() if machine.retired or not machine.gpu_count}
    assert names | excluded | retired == set(CATALOG.listed)
    assert not names & excluded


def test_the_survey_takes_whole_machines_and_a_region() -> None:
    answer = survey(replace(REQUEST, gpus=4), CATALOG)
    assert any("4 GPUs are not whole machines" in row.reason for row in answer.left_out)
    regional = survey(replace(REQUEST, region="us-east-1"), CATALOG)
    assert {row.cost.region for row in regional.machines if row.cost} == {"us-east-1"}


def test_parts_add_up_in_the_document() -> None:
    answer = document(REQUEST, [CATALOG.machine("p4d.24xlarge")], CATALOG)
    (row,) = answer.machines
    for strategy in row.strategies:
        assert sum(part.bytes.high for part in strategy.parts) == pytest.approx(strategy.total.high, rel=0.001)
    assert answer.checkpoint.high == pytest.approx(14 * REQUEST.model.parameters, rel=0.001)
    assert row.spot.startswith("moves with the market: `gpuprov cost --machine p4d.24xlarge`")
    baremetal = document(REQUEST, [CATALOG.machine("dgx-h100")], CATALOG).machines[0]
    assert baremetal.spot == "baremetal sells no spot machines"
