"""`nvidia-smi -q -x`: elements and their order from smi_q_x.shape, values from hardware.json."""

from __future__ import annotations

import os
import re
from html import escape

from .smi_blocks import BLOCKS
from .smi_facts import DEPRECATED, Driver, timestamp
from .smi_mig_text import elements

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Gpu = dict[str, Any]

LOST = "GPU is lost"
LINE = re.compile(r"(?:\[([0-9.,+-]+)\] )?( *)(@?[A-Za-z0-9_]+)(?: (.*))?")
EMPTY = ("processes", "accounted_processes")


def document(driver: Driver, gpu_id: str | None = None) -> str:
    """The whole answer; `gpu_id` is an index, UUID or PCI address (-i)."""
    dtd = "v13" if driver.branch >= 580 else "v12"
    gpus = [gpu for gpu in driver.gpus if gpu_id is None or matches(gpu, gpu_id)]
    head = (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{dtd}.dtd">\n<nvidia_smi_log>\n'
        f"\t<timestamp>{timestamp()}</timestamp>\n\t<driver_version>{driver.version}</driver_version>\n"
        f"\t<cuda_version>{driver.cuda}</cuda_version>\n\t<attached_gpus>{len(driver.gpus)}</attached_gpus>\n"
    )
    return head + "".join(_gpu(driver, gpu) for gpu in gpus) + "</nvidia_smi_log>\n"


def matches(gpu: Gpu, gpu_id: str) -> bool:
    return gpu_id in (str(gpu["index"]), gpu["uuid"], gpu["pci"], gpu["pci"][4:], gpu["pci"].lower())


def _shape() -> str:
    with open(os.path.join(os.path.dirname(__file__), "smi_q_x.shape"), encoding="utf-8") as stream:
        return stream.read()


def shape(driver: Driver) -> Iterator[tuple[int, str, str]]:
    """Depth, tag and value of each line that a driver of that version prints."""
    for line in _shape().splitlines():
        match = LINE.fullmatch(line)
        if line.startswith("#") or match is None:
            continue
        versions, indent, tag, value = match.groups()
        if versions is None or driver.is_in(versions):
            yield len(indent) // 2, tag, value or ""


def _gpu(driver: Driver, gpu: Gpu) -> str:
    values, printed = _values(driver, gpu), gpu.get("printed", {})
    parts = [f'\t<gpu id="{gpu["pci"]}">\n']
    rows = list(shape(driver))
    opened: list[str] = []
    for number, (depth, tag, value) in enumerate(rows):
        while len(opened) > depth:
            parts.append("\t" * (len(opened) + 1) + f"</{opened.pop()}>\n")
        tabs = "\t" * (depth + 2)
        if tag.startswith("@"):
            parts.append(_tree(BLOCKS[tag[1:]](driver, gpu), depth + 2, "/".join(opened), printed))
        elif tag == "mig_devices":
            parts.append(elements(gpu))
        elif tag in EMPTY:
            parts.append(f"{tabs}<{tag}>\n{tabs}</{tag}>\n")
        elif number + 1 < len(rows) and rows[number + 1][0] > depth:
            parts.append(f"{tabs}<{tag}>\n")
            opened.append(tag)
        else:
            text = printed.get("/".join([*opened, tag]), value.format_map(values))
            printed_text = LOST if gpu["lost"] and tag in LOST_TAGS else text
            # html's escape: that of xml.sax.saxutils brings urllib along, 37 ms in every nvidia-smi
            parts.append(f"{tabs}<{tag}>{escape(printed_text, quote=False)}</{tag}>\n")
    while opened:
        parts.append("\t" * (len(opened) + 1) + f"</{opened.pop()}>\n")
    return "".join(parts) + "\t</gpu>\n\n"


LOST_TAGS = frozenset(
    (
        "gpu_temp",
        "average_power_draw",
        "instant_power_draw",
        "graphics_clock",
        "sm_clock",
        "gpu_util",
        "memory_util",
        "persistence_mode",
    )
)
"""Values that a GPU which fell off the bus can't give any more."""


def _tree(tree: list[tuple[str, Any]], depth: int, above: str, printed: dict[str, str]) -> str:
    """Elements of a block; `printed` says by path what a fault has put in a value's place."""
    tabs = "\t" * depth
    out = ""
    for tag, value in tree:
        path = f"{above}/{tag}".lstrip("/")
        out += (
            f"{tabs}<{tag}>\n{_tree(value, depth + 1, path, printed)}{tabs}</{tag}>\n"
            if isinstance(value, list)
            else f"{tabs}<{tag}>{printed.get(path, value)}</{tag}>\n"
        )
    return out


def _values(driver: Driver, gpu: Gpu) -> dict[str, Any]:
    product, arch = gpu["product"], gpu["arch"]
    domain, bus, device = gpu["pci"].split(":")
    hopper, blackwell = arch == "hopper", arch == "blackwell"
    is_removed = driver.branch >= 590
    application = DEPRECATED if is_removed else None
    geforce = product["brand"] == "GeForce"
    limit, minimum, maximum, idle = product["power"]
    switched = gpu["fabric"]["state"] != "N/A"
    target = product.get("target")
    awake, in_mig = "awake" in gpu, gpu["mig_current"] == "Enabled"
    return {
        "name": gpu["name"],
        "brand": product["brand"],
        "architecture": gpu["architecture"],
        "uuid": gpu["uuid"],
        "pci": gpu["pci"],
        "display": "Disabled" if geforce else "Enabled",
        "display_attached": "No" if geforce else "Yes",
        "persistence": gpu["persistence"],
        "addressing": "HMM" if gpu["kernel_modules"] != "impossible" and not blackwell else "None",
        "mig": gpu["mig_current"],
        "mig_pending": gpu["mig_pending"],
        "serial": "N/A" if "serial" in product and product["serial"] is None else gpu["serial"],
        "pdi": f"0x{int(gpu['uuid'][4:12], 16):016x}",
        "minor": gpu["index"],
        "vbios": product["vbios"],
        "board_id": f"0x{int(bus, 16) << 8 | int(domain, 16) << 16:x}",
        "board": product["board"],
        "part": product["part"],
        "module": gpu["index"] + 1,
        "platform_none": "" if blackwell else "N/A",
        "host_id": "1" if blackwell else "N/A",
        "peer_type": "Switch Connected" if blackwell and switched else "N/A",
        "fabric_guid": f"0x{int(gpu['uuid'][4:12], 16):016x}" if blackwell and switched else "N/A",
        "inforom_image": product["inforom"][0],
        "inforom_oem": product["inforom"][1],
        "inforom_ecc": product["inforom"][2],
        "c2c": "Disabled" if hopper or blackwell else "N/A",
        "virtualization": "Pass-Through" if gpu["virtualised"] else "None",
        "recovery": gpu.get("recovery", "None"),
        "gsp": "N/A" if arch == "volta" else driver.version,
        "bus": bus,
        "device": device.split(".")[0],
        "domain": domain[-4:],
        "device_id": gpu["pci_device_id"],
        "subsystem": product["subsystem"],
        "sub_class": 0 if product.get("class") else 2,
        "gen": gpu["pcie"]["gen"],
        "gen_now": 1 if geforce and not awake else gpu["pcie"]["gen"],
        "gen_host": "N/A" if gpu["virtualised"] else gpu["pcie"]["gen"],
        "width": gpu["pcie"]["width"],
        "atomics": "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64" if blackwell else "N/A",
        "fan": f"{product['fan']} %" if "fan" in product else "N/A",
        # The driver holds a GeForce at P2 for programs of CUDA.
        "pstate": ("P2" if awake else "P8") if geforce else "P0",
        "busy": "N/A" if in_mig else f"{100 if awake else 0} %",
        "idle_util": "N/A" if in_mig else "0 %",
        "memory": gpu["memory_mib"],
        "reserved": product["reserved"],
        "free": gpu["memory_mib"] - product["reserved"],
        "bar1": product["bar1"],
        "bar1_free": product["bar1"] - 1,
        "modern_util": "N/A" if in_mig or arch == "volta" else "0 %",
        "ecc": gpu["ecc"]["mode"],
        "ecc_pending": gpu["ecc_pending"],
        "temperature": product["temperature"][0],
        "tlimit": f"{product['thresholds']['now']} C" if "tlimit" in product["thresholds"] else "N/A",
        "target_least": f"{target[1]} C" if target else "N/A",
        "target_most": f"{target[2]} C" if target else "N/A",
        "power_state": DEPRECATED if is_removed else ("P8" if geforce else "P0"),
        "draw": f"{(limit * 0.9 if awake else idle) + gpu['index'] * 0.37:.2f}",
        "average_draw": f"{(limit * 0.9 if awake else idle) + gpu['index'] * 0.31:.2f} W"
        if arch not in ("volta", "ampere")
        else "N/A",
        "limit": f"{limit:.2f}",
        "least": f"{minimum:.2f}",
        "most": f"{maximum:.2f}",
        "smoothing": "Insufficient Permissions" if blackwell else "N/A",
        "drain": "No" if arch in ("ampere", "ada", "hopper") and not geforce else "N/A",
        "volt": "N/A" if arch in ("volta", "turing") else "700.000 mV",
        "sparse": "Disabled" if hopper else "N/A",
        "memory_draw": f"{idle * 0.6:.2f} W" if hopper or blackwell else "N/A",
        "edpp": "100.00%" if hopper else "N/A",
        "idle_graphics": product["max" if awake else "idle"][0],
        "idle_memory": product["max" if awake else "idle"][1],
        "idle_video": product["idle"][2],
        "max_graphics": product["max"][0],
        "max_memory": product["max"][1],
        "max_video": product["max"][2],
        "app_graphics": application or ("N/A" if geforce else f"{product['max'][0]} MHz"),
        "app_memory": application or ("N/A" if geforce else f"{product['max'][1]} MHz"),
        "boost": "N/A" if geforce else f"{product['max'][0]} MHz",
        "fabric_state": gpu["fabric"]["state"],
        "fabric_status": gpu["fabric"]["status"],
        "clique": "0" if switched else "N/A",
        "cluster": "00000000-0000-0000-0000-000000000000" if switched else "N/A",
        "fabric_summary": "Healthy" if blackwell and switched else "N/A",
        "fabric_access": "False" if blackwell and switched else "N/A",
    }
