"""dcgmi of DCGM 4: discovery -l, diag -r N [-j], health."""

from __future__ import annotations

import json
import sys

from . import state
from .smi_facts import Driver, NoAnswer, driver

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

RULE = "+--------+----------------------------------------------------------------------+"


def dcgmi(arguments: list[str], version: str) -> int:
    if "--version" in arguments:
        print(f"\ndcgmi  version: {version} (simulated by gpuprov)\n")
        return 0
    if not state.hostengine_runs():
        print(
            "Error: unable to establish a connection to the specified host: localhost\n"
            "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
        )
        return 234
    try:
        loaded = driver()
    except NoAnswer:
        loaded = None
    command = arguments[0] if arguments else ""
    if command == "discovery":
        return _discovery(loaded)
    if loaded is None:
        print("Error: the NVIDIA driver is not loaded", file=sys.stderr)
        return 1
    if command == "diag":
        level = int(arguments[arguments.index("-r") + 1]) if "-r" in arguments[:-1] else 1
        return _diag(loaded, version, level, "-j" in arguments or "--json" in arguments)
    if command == "health":
        return _health(loaded, arguments)
    print(f"dcgmi {command}: not simulated by gpuprov", file=sys.stderr)
    return 1


def _discovery(loaded: Driver | None) -> int:
    gpus = loaded.gpus if loaded else ()
    switches = len(loaded.machine["switches"]) if loaded else 0
    print(
        f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''} found.\n"
        f"{RULE}\n| GPU ID | Device Information{' ' * 50} |\n{RULE}"
    )
    for gpu in gpus:
        for i, line in enumerate((f"Name: {gpu['name']}", f"PCI Bus ID: {gpu['pci']}", f"Device UUID: {gpu['uuid']}")):
            print(f"| {gpu['index'] if i == 0 else '':<6} | {line:<68} |")
        print(RULE)
    print(f"{switches} NvSwitches found.\n+-----------+\n| Switch ID |\n+-----------+")
    for i in range(switches):
        print(f"| {i:<9} |")
    print("+-----------+")
    return 0


TESTS = {
    1: ("software",),
    2: ("memory", "pcie"),
    3: ("diagnostic", "targeted_stress", "targeted_power", "memory_bandwidth"),
    4: ("memtest", "pulse_test"),
}
CATEGORY = {"software": "Deployment", "memory": "Hardware", "diagnostic": "Hardware", "pcie": "Integration"}


def _warnings(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    if gpu["persistence"] != "Enabled":
        rows.append(
            (
                8,
                29,
                5,
                f"Persistence Mode: Persistence mode for GPU {gpu['index']} is disabled. "
                'Enable persistence mode by running "nvidia-smi -i <gpuId> -pm 1 " as root.',
            )
        )
    if gpu["remap"]["pending"]:
        rows.append(
            (
                3,
                84,
                2,
                f"GPU {gpu['index']} had uncorrectable memory errors and row remapping is pending. Reset the GPU.",
            )
        )
    if gpu["ecc"]["volatile"]["dram"]:
        rows.append((3, 83, 2, f"A DBE has been detected on GPU {gpu['index']}. Drain the GPU and reset it."))
    return [{"error_category": c, "error_id": i, "error_severity": s, "warning": w} for c, i, s, w in rows]


def _diag(loaded: Driver, version: str, level: int, as_json: bool) -> int:
    tests = [test for step in range(1, level + 1) for test in TESTS.get(step, ())]
    failed = False
    categories: dict[str, list[dict[str, Any]]] = {}
    for test in tests:
        results = []
        for gpu in loaded.gpus:
            warnings = _warnings(gpu) if test == "software" else []
            result: dict[str, Any] = {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entity_id": gpu["index"],
                "status": "Fail" if warnings else "Pass",
            }
            results.append({**result, "warnings": warnings} if warnings else result)
            failed = failed or bool(warnings)
        bad = any(r["status"] == "Fail" for r in results)
        entry: dict[str, Any] = {
            "name": test,
            "results": results,
            "test_summary": {"status": "Fail" if bad else "Pass"},
        }
        categories.setdefault(CATEGORY.get(test, "Stress"), []).append(entry)
    if as_json:
        print(
            json.dumps(
                {
                    "DCGM Diagnostic": {
                        "test_categories": [{"category": c, "tests": t} for c, t in categories.items()]
                    },
                    "entity_groups": [
                        {
                            "entities": [
                                {
                                    "device_id": g["pci_device_id"][:4].lower(),
                                    "entity_id": g["index"],
                                    "serial_num": g["serial"],
                                }
                                for g in loaded.gpus
                            ],
                            "entity_group": "GPU",
                            "entity_group_id": 1,
                        }
                    ],
                    "metadata": {"Driver Version Detected": loaded.version, "version": version},
                },
                indent="\t",
                separators=(",", " : "),
            )
        )
        return 226 if failed else 0
    line = "+---------------------------+------------------------------------------------+"
    print(
        f"Successfully ran diagnostic for group.\n{line}\n"
        f"| Diagnostic                | Result                                         |\n{line}"
    )
    for category, entries in categories.items():
        print(f"|-----  {category}  {'-' * (18 - len(category))}+------------------------------------------------|")
        for entry in entries:
            print(f"| {entry['name']:<25} | {entry['test_summary']['status']:<46} |")
    print(line)
    return 226 if failed else 0


WATCHES = "run/gpuprov-sandbox/health-watches.json"
"""Process of the host engine for which watches were set: they end with it."""


def _health(loaded: Driver, arguments: list[str]) -> int:
    engine = state.read("run/gpuprov-sandbox/hostengine.json", {}).get("pid")
    if "-s" in arguments or "--set" in arguments:
        state.write(WATCHES, {"pid": engine})
        print("Health monitor systems set successfully.")
        return 0
    if state.read(WATCHES, {}).get("pid") != engine:
        print("Error: Health watches not enabled. Please enable watches. ")
        return 255
    rows = [(gpu["index"], *row) for gpu in loaded.gpus for row in _incidents(gpu)]
    states = {row[2] for row in rows}
    overall = "Failure" if "Failure" in states else "Warning" if states else "Healthy"
    if "-j" in arguments or "--json" in arguments:
        body: dict[str, Any] = {"Overall Health": {"value": overall}}
        for index, system, how, message in rows:
            gpus = body.setdefault("GPU", {"children": {}})["children"]
            entity = gpus.setdefault(str(index), {"children": {"Errors": {"children": {}}}, "value": how})
            entity["children"]["Errors"]["children"][system] = {"overflow": [message], "value": how}
        print(json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent=3))
        return 0
    line = f"+{'-' * 27}+{'-' * 58}+"
    print(f"{line}\n| {'Health Monitor Report':<85}|\n{line.replace('-', '=')}")
    print(f"| {'Overall Health':<25} | {overall:<56} |")
    for number, (index, system, how, message) in enumerate(rows):
        label = [("GPU", "")] if number == 0 else []
        for name, value in [
            *label,
            (f"-> {index}", how),
            ("   -> Errors", ""),
            (f"      -> {system}", how),
            ("", message),
        ]:
            print(f"| {name:<25} | {value[:56]:<56} |")
    print(line)
    return 0


def _incidents(gpu: dict[str, Any]) -> list[tuple[str, str, str]]:
    """System, state and message of what the watches see."""
    rows = []
    if gpu["ecc"]["volatile"]["dram"]:
        rows.append(("Memory system", "Failure", f"A DBE has been detected on GPU {gpu['index']}. Drain the GPU."))
    if gpu["remap"]["pending"]:
        rows.append(("Memory system", "Warning", f"GPU {gpu['index']} has a row remapping that is pending."))
    return rows + [tuple(row) for row in gpu.get("watched", [])]
