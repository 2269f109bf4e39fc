"""Descriptions of machine types become rows that the rest of the catalogue's tests would pass."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from provisioner import catalog
from provisioner.catalog import nvlinks
from provisioner.catalog.description import MachineDescription
from provisioner.catalog.models import Machine
from provisioner.common.errors import GpuprovError
from provisioner.verify.expectations import Expected, expect

KNOWN = catalog.load()


def row(**keys: Any) -> Machine:
    described = MachineDescription.model_validate_json(json.dumps({"gpu": "L40S", "gpus": 4} | keys))
    return KNOWN.with_described({"own": described}).machine("own")


def expected(machine: Machine, **keys: Any) -> Expected:
    described = MachineDescription.model_validate_json(json.dumps({"gpu": "L40S", "gpus": 4} | keys))
    known = KNOWN.with_described({"own": described})
    return expect(machine, known.gpu(machine.gpu_model), None, None, known)


def test_what_is_left_out_is_not_expected() -> None:
    machine = row()
    node = expected(machine)
    assert (node.vcpus, node.memory_gib, node.local_nvme, node.numa_nodes) == (None, None, 0, None)
    assert (node.gpu_count, node.memory_mib) == (4, KNOWN.gpu("L40S").memory_mib)
    assert machine.basis.is_left_out("network.rate_gbps")
    assert machine.local_disks, "those that are there are used"
    sold = expected(row(provider="aws"), provider="aws")
    assert (sold.vcpus, sold.memory_gib) == (None, None)


def test_what_the_user_writes_is_expected_of_every_node() -> None:
    keys = {"vcpus": 96, "memory_gib": 512.0, "numa_nodes": 2, "local_nvme": {"count": 2, "size_gb": 3840.0}}
    machine = row(**keys)
    node = expected(machine, **keys)
    assert (node.vcpus, node.memory_gib, node.local_nvme, node.disk_gb, node.numa_nodes) == (96, 512, 2, 3840, 2)
    for field in ("vcpus", "memory_gib", "numa_nodes", "local_nvme", "gpu_count"):
        assert node.basis[field] == "user", field
    assert node.basis["topology"] == "unverified"


def test_a_network_has_its_ports_by_name() -> None:
    network = {"kind": "infiniband", "ports": 2, "rate_gbps": 200.0, "devices": ["mlx5_0", "mlx5_3"]}
    node = expected(row(network=network), network=network)
    assert (node.network, node.ports, node.rdma_devices) == ("infiniband", 2, ("mlx5_0", "mlx5_3"))
    assert {node.basis[key] for key in ("network", "ports", "rate_gbps", "rdma_devices")} == {"user"}
    assert row(network={"kind": "roce", "ports": 2, "rate_gbps": 100.0}).rdma_devices == ("mlx5_0", "mlx5_1")
    assert row(network={"kind": "efa", "ports": 1}).rdma_devices == ("efa_0",)


def test_nvlink_follows_from_a_type_with_the_same_gpus() -> None:
    like = KNOWN.machine("dgx-h100")
    machine = row(gpu="H100-SXM5-80GB", gpus=8)
    assert (machine.nvlink, machine.topo_peer_cell) == (like.nvlink, like.topo_peer_cell)
    assert machine.fabric_manager_required
    assert machine.basis.of("nvlink.links_per_gpu") == "unverified"


def linked(topology: str, links: int) -> dict[str, Any]:
    return {"topology": topology, "links_per_gpu": links}


@pytest.mark.parametrize(
    ("keys", "topology", "cell"),
    [
        ({"gpu": "L40S", "gpus": 2}, "none", "SYS"),
        ({"gpu": "A100-SXM4-80GB", "gpus": 3}, "mesh", "NV12"),
        ({"gpu": "H100-NVL-94GB", "gpus": 2, "nvlink": linked("bridge", 12)}, "bridge", "NV12"),
        ({"gpu": "H100-SXM5-80GB", "gpus": 4, "nvlink": linked("nvswitch", 18)}, "nvswitch", "NV18"),
        ({"gpu": "MI300X", "gpus": 4, "nvlink": linked("mesh", 3)}, "mesh", "XGMI"),
    ],
)  # fmt: skip
def test_links_are_possible(keys: dict[str, Any], topology: str, cell: str) -> None:
    machine = row(**keys)
    known = KNOWN.with_described({})
    assert machine.nvlink.topology == topology
    pairs = known.topology(machine)
    assert set(pairs) == set(combinations(range(machine.gpu_count), 2))
    assert all(cell in cells for cells in pairs.values())
    assert all(count <= machine.nvlink.links_per_gpu for count in known.nvlinks_per_gpu(machine))
    if topology == "none":
        assert not any(nvlinks(cell_name) for cell_name in machine.peer_cells)


def test_a_gpu_that_the_catalogue_does_not_have() -> None:
    gpu = {"product_name": "NVIDIA RTX A5500", "memory_mib": 24564, "arch": "ampere", "compute_capability": "8.6"}
    described = MachineDescription.model_validate({"gpu": gpu, "gpus": 2})
    known = KNOWN.with_described({"own": described})
    machine = known.machine("own")
    product = known.gpu(machine.gpu_model)
    assert (product.product_names, product.memory_mib, product.vendor) == (("NVIDIA RTX A5500",), 24564, "nvidia")
    assert machine.basis.of("gpu_memory_mib") == "user"
    assert product.basis.of("ecc") == "unverified", "nobody said it"
    assert machine.name not in KNOWN.names(), "the catalogue of others is as it was"
    with pytest.raises(GpuprovError, match="no GPU"):
        row(gpu="RTX-A5500")


def test_a_bridge_that_the_user_describes_condemns_where_a_link_is_down() -> None:
    bridged = row(gpu="RTX-A6000", gpus=2, nvlink=linked("bridge", 4))
    assert (bridged.topo_peer_cell, bridged.basis.of("topo_peer_cell")) == ("NV4", "user")
    mesh = row(gpu="A100-SXM4-80GB", gpus=4, nvlink=linked("mesh", 12))
    assert mesh.basis.of("topo_peer_cell") == "unverified", "which pair has how many links was not said"


def test_a_bridge_that_a_like_machine_has_is_not_expected_of_others() -> None:
    """Azure's two A100 cards are bridged; whether a server's are is its owner's choice."""
    assert KNOWN.machine("Standard_NC48ads_A100_v4").nvlink.topology == "bridge"
    machine = row(gpu="A100-PCIE-80GB", gpus=2)
    assert machine.nvlink.topology == "none"
    assert {machine.basis.of(key) for key in ("nvlink.links_per_gpu", "topo_peer_cell")} == {"unverified"}


def test_switches_that_a_board_of_the_catalogue_has_are_not_what_the_user_wrote() -> None:
    machine = row(gpu="H100-SXM5-80GB", gpus=8, nvlink=linked("nvswitch", 18))
    assert (machine.nvlink.nvswitch_count, machine.basis.of("nvlink.nvswitch_count")) == (4, "unverified")
    assert machine.basis.of("nvlink.links_per_gpu") == "user"
    assert machine.basis.of("fabric_manager_required") == "unverified"
