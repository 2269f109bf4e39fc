"""What ib_write_bw says of healthy network cards, in the table of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provisioner.catalog.models import Machine

CAPTURE = Path(__file__).parents[1] / "unit/verify/captures/perftest/write-bw-words.json"
TABLE = json.loads(CAPTURE.read_text(encoding="utf-8"))["cards"][0]["output"]


OPTICS = {
    "Temperature [C]": "54 [-5..75]", "Voltage [mV]": "3261.2 [2970..3630]",
    "Bias Current [mA]": "8.380,8.380,8.380,8.380 [2..15]",
    "Rx Power Current [dBm]": "1.886,1.989,2.281,1.976 [-10.41..6]",
    "Tx Power Current [dBm]": "1.562,1.427,1.559,1.761 [-8.508..5]",
}  # fmt: skip
"""Readings of a public exporter's test (an OSFP of 400 Gbit/s)."""
SFP = Path(__file__).parents[1] / "unit/verify/captures/ethtool_modules/sfp-sr-within-limits.json"


def names(row: Machine) -> list[str]:
    return list(row.rdma_devices) or [f"rdma{i}" for i in range(row.network.ports)]


def card(name: str, gbps: float) -> dict[str, Any]:
    table = TABLE.replace("8          224958464        0.00               0.48", f"8388608 2000 0.00 {gbps:.2f}")
    return {"device": name, "port": "1", "rc": 0, "timed_out": False, "seconds": 1.0, "output": table, "error": ""}


def loopback_json(row: Machine, share: float = 0.985) -> str:
    return json.dumps({"state": "ran", "cards": [card(name, row.network.rate_gbps * share) for name in names(row)]})


def mlxlink_json(row: Machine) -> str:
    """Keys as in mlxlink_commander.h of mstflint; the envelope as in github MrBr-github/lshca#11."""
    readings = {
        "Operational Info": {"Physical state": "LinkUp", "State": "Active", "Width": "4x"},
        "Physical Counters and BER Info": {
            "Effective Physical BER": "15E-255", "Effective Physical Errors": "0", "Raw Physical BER": "2E-9",
            "Link Down Counter": "0",
        },
        "Module Info": {"FW Version": "47.171.0001", "Vendor Part Number": "MMA4Z00-NS400", **OPTICS},
        "Troubleshooting Info": {"Recommendation": "No issue was observed"},
    }  # fmt: skip
    output = json.dumps({"result": {"output": readings}, "status": {"code": 0, "message": "success"}})
    ran = {"rc": 0, "timed_out": False, "seconds": 0.7, "error": "", "output": output}
    return json.dumps({"state": "ran", "cards": dict.fromkeys(names(row), ran)})


def ib_switches_json(row: Machine) -> str:
    """Each rail at a switch of its own."""
    captured = json.loads((CAPTURE.parents[1] / "ib_switches/switch-and-host.json").read_text(encoding="utf-8"))
    text = json.dumps(captured["ports"]["mlx5_0/1"])
    rails = {f"{name}/1": json.loads(text.replace("004bef70", f"{i:08x}")) for i, name in enumerate(names(row))}
    return json.dumps({"ports": rails})


def roce_qos_json(row: Machine) -> str:
    """Every card marks and queues as a real one does."""
    captured = json.loads((CAPTURE.parents[1] / "roce_qos/class-106-priority-3.json").read_text(encoding="utf-8"))
    return json.dumps({"cards": dict.fromkeys(names(row), captured["cards"]["mlx5_0"]), "nccl": ["NCCL_IB_TC=106"]})


def rails(row: Machine, share: float = 0.98) -> list[dict[str, Any]]:
    """As fabric.json has them."""
    return [{"device": name, "port": 1, "gbps": row.network.rate_gbps * share, "why": ""} for name in names(row)]
