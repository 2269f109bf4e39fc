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
    expected = expectation["expect"]
    tool = case.parent.name
    parse = importlib.import_module(f"provisioner.verify.parsers.{tool}").parse
    if tool not in LINKS and expected.pop("unreadable", False):
        with pytest.raises(Unreadable):
            parse(text_of(case))
        return
    assert expected, "a capture without an expectation proves nothing"
    parsed = parse(text_of(case))
    if tool in LINKS:
        assert [[link.port, link.switch, link.name, link.switch_port] for link in parsed] == [
            row for row in expected if row != "none"
        ]
        return
    assert {key: read(tool, parsed, key, expected) for key in expected} == expected


def test_there_are_captures_of_every_kind() -> None:
    kinds = Counter(case.parent.name for case in CASES)
    assert kinds["nvidia_smi"] >= 14
    assert kinds["dmesg"] >= 13
    assert kinds["nccl_tests"] >= 12
    assert all(kinds[tool] for tool in ("topo", "nvlink", "ibstat", "fi_info", "lspci", "dcgm_exporter", "systemd"))


def read(tool: str, parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    """The parsed value in the words of the expectation."""
    if reader := READERS.get(tool):
        return reader(parsed, key, expected)
    plain = getattr(parsed, key)
    if tool == "perftest" and key == "cards":
        return [asdict(card) for card in plain]
    return list(plain) if isinstance(plain, tuple) else plain


def value(gpu: Gpu, key: str) -> Any:
    read = len(gpu.processes) if key == "process_count" else getattr(gpu, key)
    return list(read) if isinstance(read, tuple) else read


def smi(parsed: Smi, key: str, expected: dict[str, Any]) -> Any:
    match key:
        case "gpus":
            return len(parsed.gpus)
        case "each":
            values = [{k: value(gpu, k) for k in expected["each"]} for gpu in parsed.gpus if not gpu.lost]
            return values[0] if all(value == values[0] for value in values) else values
        case "gpu0":
            return {k: getattr(parsed.gpus[0], k) for k in expected["gpu0"]}
        case "lost":
            return [gpu.pci for gpu in parsed.gpus if gpu.lost]
        case "fabric_faults":
            return [list(gpu.fabric_faults) for gpu in parsed.gpus]
        case "distinct_serials":
            return len({gpu.serial for gpu in parsed.gpus})
    value_of_key = getattr(parsed, key)
    return list(value_of_key) if isinstance(value_of_key, tuple) else value_of_key


def matrix(parsed: topo.Topology, key: str, expected: dict[str, Any]) -> Any:
    names = list(parsed.cells)
    pairs = {a: {b: parsed.cells[a][b] for b in names[i + 1 :]} for i, a in enumerate(names[:-1])}
    match key:
        case "gpus":
            return len(names)
        case "nics":
            return len(parsed.nics)
        case "numa" | "names":
            return getattr(parsed, key)
        case "near":
            return {
                gpu: [n for n, cell in cells.items() if cell in ("PIX", "PXB")] for gpu, cells in parsed.near.items()
            }
        case "all_pairs":
            cells = {cell for row in pairs.values() for cell in row.values()}
            return cells.pop() if len(cells) == 1 else cells
    assert all(parsed.cells[a][b] == parsed.cells[b][a] for a in names for b in names if a != b)
    return pairs


def links(parsed: dict[int, nvlink.Links], key: str, expected: dict[str, Any]) -> Any:
    match key:
        case "gpus":
            return len(parsed)
        case "index":
            return min(parsed)
        case "links_per_gpu":
            totals = {(link.active or 0) + (link.inactive or 0) for link in parsed.values()}
            return totals.pop() if len(totals) == 1 else totals
        case "speeds":
            return sorted({speed for link in parsed.values() for speed in link.speeds})
        case "inactive":
            return {f"GPU{i}": link.inactive for i, link in parsed.items() if link.inactive}
    return {f"GPU{i}": link.active for i, link in parsed.items()}


def errors(parsed: dict[int, dict[int, nvlink_errors.Counters]], key: str, expected: dict[str, Any]) -> Any:
    each = {f"GPU{gpu} link {n}": counts for gpu, links in parsed.items() for n, counts in links.items()}
    match key:
        case "gpus":
            return len(parsed)
        case "links":
            return len(each)
    return {name: {k: v for k, v in counts.items() if v} for name, counts in each.items() if any(counts.values())}


def log(parsed: dmesg.KernelLog, key: str, expected: dict[str, Any]) -> Any:
    if key == "events":
        return {f"{event.kind} {event.where}".strip(): event.count for event in parsed.events}
    value = getattr(parsed, key)
    if key == "flaps":
        return dict(value)
    if key in ("xids", "sxids"):
        entries = [[x.code, x.pci, x.count] for x in value]
        assert sorted(entries) == sorted(expected[key])
        return expected[key]
    return list(value) if isinstance(value, tuple) else value


def ports(parsed: ibstat.Ibstat, key: str, expected: dict[str, Any]) -> Any:
    up = [port for port in parsed.ports if port.up]
    match key:
        case "cas":
            return len({port.device for port in parsed.ports})
        case "active":
            return len(up)
        case "rate_gbps":
            rates = {port.rate_gbps for port in up}
            return rates.pop() if len(rates) == 1 else rates
        case "infiniband":
            return sum(port.link_layer == "InfiniBand" for port in parsed.ports)
        case "infiniband_400_active":
            return sum(port.link_layer == "InfiniBand" and port.rate_gbps == 400 for port in up)
        case "rate_400" | "rate_400_active":
            return sum(port.rate_gbps == 400 for port in up)
        case "rate_100":
            return sum(port.rate_gbps == 100 for port in up)
        case "down":
            down = [port.device for port in parsed.ports if not port.up]
            return expected["down"] if sorted(down) == sorted(expected["down"]) else down
    return parsed.panic is not None


def counted(parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    value = getattr(parsed, key)
    return len(value) if isinstance(value, tuple | dict) else value


def exported(parsed: Exported, key: str, expected: dict[str, Any]) -> Any:
    return counted(parsed, key, expected) if key == "gpus" else getattr(parsed, key)


def amd(parsed: Rocm, key: str, expected: dict[str, Any]) -> Any:
    return parsed.gpus[0].model if key == "model" else counted(parsed, key, expected)


def diag(parsed: dcgmi_diag.Diag, key: str, expected: dict[str, Any]) -> Any:
    value = getattr(parsed, key)
    return list(value) if isinstance(value, tuple) else value


def disks(parsed: tuple[lsblk.Disk, ...], key: str, expected: dict[str, Any]) -> Any:
    match key:
        case "disks":
            return len(parsed)
        case "nvme":
            return sum(disk.nvme for disk in parsed)
    return dict(Counter(disk.model for disk in parsed))


def arrays(parsed: tuple[mdstat.Array, ...], key: str, expected: dict[str, Any]) -> Any:
    return next({name: value for name, value in asdict(array).items() if name in expected[key]}
                for array in parsed if array.name == key)  # fmt: skip


def memory(parsed: dmidecode.Modules, key: str, expected: dict[str, Any]) -> Any:
    match key:
        case "modules":
            return len(parsed.slots)
        case "installed":
            return len(parsed.installed)
    read = getattr(parsed, key)
    return list(read) if isinstance(read, tuple) else read


def samples(parsed: tuple[gpu_samples.Samples, ...], key: str, expected: dict[str, Any]) -> Any:
    return len(parsed) if key == "gpus" else asdict(parsed[0])


def optical(parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    """Readings beyond their limits, by port and part number."""
    rows = getattr(parsed, "cables", parsed)
    return {
        f"{getattr(row, 'device', '') or row.port} {row.part}": [
            str(reading) for reading in row.readings if reading.outside
        ]
        for row in rows
    }[key]


def ras(parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    value = getattr(parsed, key)
    if key == "missing":
        return [[process.pid, process.node, process.gpus] for process in value]
    return list(value) if isinstance(value, tuple) else value


def roce(parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    if key != "cards":
        return getattr(parsed, key)
    return [
        {
            "device": card.device,
            "trust": card.trust,
            "pfc": list(card.pfc),
            "traffic_class": card.traffic_class,
            "priority": card.priority_of(card.traffic_class or 0),
        }
        for card in parsed.cards
    ]


def imex_domain(parsed: Any, key: str, expected: dict[str, Any]) -> Any:
    match key:
        case "nodes":
            return len(parsed.nodes)
        case "states":
            return sorted(set(parsed.nodes.values()))
        case "broken":
            return sorted({state for _, _, state in parsed.broken})
    return getattr(parsed, key)


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
