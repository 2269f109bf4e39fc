"""The typed loader: lookups, errors, and the pair matrices that checks and the simulator rely on."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from provisioner import catalog
from provisioner.common.errors import GpuprovError

CATALOG = catalog.load()


def test_one_catalogue_a_process() -> None:
    assert catalog.load() is CATALOG


def test_rows_are_frozen() -> None:
    with pytest.raises(ValidationError):
        CATALOG.machine("p4d.24xlarge").gpu_count = 9  # type: ignore[misc]


def test_unknown_machine_names_the_nearest() -> None:
    with pytest.raises(GpuprovError) as caught:
        CATALOG.machine("p4d.24xlarg")
    assert "p4d.24xlarge" in caught.value.hint


def test_unknown_gpu_without_a_near_one() -> None:
    with pytest.raises(GpuprovError) as caught:
        CATALOG.gpu("@@@")
    assert "gpuprov catalog" in caught.value.hint


def test_p4d() -> None:
    machine = CATALOG.machine("p4d.24xlarge")
    assert CATALOG.nvlinks_per_gpu(machine) == (12,) * 8
    assert set(CATALOG.topology(machine).values()) == {frozenset({"NV12"})}
    assert machine.rdma_devices == ("rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27")


def test_cube_mesh_is_the_real_one() -> None:
    machine = CATALOG.machine("GN10Xp.20XLARGE320")
    layout = CATALOG.layout(machine)
    rows = [" ".join(layout.get((min(i, j), max(i, j)), "X") for j in range(8)) for i in range(8)]
    assert rows[:2] == [
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    ]
    assert CATALOG.nvlinks_per_gpu(machine) == (6,) * 8
    assert CATALOG.topology(machine)[(0, 5)] == {"PHB", "NODE", "SYS"}
    assert CATALOG.topology(machine)[(0, 4)] == {"NV2"}


def test_pairs_of_a_bridged_machine() -> None:
    topology = CATALOG.topology(CATALOG.machine("Standard_NC96ads_A100_v4"))
    assert {pair for pair, cells in topology.items() if cells == {"NV12"}} == {(0, 1), (2, 3)}


def test_undocumented_pair_demands_the_least() -> None:
    machine = CATALOG.machine("GN10Xp.5XLARGE80")
    assert CATALOG.topology(machine) == {(0, 1): {"NV1", "NV2"}}
    assert CATALOG.nvlinks_per_gpu(machine) == (1, 1)


def test_pcie_machine_is_near_within_a_numa_node_and_far_across() -> None:
    layout = CATALOG.layout(CATALOG.machine("g5.48xlarge"))
    assert (layout[0, 1], layout[0, 7]) == ("PHB", "SYS")


def test_lone_gpu_has_no_pairs() -> None:
    machine = CATALOG.machine("workstation-rtx4090")
    assert CATALOG.topology(machine) == {}
    assert CATALOG.nvlinks_per_gpu(machine) == (0,)
    assert not CATALOG.gpu(machine.gpu_model).ecc


def test_azure_names_its_ports() -> None:
    assert CATALOG.machine("Standard_ND96asr_v4").rdma_devices[7] == "mlx5_ib7"


def test_amd_is_amd() -> None:
    assert CATALOG.gpu("MI300X").vendor == "amd"
    assert CATALOG.gpu("H100-SXM5-80GB").vendor == "nvidia"


@pytest.mark.parametrize(("cell", "links"), [("NV12", 12), ("NV1", 1), ("SYS", 0), ("XGMI", 0), ("NVX", 0), ("-", 0)])
def test_nvlinks(cell: str, links: int) -> None:
    assert catalog.nvlinks(cell) == links


@pytest.mark.parametrize("arch", sorted({gpu.arch for gpu in CATALOG.gpus()}))
def test_what_a_described_gpu_takes_from_its_architecture_is_the_same_for_all_of_it(arch: str) -> None:
    """description.py reads the first row: kernel modules of gpus.yaml, links of machines.yaml."""
    assert len({gpu.open_kernel_modules for gpu in CATALOG.gpus() if gpu.arch == arch}) == 1
    links = [row.nvlink for row in CATALOG.listed.values() if row.gpu_arch == arch and row.nvlink.generation]
    assert len({(link.generation, link.gbps_per_link) for link in links}) <= 1
