"""rocm-smi on AMD machines: --json with the fields that gpuprov's probe asks for, and the concise table."""

from __future__ import annotations

import json
import sys

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any


def rocm_smi(arguments: list[str], version: str) -> int:
    gpus = (
        [gpu for gpu in state.hardware().get("gpus", []) if gpu["present"]]
        if state.hardware().get("vendor") == "amd"
        else []
    )
    if not gpus:
        print("ERROR:root:Driver not initialized (amdgpu not found in modules)", file=sys.stderr)
        return 1
    if "--json" not in arguments:
        print(
            "========================= ROCm System Management "
            "Interface (simulated by gpuprov) ========================="
        )
        for gpu in gpus:
            print(f"{gpu['index']:<4} {gpu['name']:<32} {gpu['pci'][4:]}  {gpu['memory_mib']} MiB")
        return 0
    answer: dict[str, Any] = {f"card{gpu['index']}": _card(gpu) for gpu in gpus}
    answer["system"] = {"Driver version": version or "6.10.5"}
    print(json.dumps(answer))
    return 0


def _card(gpu: dict[str, Any]) -> dict[str, str]:
    product = gpu["product"]
    return {
        "Device Name": gpu["name"],
        "Device ID": f"0x{product['device']}",
        "Device Rev": f"0x{product['revision']}",
        "Unique ID": f"0x{gpu['uuid'][4:12]}{gpu['uuid'][9:13]}".replace("-", "0"),
        "Serial Number": gpu["serial"],
        "PCI Bus": gpu["pci"][4:],
        "VRAM Total Memory (B)": str(gpu["memory_mib"] * 2**20),
        "VRAM Total Used Memory (B)": "298135552",
        "Card Series": gpu["name"],
        "Card Model": f"0x{product['device']}",
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": product["sku"],
        "VBIOS version": product["vbios"],
        "GPU memory vendor": "hynix",
        "PCIe Replay Count": "0",
        "MEC firmware version": "143" if not gpu.get("firmware") else str(gpu["firmware"]),
        "SDMA firmware version": "19",
        **({"XGMI Error count": str(gpu["xgmi_errors"])} if "xgmi_errors" in gpu else {}),
        "GFX Version": "gfx942" if "MI300" in gpu["name"] else "gfx90a",
        "Temperature (Sensor junction) (C)": "38.0",
        "Average Graphics Package Power (W)": "132.0",
    }
