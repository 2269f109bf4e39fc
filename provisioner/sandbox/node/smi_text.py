"""nvidia-smi's table and -L."""

from __future__ import annotations

from .smi_facts import Driver, timestamp
from .smi_mig_text import device_line
from .smi_mig_text import table as mig_table

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

WIDE = "+-----------------------------------------------------------------------------------------+"
THREE = "+-----------------------------------------+------------------------+----------------------+"


def listing(driver: Driver) -> str:
    return "".join(
        f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n" + "".join(map(device_line, gpu["mig_devices"]))
        for gpu in driver.gpus
    )


def table(driver: Driver) -> str:
    """The table of drivers from 545 on; from 610 on it speaks of KMD and CUDA UMD versions."""
    out = f"{timestamp():<31}\n{WIDE}\n"
    if driver.branch >= 610:
        out += (
            f"| NVIDIA-SMI {driver.version:<23}KMD Version: {driver.version:<14}CUDA UMD Version: {driver.cuda:<9}|\n"
        )
    else:
        out += (
            f"| NVIDIA-SMI {driver.version:<23}Driver Version: {driver.version:<14} CUDA Version: {driver.cuda:<9}|\n"
        )
    out += (
        f"{THREE}\n"
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
        "|                                         |                        |               MIG M. |\n"
        "|=========================================+========================+======================|\n"
    )
    for gpu in driver.gpus:
        out += _rows(gpu) + THREE + "\n"
    return (
        out
        + mig_table(driver.gpus)
        + (
            f"\n{WIDE}\n"
            "| Processes:                                                                              |\n"
            "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
            "|        ID   ID                                                               Usage      |\n"
            "|=========================================================================================|\n"
            "|  No running processes found                                                             |\n"
            f"{WIDE}\n"
        )
    )


def _rows(gpu: dict[str, Any]) -> str:
    product = gpu["product"]
    name = gpu["name"] if len(gpu["name"]) <= 25 else gpu["name"][:22] + "..."
    errors = gpu["ecc"]["volatile"]["sram"] + gpu["ecc"]["volatile"]["dram"]
    ecc = ("On" if gpu["mig_current"] == "Enabled" else str(errors)) if gpu["ecc"]["mode"] == "Enabled" else "N/A"
    fan = f"{product['fan']}%" if "fan" in product else "N/A"
    perf = "P8" if product["brand"] == "GeForce" else "P0"
    persistence = "On" if gpu["persistence"] == "Enabled" else "Off"
    power = f"{product['power'][3]}W / {product['power'][0]:>4}W"
    busy = "N/A" if gpu["mig_current"] == "Enabled" else "0%"
    memory = f"0MiB / {gpu['memory_mib']:>6}MiB"
    if gpu["lost"]:
        return (
            f"|{gpu['index']:>4}  {'ERR!':<28}{persistence:>5}  |{gpu['pci']:>19} Off |{'ERR!':>21} |\n"
            f"|ERR!  ERR! ERR! {'ERR! / ERR!':>24} |{'GPU is lost':>23} |{'ERR!':>8}{'ERR!':>13} |\n"
            f"|{'':41}|{'':24}|{'ERR!':>21} |\n"
        )
    return (
        f"|{gpu['index']:>4}  {name:<28}{persistence:>5}  |{gpu['pci']:>19} Off |{ecc:>21} |\n"
        f"|{fan:>4}{product['temperature'][0]:>5}C    {perf}{power:>24} |{memory:>23} |{busy:>8}{'Default':>13} |\n"
        f"|{'':41}|{'':24}|{gpu['mig_current']:>21} |\n"
    )
