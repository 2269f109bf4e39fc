"""What a run reached, by its metrics, and how that is compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.workloads import benchmarks, recipe

CONDITIONS = {
    "model": "resnet50", "unit": "images", "operations_per_unit": 25e9, "batch": 256, "precision": "bf16", "gpus": 8,
    "gpus_per_node": 8, "device": "NVIDIA H100 80GB HBM3", "torch": "2.9.0", "cuda": "13.0", "nccl": "2.27.7",
}  # fmt: skip


def metrics(seconds: list[float], **changes: Any) -> str:
    rows: list[dict[str, Any]] = [{"conditions": {**CONDITIONS, **changes}}]
    rows += [
        {"step": step, "loss": 7.0 - step / 100, "seconds": taken, "samples": 2048, "peak_bytes": 40 * 2**30}
        for step, taken in enumerate(seconds, 1)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_median_of_the_steps_behind_the_first_counts() -> None:
    measured = benchmarks.read(metrics([9.0] * 20 + [0.1] * 90 + [0.2] * 10), 989.0)
    assert (measured.steps, measured.gpus, measured.unit) == (100, 8, "images")
    assert measured.rate == pytest.approx(20480) and measured.fast == pytest.approx(20480)
    assert measured.slow < measured.rate
    assert measured.mfu == pytest.approx(20480 * 25e9 / (8 * 989e12))
    assert measured.peak_gib == 40.0 and measured.last_loss < measured.first_loss


def test_a_short_run_counts_its_second_half() -> None:
    assert benchmarks.read(metrics([5.0] * 5 + [0.1] * 5), None).steps == 5


def test_on_processors_there_is_no_share_of_a_peak() -> None:
    assert benchmarks.read(metrics([0.1] * 9, device="cpu"), 989.0).mfu is None
    assert benchmarks.read(metrics([0.1] * 9, operations_per_unit=None), 989.0).mfu is None


@pytest.mark.parametrize(
    "text",
    ["", "not json\n", '{"conditions": {}}\n', '{"step": 1}\n', metrics([]), metrics([0.0] * 30), "[]\n", "3\n4\n"],
)
def test_a_text_that_is_no_metrics_is_an_error(text: str) -> None:
    with pytest.raises(GpuprovError, match="not understood"):
        benchmarks.read(text, 989.0)


def test_runs_are_compared_only_where_all_conditions_are_the_same() -> None:
    measured = benchmarks.read(metrics([0.1] * 9), None)
    key = benchmarks.key(measured, "p5.48xlarge", 1, "sha256:a")
    same = benchmarks.read(metrics([0.2] * 50, torch="2.9.1", device="another name"), None)
    assert benchmarks.key(same, "p5.48xlarge", 1, "sha256:a") == key
    for changed in ({"batch": 128}, {"precision": "fp16"}, {"gpus": 4}, {"sequence": 512}):
        assert benchmarks.key(benchmarks.read(metrics([0.1] * 9, **changed), None), "p5.48xlarge", 1, "sha256:a") != key
    for machine, nodes, image in (
        ("p5e.48xlarge", 1, "sha256:a"),
        ("p5.48xlarge", 2, "sha256:a"),
        ("p5.48xlarge", 1, "b"),
    ):
        assert benchmarks.key(measured, machine, nodes, image) != key


def test_a_node_is_slow_beside_at_least_two_others() -> None:
    assert benchmarks.slow_peers({"a": 100.0, "b": 101.0, "c": 90.0}) == {"c": 0.9}
    assert benchmarks.slow_peers({"a": 100.0, "b": 101.0, "c": 97.0}) == {}
    assert benchmarks.slow_peers({"a": 100.0, "b": 50.0}) == {}


def test_published_runs_are_of_models_and_gpus_that_there_are() -> None:
    gpus = {gpu.model for gpu in catalog.load().gpus()}
    for row in benchmarks.published():
        assert row.model in benchmarks.MODELS and row.gpu in gpus
        assert 0 < row.low <= row.high and row.conditions and row.source.startswith("github ")
    (row,) = benchmarks.published_for("resnet50", "H100-SXM5-80GB", 8)
    assert (row.low, row.high) == (20728, 22101)


def test_every_benchmark_has_its_recipe() -> None:
    for model in benchmarks.MODELS.values():
        assert recipe.find(model.recipe).description
