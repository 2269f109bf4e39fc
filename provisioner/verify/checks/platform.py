"""The machine as a platform: whether it is the one that was asked for, and the way between its GPUs and its cards."""

from __future__ import annotations

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

TRANSLATED = ("DMA", "DMA-FQ")
"""Types of an IOMMU group whose addresses are translated (Documentation/ABI/testing/sysfs-kernel-iommu_groups)."""


@check(
    "host.machine",
    severity="fatal",
    documented="cloudinit.readthedocs.io, Instance metadata: what the cloud itself calls the machine; github "
    "Azure/azurehpc-health-checks, aws-samples/awsome-distributed-training choose their limits by it",
    action="replace",
    needs=NEEDS,
    applies=lambda e: not e.bare_metal and not e.simulated,
    otherwise="only a cloud tells a machine what it is",
    says="The cloud calls this machine another type than cluster.yaml asks for: what it is held to here is another's.",
)
def test_machine(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    if host.machine_type is None:
        skip("the cloud's metadata, as cloud-init keeps it, does not say what the machine is")
    saw(expected=expected.machine, actual=host.machine_type)
    if host.machine_type.lower() != expected.machine.lower():
        fail(f"the cloud calls it {host.machine_type}, cluster.yaml asks for {expected.machine}")


@check(
    "host.fragmentation",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a sandbox node shows this computer's memory",
    says="Free memory is in small pieces: huge pages and large buffers of network cards cannot be allocated. Reboot.",
)
def test_fragmentation(node: Facts) -> None:
    blocks = host_of(node).free_blocks
    if blocks is None:
        skip("the node does not show /proc/buddyinfo")
    saw(expected=f"{FEWEST_BLOCKS} blocks of 1 MiB or more on each NUMA node", actual=dict(blocks))
    if few := [f"NUMA node {name}: {count}" for name, count in blocks.items() if count < FEWEST_BLOCKS]:
        fail(f"free blocks of 1 MiB or more on {'; '.join(few)}")


FEWEST_BLOCKS = 10
"""Of order 8 and more in zone Normal (github facebookresearch/gcm check-node, its default)."""


# Warnings: load.peer_copy, load.host_copy and nccl.bandwidth measure what these settings cost, and condemn.
@check(
    "pcie.acs",
    severity="warn",
    documented="NCCL Troubleshooting, PCI Access Control Services",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and not e.simulated and e.gpu_count > 1,
    otherwise="in a virtual machine ACS is the hypervisor's, which needs it",
    says="PCIe ACS sends what GPUs and cards write to each other up to the processor: slow, or hanging NCCL. Switch it "
    "off in the BIOS, or with setpci at boot.",
)
def test_acs(node: Facts) -> None:
    pcie = host_of(node).pcie
    if pcie is None:
        skip("an older probe, which did not look at PCIe bridges")
    saw(expected="no bridge redirects", actual=list(pcie.redirects) or "no bridge redirects")
    if not pcie.iommu:
        skip("sysfs lists neither a GPU nor an InfiniBand card")
    if pcie.redirects:
        fail(f"ACS redirects traffic on {few(pcie.redirects, 4, ',')}")


@check(
    "pcie.iommu",
    severity="warn",
    documented="NVIDIA GPUDirect Storage and NCCL guides: IOMMU off, or in passthrough, on bare metal",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and not e.simulated and e.gpu_count > 1,
    otherwise="in a virtual machine the IOMMU is the hypervisor's, which needs it",
    says="The IOMMU translates every address of a GPU or a card: copies between them are slower, or fail. Boot with "
    "iommu=pt, or switch it off.",
)
def test_iommu(node: Facts) -> None:
    pcie = host_of(node).pcie
    if pcie is None:
        skip("an older probe, which did not look at IOMMU groups")
    kinds = pcie.iommu
    saw(expected="off, or identity", actual=sorted({str(kind or "off") for kind in kinds.values()}))
    if not kinds:
        skip("sysfs lists neither a GPU nor an InfiniBand card")
    if wrong := [f"{address} ({kind})" for address, kind in kinds.items() if kind in TRANSLATED]:
        fail(f"addresses are translated for {few(wrong, 4, ',')}")


@check(
    "net.allowance",
    severity="info",
    action="none",
    needs=NEEDS,
    says="The cloud held packets back, because the machine was over its share of bandwidth, packets or connections. "
    "Where jobs over the network are slow, look whether it goes on.",
)
def test_allowance(node: Facts) -> None:
    counts = host_of(node).allowances
    if not counts:
        skip("no interface counts what the cloud holds back")
    over = {name: count for name, count in counts.items() if count}
    saw(expected=0, actual=over or 0)
    if over:
        fail("; ".join(f"{name}: {count}" for name, count in over.items()))
