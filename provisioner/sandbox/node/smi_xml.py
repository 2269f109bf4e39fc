"""`nvidia-smi -q -x`: elements and their order from smi_q_x.shape, values from hardware.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .smi_facts import DEPRECATED, Driver, timestamp

Gpu = dict[str, Any]
LOST = "GPU is lost"
LINE = re.compile(r"(?:\[(\d+)?(\+|-)(\d+)?\] )?( *)(@?[A-Za-z0-9_]+)(?: (.*))?")
EMPTY = ("processes", "accounted_processes")


def document(driver: Driver, wanted: str | None = None) -> str:
    """The whole answer; `wanted` is an index, UUID or PCI address (-i)."""
    dtd = "v13" if driver.branch >= 580 else "v12"
    gpus = [gpu for gpu in driver.gpus if wanted is None or matches(gpu, wanted)]
    head = (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{dtd}.dtd">\n<nvidia_smi_log>\n'
        f"\t<timestamp>{timestamp()}</timestamp>\n\t<driver_version>{driver.version}</driver_version>\n"
        f"\t<cuda_version>{driver.cuda}</cuda_version>\n\t<attached_gpus>{len(driver.gpus)}</attached_gpus>\n"
    )
    return head + "".join(_gpu(driver, gpu) for gpu in gpus) + "</nvidia_smi_log>\n"


def matches(gpu: Gpu, wanted: str) -> bool:
    return wanted in (str(gpu["index"]), gpu["uuid"], gpu["pci"], gpu["pci"][4:], gpu["pci"].lower())


def shape(branch: int) -> Iterator[tuple[int, str, str]]:
    """Depth, tag and value of each line that a driver of that branch prints."""
    for line in Path(__file__).with_name("smi_q_x.shape").read_text().splitlines():
        found = LINE.fullmatch(line)
        if line.startswith("#") or found is None:
            continue
        first, sign, last, indent, tag, value = found.groups()
        if sign == "+" and branch < int(first):
            continue
        if sign == "-" and not int(first or 0) <= branch <= int(last):
            continue
        yield len(indent) // 2, tag, value or ""


def _gpu(driver: Driver, gpu: Gpu) -> str:
    values = _values(driver, gpu)
    parts = [f'\t<gpu id="{gpu["pci"]}">\n']
    rows = list(shape(driver.branch))
    opened: list[str] = []
    for number, (depth, tag, value) in enumerate(rows):
        while len(opened) > depth:
            parts.append("\t" * (len(opened) + 1) + f"</{opened.pop()}>\n")
        tabs = "\t" * (depth + 2)
        if tag.startswith("@"):
            parts.append(_tree(BLOCKS[tag[1:]](driver, gpu), depth + 2))
        elif tag == "mig_devices":
            parts.append(f"{tabs}<mig_devices>\n{tabs}\tNone\n{tabs}</mig_devices>\n")
        elif tag in EMPTY:
            parts.append(f"{tabs}<{tag}>\n{tabs}</{tag}>\n")
        elif number + 1 < len(rows) and rows[number + 1][0] > depth:
            parts.append(f"{tabs}<{tag}>\n")
            opened.append(tag)
        else:
            text = value.format_map(values)
            parts.append(f"{tabs}<{tag}>{escape(LOST if gpu['lost'] and tag in LOST_TAGS else text)}</{tag}>\n")
    while opened:
        parts.append("\t" * (len(opened) + 1) + f"</{opened.pop()}>\n")
    return "".join(parts) + "\t</gpu>\n\n"


LOST_TAGS = frozenset(
    ("gpu_temp", "average_power_draw", "instant_power_draw", "graphics_clock", "sm_clock", "gpu_util", "memory_util", "persistence_mode")
)
"""Values that a GPU which fell off the bus can't give any more."""


def _tree(tree: list[tuple[str, Any]], depth: int) -> str:
    tabs = "\t" * depth
    out = ""
    for tag, value in tree:
        out += f"{tabs}<{tag}>\n{_tree(value, depth + 1)}{tabs}</{tag}>\n" if isinstance(value, list) else f"{tabs}<{tag}>{value}</{tag}>\n"
    return out


def _values(driver: Driver, gpu: Gpu) -> dict[str, Any]:
    product, arch = gpu["product"], gpu["arch"]
    domain, bus, device = gpu["pci"].split(":")
    hopper, blackwell = arch == "hopper", arch == "blackwell"
    gone = driver.branch >= 595
    application = DEPRECATED if gone else None
    geforce = product["brand"] == "GeForce"
    limit, least, most, idle = product["power"]
    switched = gpu["fabric"]["state"] != "N/A"
    target = product.get("target")
    return {
        "name": gpu["name"], "brand": product["brand"], "architecture": gpu["architecture"], "uuid": gpu["uuid"], "pci": gpu["pci"],
        "display": "Disabled" if geforce else "Enabled", "display_attached": "No" if geforce else "Yes",
        "persistence": gpu["persistence"], "addressing": "HMM" if gpu["kernel_modules"] != "impossible" and not blackwell else "None",
        "mig": gpu["mig_current"], "serial": "N/A" if "serial" in product and product["serial"] is None else gpu["serial"],
        "pdi": f"0x{int(gpu['uuid'][4:12], 16):016x}", "minor": gpu["index"], "vbios": product["vbios"],
        "board_id": f"0x{int(bus, 16) << 8 | int(domain, 16) << 16:x}", "board": product["board"], "part": product["part"],
        "module": gpu["index"] + 1, "platform_none": "" if blackwell else "N/A", "host_id": "1" if blackwell else "N/A",
        "peer_type": "Switch Connected" if blackwell and switched else "N/A",
        "fabric_guid": f"0x{int(gpu['uuid'][4:12], 16):016x}" if blackwell and switched else "N/A",
        "inforom_image": product["inforom"][0], "inforom_oem": product["inforom"][1], "inforom_ecc": product["inforom"][2],
        "c2c": "Disabled" if hopper or blackwell else "N/A", "virtualization": "Pass-Through" if gpu["virtualised"] else "None",
        "recovery": gpu.get("recovery", "None"), "gsp": "N/A" if arch == "volta" else driver.version,
        "bus": bus, "device": device.split(".")[0], "domain": domain[-4:], "device_id": gpu["pci_device_id"], "subsystem": product["subsystem"],
        "sub_class": 0 if product.get("class") else 2, "gen": gpu["pcie"]["gen"], "gen_now": 1 if geforce else gpu["pcie"]["gen"],
        "gen_host": "N/A" if gpu["virtualised"] else gpu["pcie"]["gen"], "width": gpu["pcie"]["width"],
        "atomics": "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64" if blackwell else "N/A",
        "fan": f"{product['fan']} %" if "fan" in product else "N/A", "pstate": "P8" if geforce else "P0",
        "memory": gpu["memory_mib"], "reserved": product["reserved"], "free": gpu["memory_mib"] - product["reserved"],
        "bar1": product["bar1"], "bar1_free": product["bar1"] - 1, "modern_util": "0 %" if arch != "volta" else "N/A",
        "ecc": gpu["ecc"]["mode"], "ecc_pending": gpu["ecc_pending"],
        "temperature": product["temperature"][0], "tlimit": f"{product['thresholds']['now']} C" if "tlimit" in product["thresholds"] else "N/A",
        "target_least": f"{target[1]} C" if target else "N/A", "target_most": f"{target[2]} C" if target else "N/A",
        "power_state": DEPRECATED if gone else ("P8" if geforce else "P0"), "draw": f"{idle + gpu['index'] * 0.37:.2f}",
        "average_draw": f"{idle + gpu['index'] * 0.31:.2f} W" if arch not in ("volta", "ampere") else "N/A",
        "limit": f"{limit:.2f}", "least": f"{least:.2f}", "most": f"{most:.2f}",
        "smoothing": "Insufficient Permissions" if blackwell else "N/A",
        "idle_graphics": product["idle"][0], "idle_memory": product["idle"][1], "idle_video": product["idle"][2],
        "max_graphics": product["max"][0], "max_memory": product["max"][1], "max_video": product["max"][2],
        "app_graphics": application or ("N/A" if geforce else f"{product['max'][0]} MHz"),
        "app_memory": application or ("N/A" if geforce else f"{product['max'][1]} MHz"),
        "boost": "N/A" if geforce else f"{product['max'][0]} MHz",
        "fabric_state": gpu["fabric"]["state"], "fabric_status": gpu["fabric"]["status"],
        "clique": "0" if switched else "N/A", "cluster": "00000000-0000-0000-0000-000000000000" if switched else "N/A",
        "fabric_summary": "Healthy" if blackwell and switched else "N/A", "fabric_access": "False" if blackwell and switched else "N/A",
    }  # fmt: skip


def _ecc_errors(driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    on = gpu["ecc"]["mode"] == "Enabled"

    def count(period: str, place: str) -> Any:
        return gpu["ecc"][period][place] if on else "N/A"

    if gpu["arch"] == "volta":
        return [("ecc_errors", [(period, [
            (bits, [("device_memory", count(period, "dram") if bits == "double_bit" else (0 if on else "N/A")),
                    *((part, 0 if on else "N/A") for part in ("register_file", "l1_cache", "l2_cache")),
                    ("texture_memory", "N/A"), ("texture_shm", "N/A"), ("cbu", 0 if on and bits == "double_bit" else "N/A"),
                    ("total", count(period, "dram") if bits == "double_bit" else (0 if on else "N/A"))])
            for bits in ("single_bit", "double_bit")]) for period in ("volatile", "aggregate")])]  # fmt: skip
    zero: Any = 0 if on else "N/A"
    split = driver.branch >= 540
    tree: list[tuple[str, Any]] = []
    for period in ("volatile", "aggregate"):
        sram: list[tuple[str, Any]] = (
            [("sram_uncorrectable_parity", zero), ("sram_uncorrectable_secded", count(period, "sram"))]
            if split
            else [("sram_uncorrectable", count(period, "sram"))]
        )
        rows = [("sram_correctable", zero), *sram, ("dram_correctable", zero), ("dram_uncorrectable", count(period, "dram"))]
        tree.append((period, rows + ([("sram_threshold_exceeded", "No" if on else "N/A")] if split and period == "aggregate" else [])))
    if split:
        parts = ("sram_l2", "sram_sm", "sram_microcontroller", "sram_pcie", "sram_other")
        tree.append(("aggregate_uncorrectable_sram_sources", [(part, zero) for part in parts]))
    if driver.branch >= 580:
        tree += [("channel_repair_pending", "No"), ("tpc_repair_pending", "No")]
    if driver.branch >= 595:
        tree.append(("unrepairable_memory", "N/A"))
    return [("ecc_errors", tree)]


def _retired_pages(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    # Cards without a row remapper (Volta, Turing) retire pages; the others print N/A here.
    old = gpu["product"]["banks"] is None
    count: Any = 0 if old else "N/A"
    pages: list[tuple[str, Any]] = [("retired_count", count), ("retired_pagelist", [] if old else "N/A")]
    pending = ("Yes" if gpu["remap"]["pending"] else "No") if old else "N/A"
    return [("retired_pages", [("multiple_single_bit_retirement", pages), ("double_bit_retirement", pages),
                               ("pending_blacklist", pending), ("pending_retirement", pending)])]  # fmt: skip


def _remapped_rows(driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    banks, remap = gpu["product"]["banks"], gpu["remap"]
    if banks is None or gpu["mig_current"] == "Enabled":
        return [("remapped_rows", "N/A")]
    damaged = remap["uncorrectable"] + remap["correctable"]
    rows = {"max": banks - damaged, "high": damaged, "partial": 0, "low": 0, "none": 0}
    inactive = driver.branch >= 595
    return [("remapped_rows", [
        ("remapped_row_corr", remap["correctable"]), *([("remapped_row_corr_inactive", 0)] if inactive else []),
        ("remapped_row_unc", remap["uncorrectable"]), *([("remapped_row_unc_inactive", 0)] if inactive else []),
        ("remapped_row_pending", "Yes" if remap["pending"] else "No"), ("remapped_row_failure", "Yes" if remap["failure"] else "No"),
        ("row_remapper_histogram", [(f"row_remapper_histogram_{name}", f"{number} bank(s)") for name, number in rows.items()]),
    ])]  # fmt: skip


def _thresholds(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    product = gpu["product"]
    memory = product["temperature"][1]
    kind, limits = next((k, v) for k, v in product["thresholds"].items() if k != "now")
    word = "_tlimit_threshold" if kind == "tlimit" else "_threshold"
    shown = ["N/A" if value is None else f"{value} C" for value in limits]
    target = product.get("target")
    return [
        (f"gpu_temp_max{word}", shown[0]), (f"gpu_temp_slow{word}", shown[1]), (f"gpu_temp_max_gpu{word}", shown[2]),
        ("gpu_target_temperature", f"{target[0]} C" if target else "N/A"), ("memory_temp", "N/A" if memory is None else f"{memory} C"),
        (f"gpu_temp_max_mem{word}", shown[3]),
    ]  # fmt: skip


def _supported_clocks(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    top, memory, _ = gpu["product"]["max"]
    steps = range(top, gpu["product"]["idle"][0] - 1, -15)
    values = [("value", f"{memory} MHz"), *(("supported_graphics_clock", f"{clock} MHz") for clock in steps)]
    return [("supported_clocks", [("supported_mem_clock", values)])]


BLOCKS = {
    "ecc_errors": _ecc_errors, "retired_pages": _retired_pages, "remapped_rows": _remapped_rows, "thresholds": _thresholds,
    "supported_clocks": _supported_clocks,
}  # fmt: skip
