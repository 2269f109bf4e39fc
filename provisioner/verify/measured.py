"""What a real node shows of the keys of its machine type's row: which of them its output confirms, which it denies.

A key is confirmed by what a tool printed on the node, never by a check that passed: many checks pass because they do
not apply. Where nothing was printed, nothing is said. scripts/measured.py writes the result into the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import yaml

from provisioner.catalog.models import Gpu, LocalNVMe, Machine, Network, NVLink, Row
from provisioner.common.yaml_text import LOADER
from provisioner.verify.checks.gpu import is_model
from provisioner.verify.expectations import MEMORY_TOLERANCE
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.lsblk import local_disks
from provisioner.verify.parsers.lspci import Pci

HOST_MEMORY = 0.08
"""Share of its memory that a machine does not show: firmware and the kernel's own (as health.yaml memory.missing_share
allows); more than the row has is a denial as well."""
LINK_RATE = 0.15
"""Share by which `nvidia-smi nvlink -s` may differ from the row: it prints 26.562 where 25 is meant (nvlink/*)."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One key of a row: what the row has, what the node shows, by which tool's output."""

    key: str
    row: str
    node: str
    tool: str
    agrees: bool


def observed(facts: Facts, machine: Machine, gpu: Gpu) -> list[Observed]:
    """Every key that the node's output says something of, in the order of the row."""
    return [*_gpus(facts, machine, gpu), *_links(facts, machine), *_network(facts, machine), *_host(facts, machine)]


def _of(key: str, row: object, node: object, tool: str, *, agrees: bool | None = None) -> Observed:
    return Observed(key, _format_value(row), _format_value(node), tool, row == node if agrees is None else agrees)


def _format_value(value: object) -> str:
    if isinstance(value, set | frozenset | tuple | list):
        return "/".join(sorted(map(str, value)))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _gpus(facts: Facts, machine: Machine, gpu: Gpu) -> Iterator[Observed]:
    tool = "nvidia-smi" if gpu.vendor == "nvidia" else "rocm-smi"
    smi = facts.smi if gpu.vendor == "nvidia" else facts.rocm
    listed = [gpu_entry for gpu_entry in smi.gpus if not getattr(gpu_entry, "lost", False)] if smi else []
    if not listed:
        return
    names = {gpu_entry.model for gpu_entry in listed if gpu_entry.model}
    if names:
        same = all(is_model(name, gpu.product_names, gpu.vendor) for name in names)
        yield _of("gpu_model", machine.gpu_model, names, tool, agrees=same)
        yield _of("gpu:product_names", gpu.product_names, names, tool, agrees=same)
    yield _of("gpu_count", machine.gpu_count, len(listed), tool)
    memory = {gpu_entry.memory_mib for gpu_entry in listed if gpu_entry.memory_mib}
    if memory:
        close = all(abs(mib - machine.gpu_memory_mib) <= machine.gpu_memory_mib * MEMORY_TOLERANCE for mib in memory)
        yield _of("gpu_memory_mib", machine.gpu_memory_mib, memory, tool, agrees=close)


def _links(facts: Facts, machine: Machine) -> Iterator[Observed]:
    cells = facts.topo.cells if facts.topo else {}
    if machine.gpu_count > 1 and len(cells) == machine.gpu_count and machine.peer_cells:
        peer_cells = {cells[a][b] for a, b in combinations(cells, 2)}
        if None not in peer_cells:
            tool = "nvidia-smi topo -m"
            yield _of(
                "topo_peer_cell", machine.peer_cells, peer_cells, tool, agrees=peer_cells <= {*machine.peer_cells}
            )
    links = facts.nvlinks or {}
    if machine.nvlink.topology == "nvswitch" and links:
        active = {link_state.active for link_state in links.values()}
        if None not in active:
            yield _of("nvlink.links_per_gpu", machine.nvlink.links_per_gpu, active, "nvidia-smi nvlink -s",
                      agrees=active == {machine.nvlink.links_per_gpu})  # fmt: skip
        speeds = {speed for link_state in links.values() for speed in link_state.speeds}
        if speeds and machine.nvlink.gbps_per_link:
            one_way = machine.nvlink.gbps_per_link / 2
            close = all(abs(speed - one_way) <= one_way * LINK_RATE for speed in speeds)
            yield _of("nvlink.gbps_per_link", machine.nvlink.gbps_per_link, {2 * speed for speed in speeds},
                      "nvidia-smi nvlink -s", agrees=close)  # fmt: skip
    if (
        facts.bus is not None
        and _lists_all_gpus(facts.bus, machine)
        and machine.nvlink.generation in (3, 4)
        and machine.nvlink.topology == "nvswitch"
    ):
        yield _of("nvlink.nvswitch_count", machine.nvlink.nvswitch_count, facts.bus.nvswitches, "lspci")
        yield _of("fabric_manager_required", machine.fabric_manager_required, facts.bus.nvswitches > 0, "lspci")


def _lists_all_gpus(bus: Pci, machine: Machine) -> bool:
    """Whether lspci shows all of the GPUs: otherwise it does not show all of the switches either."""
    return len(bus.gpus) >= machine.gpu_count


def _network(facts: Facts, machine: Machine) -> Iterator[Observed]:
    if not machine.rdma or not facts.rdma:
        return
    for_training = [device for device in facts.rdma if not machine.rdma_pci or device.pci in machine.rdma_pci]
    ports = [port for device in for_training for port in device.ports if port.up]
    if ports:
        yield _of("network.ports", machine.network.ports, len(ports), "sysfs, infiniband")
        rates = {port.rate_gbps for port in ports if port.rate_gbps}
        if rates:
            yield _of("network.rate_gbps", machine.network.rate_gbps, rates, "sysfs, infiniband",
                      agrees=rates == {machine.network.rate_gbps})  # fmt: skip
    if machine.rdma_devices:
        names = {device.name for device in for_training}
        yield _of("rdma_devices", machine.rdma_devices, names, "sysfs, infiniband",
                  agrees=names == {*machine.rdma_devices})  # fmt: skip


def _host(facts: Facts, machine: Machine) -> Iterator[Observed]:
    host = facts.host
    disks = local_disks(facts.disks or ())
    if facts.disks:  # lsblk lists the system's disk at least
        yield _of("local_nvme.count", machine.local_nvme.count, len(disks), "lsblk")
        sizes = {round(disk.size / 1e9) for disk in disks if disk.size}
        if sizes and machine.local_nvme.size_gb:
            close = all(
                abs(size_gb - machine.local_nvme.size_gb) <= machine.local_nvme.size_gb * 0.05 for size_gb in sizes
            )
            yield _of("local_nvme.size_gb", machine.local_nvme.size_gb, sizes, "lsblk", agrees=close)
    if host is None:
        return
    if host.cpu is not None:
        yield _of("vcpus", machine.vcpus, host.cpu.processors, "/proc/cpuinfo")
    if host.memory is not None:
        have = host.memory.total / 2**20
        close = machine.memory_gib * (1 - HOST_MEMORY) <= have <= machine.memory_gib * 1.02
        yield _of("memory_gib", machine.memory_gib, round(have, 1), "/proc/meminfo", agrees=close)
    if host.numa_nodes is not None and machine.numa_nodes is not None:
        yield _of("numa_nodes", machine.numa_nodes, host.numa_nodes, "sysfs, node")


_ROW = r"(?m)^  - name: {name}\n(?:(?!  - name: )    .*\n|\n)+"
_BASIS = re.compile(r"(?m)^    basis: \{(?P<inner>.*)\}$")


def rewritten(text: str, machine: str, confirmed: list[str], source: str) -> str:
    """machines.yaml with the confirmed keys of a row as measured, and where that was seen. Raises ValueError where the
    row is not written as the others."""
    row = re.search(_ROW.format(name=re.escape(machine)), text)
    basis = row and _BASIS.search(row[0])
    if row is None or not basis:
        raise ValueError(f"{machine} has no row with `basis: {{…}}`")
    lists = {kind: _keys(basis["inner"], kind) for kind in ("measured", "unverified")}
    lists["unverified"] = [part for key in lists["unverified"] for part in _parts(key, confirmed)]
    lists["measured"] = [*lists["measured"], *(key for key in confirmed if key not in lists["measured"])]
    lists["unverified"] = [key for key in lists["unverified"] if key not in confirmed]
    inner = ", ".join(f"{kind}: [{', '.join(keys)}]" for kind, keys in lists.items() if keys)
    changed = row[0].replace(basis[0], f"    basis: {{{inner}}}")
    quoted = "'" + source.replace("'", "''") + "'"
    changed = re.sub(r"(?m)^    basis:", lambda match: f"      - {quoted}\n{match[0]}", changed, count=1)
    result = text[: row.start()] + changed + text[row.end() :]
    _compare(text, result, machine, source, confirmed)
    return result


def _parts(key: str, confirmed: list[str]) -> list[str]:
    """An unverified mapping of which a key is confirmed: its other keys are what is unverified."""
    kinds: dict[str, type[Row]] = {"network": Network, "nvlink": NVLink, "local_nvme": LocalNVMe}
    if key not in kinds or not any(confirmed_key.startswith(f"{key}.") for confirmed_key in confirmed):
        return [key]
    return [f"{key}.{name}" for name in kinds[key].model_fields]


def _compare(original: str, after: str, machine: str, source: str, confirmed: list[str]) -> None:
    """Raises ValueError where anything but one row's basis and sources has changed."""
    try:
        old, new = (
            {
                row["name"]: row
                for row in yaml.load(text, Loader=LOADER)["machines"]  # noqa: S506 (a safe loader)
            }
            for text in (original, after)
        )
        new_row, was = new[machine], old[machine]
        basis = new_row.pop("basis")
        was.pop("basis")
        was["source"] = [*was["source"], source]
        is_valid = (
            old == new and {*confirmed} <= {*basis["measured"]} and not {*confirmed} & {*basis.get("unverified", ())}
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"the row of {machine} is not written as the others: write its basis and source by hand")


def _keys(inner: str, kind: str) -> list[str]:
    match = re.search(rf"{kind}: \[(.*?)\]", inner)
    return [key.strip() for key in match[1].split(",") if key.strip()] if match else []
