"""What a simulated machine pretends to reach under load, so that a sandbox has numbers to judge: GB/s, TFLOP/s and
samples/s. They are made up from what is published for its kind, and every one of them is marked as simulated."""

from __future__ import annotations

from typing import Any

from provisioner.catalog import Catalog
from provisioner.catalog.models import Gpu, Machine

HOST = {3: 12.4, 4: 25.1, 5: 55.3, 6: 100.0}
"""Copies with the host by PCIe generation: about four fifths of the wire."""
MEMORY = {"volta": 790, "turing": 262, "ampere": 1320, "ada": 820, "hopper": 2900, "blackwell": 6500, "cdna": 2700}
TFLOPS = {"volta": 96, "turing": 45, "ampere": 245, "ada": 140, "hopper": 640, "blackwell": 1500, "cdna": 480}
"""Dense products in half precision; a share of the data sheets' peak that real programs reach."""
DISK = (2.4, 1.1, 180_000)
"""Of one local disk: GB/s read and written, small reads per second; about what data sheets of NVMe disks say."""
ABOVE = 1.06
"""By how much a healthy simulated node stands above a published limit."""


def between(machine: Machine, gpu: Gpu, catalog: Catalog) -> dict[str, float | str | bool]:
    """Several nodes together: GB/s, which way NCCL says that it goes, and whether it is RDMA."""
    limit, network = catalog.fabric_limit(machine), machine.network
    kinds = {"efa": "AWS Libfabric", "infiniband": "IB", "roce": "IB"}
    transport = f"NET/{kinds.get(network.kind, 'Socket')}"
    board = gpu.vendor == "nvidia" and machine.nvlink.topology == "nvswitch"
    return {
        "gbps": limit.threshold * ABOVE if limit else network.ports * network.rate_gbps / 8 * 0.8,
        "way": transport + "+GDR" * (board and network.kind in ("efa", "infiniband", "roce")),
        "rdma": network.kind in kinds,
    }


def reaches(machine: Machine, gpu: Gpu, catalog: Catalog) -> dict[str, Any]:
    """Of one healthy GPU, and `busbw` and `samples_per_s` of the whole node; without GPUs of its disks alone."""
    disks, limits = machine.local_nvme.count, catalog.scratch_limits(machine)
    of_disks = {
        "scratch_read": max(DISK[0] * disks, limits.get("scratch_read", 0) * ABOVE),
        "scratch_write": max(DISK[1] * disks, limits.get("scratch_write", 0) * ABOVE),
        "scratch_iops": DISK[2] * disks,
        **({"scratch_limited": limits["scratch_read"]} if "scratch_read" in limits else {}),
    }
    if not machine.gpu_count:
        return of_disks
    arch = "cdna" if gpu.vendor == "amd" else gpu.arch
    minimums, limit = catalog.copy_limits(machine), catalog.nccl_limit(machine)
    generation = int((machine.pcie_host_link or f"gen{gpu.pcie_gen}")[3])
    host = max(HOST[generation], minimums.get("host_copy", 0) * ABOVE)
    links = min(catalog.nvlinks_per_gpu(machine), default=0) if gpu.vendor == "nvidia" else 0
    wire = links * machine.nvlink.gbps_per_link / 2 if links and machine.nvlink.gbps_per_link else host * 0.8
    tflops = TFLOPS[arch]
    return {
        "h2d_gbps": host,
        "d2h_gbps": host * 0.98,
        "peer_gbps": max(wire * 0.86, minimums.get("peer_copy", 0) * ABOVE),
        "memory_gbps": MEMORY[arch],
        "tflops": tflops,
        "busbw": limit.threshold * ABOVE if limit else wire * 0.75,
        **({"limited": limit.threshold} if limit else {}),
        "gpu_limits": sorted(catalog.gpu_limits(machine)),
        "samples_per_s": round(tflops * machine.gpu_count * 0.9, 1),
        **of_disks,
    }
