"""A healthy machine's outputs become a description, and by that description the same machine is healthy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import catalog
from provisioner.catalog.description import MachineDescription
from provisioner.cli.main import main
from provisioner.common import yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.spec.machine_types import load_machines
from provisioner.verify.description import Described, describe
from provisioner.verify.expectations import expect
from provisioner.verify.facts import read
from provisioner.verify.pytest_runner import Case
from provisioner.verify.support_bundle import read as read_bundle
from tests.support.healthy_bundle import ALL, bundle, edit, healthy, host_files, lspci, smi_xml, without_gpu
from tests.support.judging import judge

KNOWN = catalog.load()
CAPTURES = Path(__file__).parent / "captures/nvidia_smi"


def described(machine: str) -> Described:
    return describe(read(bundle(healthy(machine))), KNOWN)


@pytest.mark.parametrize("machine", ALL)
def test_a_healthy_machine_is_healthy_by_its_own_description(machine: str) -> None:
    described_machine = described(machine)
    row = KNOWN.machine(machine)
    assert (described_machine.machine["gpu"], described_machine.machine["gpus"]) == (row.gpu_model, row.gpu_count)
    description = MachineDescription.model_validate_json(json.dumps(described_machine.machine))
    known = KNOWN.with_described({described_machine.name: description})
    machine_type = known.machine(described_machine.name)
    expected = replace(expect(machine_type, known.gpu(machine_type.gpu_model), None, None, known), level="quick")
    results = judge({"node": Case(bundle(healthy(machine)), expected)})["node"].checks
    assert [(check.id, check.message) for check in results if check.status in ("fail", "warn")] == []


@pytest.mark.parametrize("machine", ["dgx-h100", "p5.4xlarge"])
def test_the_command_describes_a_machine_and_verify_takes_the_file(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """End to end, offline, with RDMA devices: InfiniBand and EFA."""
    bundle(healthy(machine)).write(tmp_path / "node")
    with pytest.raises(SystemExit) as ended:
        main(["catalog", "--from-bundle", str(tmp_path / "node")])
    assert not ended.value.code
    (tmp_path / "types.yaml").write_text(capsys.readouterr().out)
    assert "devices:" in (tmp_path / "types.yaml").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--bundle", str(tmp_path / "node"), "--machines", str(tmp_path / "types.yaml")])
    assert not ended.value.code
    assert "1 of 1 node healthy" in capsys.readouterr().out


@pytest.mark.parametrize("machine", ALL)
def test_a_machine_that_lacks_what_was_described_is_condemned(machine: str) -> None:
    described_machine = described(machine)
    more = MachineDescription.model_validate_json(
        json.dumps(described_machine.machine | {"gpus": described_machine.machine["gpus"] + 1})
    )
    known = KNOWN.with_described({"more": more})
    machine_type = known.machine("more")
    expected = expect(machine_type, known.gpu(machine_type.gpu_model), None, None, known, level="quick")
    results = judge({"node": Case(bundle(healthy(machine)), expected)})["node"].checks
    assert [check.id for check in results if check.status == "fail" and check.id == "gpu.count"] == ["gpu.count"]


def test_the_text_is_what_machines_takes(tmp_path: Path) -> None:
    described_machine = described("dgx-h100")
    file = tmp_path / "types.yaml"
    file.write_text(yaml_text.dump({"machines": {described_machine.name: described_machine.machine}}), encoding="utf-8")
    (loaded,) = load_machines(file, KNOWN).values()
    assert loaded.nvlink is not None
    assert (loaded.nvlink.topology, loaded.nvlink.links_per_gpu) == ("nvswitch", 18)
    assert loaded.network is not None
    assert loaded.network.devices[:2] == ("mlx5_0", "mlx5_3")


@pytest.mark.parametrize(
    ("capture", "gpu"),
    [
        ("rtx4000-sff-ada-595-v13.xml", ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "ada", "8.9", False)),
        ("q-rtx2080s-610.txt", ("NVIDIA GeForce RTX 2080 SUPER", 8192, "turing", "7.5", False)),
    ],
)
def test_a_product_that_the_catalogue_does_not_have(capture: str, gpu: tuple[object, ...]) -> None:
    described_machine = describe(read(read_bundle(CAPTURES / capture).bundle), KNOWN)
    assert tuple(described_machine.machine["gpu"].values()) == gpu


def test_a_machine_without_gpus_is_described_with_none() -> None:
    row = KNOWN.machine("m6i.large")
    files = {"lspci.txt": lspci(row), **host_files(row, "")}
    described_machine = describe(read(bundle(files)), KNOWN)
    assert (described_machine.machine["gpus"], "gpu" in described_machine.machine) == (0, False)
    assert described_machine.machine["vcpus"] == 2
    assert described_machine.notes == ("gpus: 0, because no GPU is on the PCI bus",)
    description = MachineDescription.model_validate_json(json.dumps(described_machine.machine))
    known = KNOWN.with_described({described_machine.name: description})
    assert known.machine(described_machine.name).gpu_count == 0
    with pytest.raises(GpuprovError, match="the outputs list no GPU"):
        describe(read(bundle({**files, "lspci.txt": lspci(KNOWN.machine("g6.xlarge"))})), KNOWN)


def test_a_machine_with_a_fault_is_refused() -> None:
    row = KNOWN.machine("p4d.24xlarge")
    files = healthy("p4d.24xlarge")
    lost = {**files, "nvidia-smi.xml": without_gpu(smi_xml(row), 3)}
    other = {**files, "nvidia-smi.xml": edit(smi_xml(row), 3, product_name="NVIDIA A100-PCIE-40GB")}
    for case, message in ((lost, "7 of 8 GPUs answer"), (other, "2 models"), ({}, "the outputs list no GPU")):
        with pytest.raises(GpuprovError, match=message):
            describe(read(bundle(case)), KNOWN)
    with pytest.raises(GpuprovError, match="is lost"):
        describe(read(read_bundle(CAPTURES / "gb200-gpu-lost-580-mock.xml").bundle), KNOWN)
