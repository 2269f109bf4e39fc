"""nvme-cli: what the machine's NVMe disks are said to tell of their health, as nvme-cli 2 prints it as JSON.

Fields and their order: libnvme's and nvme-cli's nvme-print-json.c (smart_log); temperatures are in kelvin.
"""

from __future__ import annotations

import json
import sys

from . import state, storage

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

ASKED = "run/gpuprov-sandbox/media-errors.json"
"""Disk → how often it was asked: one whose flash fails counts another error each time."""


def nvme(arguments: list[str], _version: str) -> int:
    if arguments == ["version"]:
        print("nvme version 2.3 (git 2.3)\nlibnvme version 1.3 (git 1.3)")
        return 0
    device = next((a for a in arguments[1:] if not a.startswith("-")), "")
    if arguments[:1] != ["smart-log"] or "--output-format=json" not in arguments or not device:
        print("nvme: this form is not simulated by gpuprov", file=sys.stderr)
        return 1
    name = device.removeprefix("/dev/")
    disk = next((d for d in storage.disks() if d["name"] in (name, f"{name}n1")), None)
    if disk is None or disk.get("state", "live") == "dead":
        print(f"{device}: No such file or directory", file=sys.stderr)
        return 1
    print(json.dumps(smart_log(disk), indent=2))
    return 0


def smart_log(disk: Json) -> Json:
    log: Json = disk.get("smart", {})
    errors = 0
    if log.get("failing"):
        name = disk["name"]
        state.change(ASKED, lambda counts: {**counts, name: counts.get(name, 0) + 1}, {})
        errors = state.read(ASKED, {})[name]
    return {
        "critical_warning": log.get("critical_warning", 0), "temperature": 311, "avail_spare": 100, "spare_thresh": 10,
        "percent_used": log.get("percent_used", 2), "endurance_grp_critical_warning_summary": 0,
        "data_units_read": 201526305, "data_units_written": 188048213, "host_read_commands": 660948177,
        "host_write_commands": 251748228, "controller_busy_time": 4612, "power_cycles": 6, "power_on_hours": 2410,
        "unsafe_shutdowns": 0, "media_errors": errors, "num_err_log_entries": errors, "warning_temp_time": 0,
        "critical_comp_time": 0,
    }  # fmt: skip
