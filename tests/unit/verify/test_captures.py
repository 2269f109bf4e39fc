"""Every capture, read by its parser, must say what a person read off it (the .yaml beside it, with its source)."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.verify.parsers import (
    Unreadable,
    dcgmi_diag,
    dmesg,
    dmidecode,
    gpu_samples,
    ibstat,
    lsblk,
    mdstat,
    nvlink,
    nvlink_errors,
    topo,
)
from provisioner.verify.parsers.dcgm_exporter import Exported
from provisioner.verify.parsers.nvidia_smi import Gpu, Smi
from provisioner.verify.parsers.rocm_smi import Rocm

HERE = Path(__file__).parent / "captures"
LINKS = ("ib_switches", "lldp")
"""Parsers whose facts are links."""
CASES = sorted(HERE.glob("*/*.yaml"))


def text_of(case: Path) -> str:
    (capture,) = (path for path in case.parent.glob(f"{case.stem}.*") if path.suffix != ".yaml")
    return capture.read_bytes().decode()


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_capture(case: Path) -> None:
    expectation = yaml.safe_load(case.read_text())
    assert expectation["source"]
    wanted = expectation["expect"]
    tool = case.parent.name
    parse = importlib.import_module(f"provisioner.verify.parsers.{tool}").parse
    if tool not in LINKS and wanted.pop("unreadable", False):
        with pytest.raises(Unreadable):
            parse(text_of(case))
        return
    assert wanted, "a capture without an expectation proves nothing"
    found = parse(text_of(case))
    if tool in LINKS:
        assert [[link.port, link.switch, link.name, link.switch_port] for link in found] == [
            row for row in wanted if row != "none"
        ]
        return
    assert {key: read(tool, found, key, wanted) for key in wanted} == wanted


def test_there_are_captures_of_every_kind() -> None:
    kinds = Counter(case.parent.name for case in CASES)
    assert kinds["nvidia_smi"] >= 14
    assert kinds["dmesg"] >= 13
    assert kinds["nccl_tests"] >= 12
    assert all(kinds[tool] for tool in ("topo", "nvlink", "ibstat", "fi_info", "lspci", "dcgm_exporter", "systemd"))


def read(tool: str, found: Any, key: str, wanted: dict[str, Any]) -> Any:
    """The parsed value in the words of the expectation."""
    if reader := READERS.get(tool):
        return reader(found, key, wanted)
    plain = getattr(found, key)
    if tool == "perftest" and key == "cards":
        return [asdict(card) for card in plain]
    return list(plain) if isinstance(plain, tuple) else plain


def value(gpu: Gpu, key: str) -> Any:
    read = len(gpu.processes) if key == "process_count" else getattr(gpu, key)
    return list(read) if isinstance(read, tuple) else read


def smi(found: Smi, key: str, wanted: dict[str, Any]) -> Any:
    match key:
        case "gpus":
            return len(found.gpus)
        case "each":
            values = [{k: value(gpu, k) for k in wanted["each"]} for gpu in found.gpus if not gpu.lost]
            return values[0] if all(value == values[0] for value in values) else values
        case "gpu0":
            return {k: getattr(found.gpus[0], k) for k in wanted["gpu0"]}
        case "lost":
            return [gpu.pci for gpu in found.gpus if gpu.lost]
        case "fabric_faults":
            return [list(gpu.fabric_faults) for gpu in found.gpus]
        case "distinct_serials":
            return len({gpu.serial for gpu in found.gpus})
    told = getattr(found, key)
    return list(told) if isinstance(told, tuple) else told


def matrix(found: topo.Topology, key: str, wanted: dict[str, Any]) -> Any:
    names = list(found.cells)
    pairs = {a: {b: found.cells[a][b] for b in names[i + 1 :]} for i, a in enumerate(names[:-1])}
    match key:
        case "gpus":
            return len(names)
        case "nics":
            return len(found.nics)
        case "numa" | "names":
            return getattr(found, key)
        case "near":
            return {
                gpu: [n for n, cell in cells.items() if cell in ("PIX", "PXB")] for gpu, cells in found.near.items()
            }
        case "all_pairs":
            cells = {cell for row in pairs.values() for cell in row.values()}
            return cells.pop() if len(cells) == 1 else cells
    assert all(found.cells[a][b] == found.cells[b][a] for a in names for b in names if a != b)
    return pairs


def links(found: dict[int, nvlink.Links], key: str, wanted: dict[str, Any]) -> Any:
    match key:
        case "gpus":
            return len(found)
        case "index":
            return min(found)
        case "links_per_gpu":
            totals = {(link.active or 0) + (link.inactive or 0) for link in found.values()}
            return totals.pop() if len(totals) == 1 else totals
        case "speeds":
            return sorted({speed for link in found.values() for speed in link.speeds})
        case "inactive":
            return {f"GPU{i}": link.inactive for i, link in found.items() if link.inactive}
    return {f"GPU{i}": link.active for i, link in found.items()}


def errors(found: dict[int, dict[int, nvlink_errors.Counters]], key: str, wanted: dict[str, Any]) -> Any:
    each = {f"GPU{gpu} link {n}": counts for gpu, links in found.items() for n, counts in links.items()}
    match key:
        case "gpus":
            return len(found)
        case "links":
            return len(each)
    return {name: {k: v for k, v in counts.items() if v} for name, counts in each.items() if any(counts.values())}


def log(found: dmesg.KernelLog, key: str, wanted: dict[str, Any]) -> Any:
    if key == "events":
        return {f"{event.kind} {event.where}".strip(): event.count for event in found.events}
    value = getattr(found, key)
    if key == "flaps":
        return dict(value)
    if key in ("xids", "sxids"):
        entries = [[x.code, x.pci, x.count] for x in value]
        assert sorted(entries) == sorted(wanted[key])
        return wanted[key]
    return list(value) if isinstance(value, tuple) else value


def ports(found: ibstat.Ibstat, key: str, wanted: dict[str, Any]) -> Any:
    up = [port for port in found.ports if port.up]
    match key:
        case "cas":
            return len({port.device for port in found.ports})
        case "active":
            return len(up)
        case "rate_gbps":
            rates = {port.rate_gbps for port in up}
            return rates.pop() if len(rates) == 1 else rates
        case "infiniband":
            return sum(port.link_layer == "InfiniBand" for port in found.ports)
        case "infiniband_400_active":
            return sum(port.link_layer == "InfiniBand" and port.rate_gbps == 400 for port in up)
        case "rate_400" | "rate_400_active":
            return sum(port.rate_gbps == 400 for port in up)
        case "rate_100":
            return sum(port.rate_gbps == 100 for port in up)
        case "down":
            down = [port.device for port in found.ports if not port.up]
            return wanted["down"] if sorted(down) == sorted(wanted["down"]) else down
    return found.panic is not None


def counted(found: Any, key: str, wanted: dict[str, Any]) -> Any:
    value = getattr(found, key)
    return len(value) if isinstance(value, tuple | dict) else value


def exported(found: Exported, key: str, wanted: dict[str, Any]) -> Any:
    return counted(found, key, wanted) if key == "gpus" else getattr(found, key)


def amd(found: Rocm, key: str, wanted: dict[str, Any]) -> Any:
    return found.gpus[0].model if key == "model" else counted(found, key, wanted)


def diag(found: dcgmi_diag.Diag, key: str, wanted: dict[str, Any]) -> Any:
    value = getattr(found, key)
    return list(value) if isinstance(value, tuple) else value


def disks(found: tuple[lsblk.Disk, ...], key: str, wanted: dict[str, Any]) -> Any:
    match key:
        case "disks":
            return len(found)
        case "nvme":
            return sum(disk.nvme for disk in found)
    return dict(Counter(disk.model for disk in found))


def arrays(found: tuple[mdstat.Array, ...], key: str, wanted: dict[str, Any]) -> Any:
    return next({name: value for name, value in asdict(one).items() if name in wanted[key]}
                for one in found if one.name == key)  # fmt: skip


def memory(found: dmidecode.Modules, key: str, wanted: dict[str, Any]) -> Any:
    match key:
        case "modules":
            return len(found.slots)
        case "installed":
            return len(found.installed)
    read = getattr(found, key)
    return list(read) if isinstance(read, tuple) else read


def samples(found: tuple[gpu_samples.Samples, ...], key: str, wanted: dict[str, Any]) -> Any:
    return len(found) if key == "gpus" else asdict(found[0])


def optical(found: Any, key: str, wanted: dict[str, Any]) -> Any:
    """Readings beyond their limits, by port and part number."""
    rows = getattr(found, "cables", found)
    return {
        f"{getattr(row, 'device', '') or row.port} {row.part}": [str(one) for one in row.readings if one.outside]
        for row in rows
    }[key]


def ras(found: Any, key: str, wanted: dict[str, Any]) -> Any:
    value = getattr(found, key)
    if key == "missing":
        return [[process.pid, process.node, process.gpus] for process in value]
    return list(value) if isinstance(value, tuple) else value


def roce(found: Any, key: str, wanted: dict[str, Any]) -> Any:
    if key != "cards":
        return getattr(found, key)
    return [
        {
            "device": card.device,
            "trust": card.trust,
            "pfc": list(card.pfc),
            "traffic_class": card.traffic_class,
            "priority": card.priority_of(card.traffic_class or 0),
        }
        for card in found.cards
    ]


def imex_domain(found: Any, key: str, wanted: dict[str, Any]) -> Any:
    match key:
        case "nodes":
            return len(found.nodes)
        case "states":
            return sorted(set(found.nodes.values()))
        case "broken":
            return sorted({state for _, _, state in found.broken})
    return getattr(found, key)


READERS = {
    "imex": imex_domain,
    "roce_qos": roce,
    "nccl_ras": ras,
    "ethtool_modules": optical,
    "mlxlink": optical,
    "nvidia_smi": smi,
    "topo": matrix,
    "nvlink": links,
    "nvlink_errors": errors,
    "dmesg": log,
    "ibstat": ports,
    "fi_info": counted,
    "lspci": counted,
    "dcgm_exporter": exported,
    "rocm_smi": amd,
    "dcgmi_diag": diag,
    "lsblk": disks,
    "mdstat": arrays,
    "gpu_samples": samples,
    "dmidecode": memory,
}
