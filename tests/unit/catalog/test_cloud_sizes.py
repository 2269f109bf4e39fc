"""data/cloud_sizes.yaml is what scripts/cloud_sizes.py makes of its lists, and agrees with the catalogue."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import catalog, spec

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = yaml.safe_load((ROOT / "provisioner/catalog/data/cloud_sizes.yaml").read_text(encoding="utf-8"))
MACHINES: list[dict[str, Any]] = DOCUMENT["machines"]
FRACTIONAL: list[dict[str, Any]] = DOCUMENT["fractional"]
WITHOUT_GPUS: list[dict[str, Any]] = DOCUMENT["without_gpus"]
ROWS = [*MACHINES, *FRACTIONAL, *WITHOUT_GPUS]
REQUIRED = {"name", "provider", "gpu", "gpus", "vcpus", "memory_gib", "source"}
OPTIONAL = {"network", "local_nvme", "numa_nodes", "cpu", "retired"}


def test_the_file_is_up_to_date() -> None:
    script = ROOT / "scripts/cloud_sizes.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_names_are_unique_over_both_files() -> None:
    text = (ROOT / "provisioner/catalog/data/machines.yaml").read_text(encoding="utf-8")
    names = Counter(row["name"] for row in [*ROWS, *yaml.safe_load(text)["machines"]])
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("row", [*MACHINES, *FRACTIONAL], ids=lambda row: row["name"])
def test_a_row_names_its_gpu(row: dict[str, Any]) -> None:
    assert row["gpu"] in {gpu.model for gpu in catalog.load().gpus()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_names_its_provider_and_its_sources(row: dict[str, Any]) -> None:
    assert row["provider"] in {"aws", "azure", "alicloud", "tencent"}
    assert row["source"]
    assert set(row["source"]) <= set(DOCUMENT["sources"])
    values = [value for item in row.values() for value in (item.values() if isinstance(item, dict) else [item])]
    assert None not in values


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row["name"])
def test_a_machine_has_the_keys_of_the_short_form(row: dict[str, Any]) -> None:
    assert REQUIRED <= set(row) <= REQUIRED | OPTIONAL
    assert row["gpus"] > 0
    _check_what_every_machine_has(row)


def _check_what_every_machine_has(row: dict[str, Any]) -> None:
    assert row["vcpus"] > 0
    assert row["memory_gib"] > 0
    if network := row.get("network"):
        assert set(network) == {"kind", "ports", "rate_gbps"}
        assert network["kind"] in {"ethernet", "efa", "infiniband", "roce"}
        assert network["ports"] > 0
        assert network["rate_gbps"] > 0
    if disks := row.get("local_nvme"):
        assert set(disks) == {"count", "size_gb"}


@pytest.mark.parametrize("row", FRACTIONAL, ids=lambda row: row["name"])
def test_a_fractional_size_has_a_share(row: dict[str, Any]) -> None:
    assert set(row) == {"name", "provider", "gpu", "share", "source"}
    assert 0 < Fraction(row["share"]) <= 2


@pytest.mark.parametrize("row", WITHOUT_GPUS, ids=lambda row: row["name"])
def test_a_size_without_gpus_has_the_other_keys_of_a_machine(row: dict[str, Any]) -> None:
    assert REQUIRED - {"gpu", "gpus"} <= set(row) <= (REQUIRED | OPTIONAL) - {"gpu", "gpus"}
    _check_what_every_machine_has(row)


def test_each_cloud_has_general_purpose_sizes_of_2_to_16_vcpus() -> None:
    listed = {(row["provider"], row["vcpus"]) for row in WITHOUT_GPUS}
    assert listed == {
        (provider, vcpus) for provider in ("aws", "azure", "alicloud", "tencent") for vcpus in (2, 4, 8, 16)
    }


def test_every_size_of_the_list_without_gpus_is_in_the_file() -> None:
    lines = (ROOT / "scripts/data/cloud_sizes/without_gpus.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if line[:1] != "#")
    assert {row["name"] for row in rows} == {row["name"] for row in WITHOUT_GPUS}


def test_every_source_is_used() -> None:
    used = {key for row in ROWS for key in row["source"]}
    assert used == set(DOCUMENT["sources"])


def test_each_size_is_a_machine_type_with_what_its_list_says() -> None:
    known = catalog.load()
    for row in MACHINES:
        machine = known.machine(row["name"])
        assert (machine.provider, machine.gpu_model, machine.gpu_count) == (row["provider"], row["gpu"], row["gpus"])
        assert (machine.vcpus, machine.memory_gib) == (row["vcpus"], row["memory_gib"])
        assert machine.basis.of("vcpus") == "documented"
        assert machine.basis.is_left_out("network") == ("network" not in row)
        assert machine.basis.is_left_out("local_nvme") == ("local_nvme" not in row)
        assert known.topology(machine).keys() == set(combinations(range(row["gpus"]), 2))


def test_a_size_with_a_part_of_a_gpu_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    text = "name: a\nsites: {west: {provider: azure, region: westus}}\ngroups: {infer: {machine: %s}}\n"
    file.write_text(text % "Standard_NV6ads_A10_v5", encoding="utf-8")
    (problem,) = spec.check(file)
    assert "has 1/6 A10, which needs a vGPU driver" in problem.message


def test_the_rows_of_machines_yaml_have_the_efa_interfaces_that_the_api_says() -> None:
    lines = (ROOT / "scripts/data/cloud_sizes/aws.csv").read_text(encoding="utf-8").splitlines()
    efa_counts = {
        row["name"]: int(row["efa"] or 0) for row in csv.DictReader(line for line in lines if line[:1] != "#")
    }
    rows = {
        name: row.network for name, row in catalog.load().listed.items() if row.provider == "aws" and name in efa_counts
    }
    assert len(rows) > 15
    assert {name: network.ports if network.kind == "efa" else 0 for name, network in rows.items()} == {
        name: efa_counts[name] for name in rows
    }
