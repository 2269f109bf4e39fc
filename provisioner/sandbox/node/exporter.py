"""The DCGM exporter: /metrics for each GPU that answers, with the names of dcgm-exporter's default counters."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import state
from .smi_facts import Driver, NoAnswer, driver

Gpu = dict[str, Any]
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+),")

METRICS = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters for all lanes."),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status"),
)
"""Name, Prometheus type and help text, as dcgm-exporter's default-counters.csv has them."""

ON_REQUEST = (
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors."),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink flow-control CRC errors."),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries."),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink recovery errors."),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Throttling duration due to thermal constraints (in ns)."),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Throttling duration due to power constraints (in ns)."),
)
"""The same for counters that a counters file has to ask for."""

SLOWED_BY = {
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("hw_thermal_slowdown", "sw_thermal_slowdown"),
    "DCGM_FI_DEV_POWER_VIOLATION": ("hw_power_brake_slowdown", "sw_power_cap"),
}
"""Violation → what nvidia-smi calls the reasons for which it counts."""


def _readings(gpu: Gpu, last_xid: int) -> dict[str, Any]:
    """One GPU's values by metric; None where a GPU has no such thing."""
    product, remap = gpu["product"], gpu["remap"]
    # A fault that only DCGM has seen.
    dcgm_only = gpu.get("dcgm", {})
    return {
        "DCGM_FI_DEV_SM_CLOCK": product["idle"][0],
        "DCGM_FI_DEV_MEM_CLOCK": product["idle"][1],
        "DCGM_FI_DEV_MEMORY_TEMP": product["temperature"][1] or 0,
        "DCGM_FI_DEV_GPU_TEMP": product["temperature"][0],
        "DCGM_FI_DEV_POWER_USAGE": f"{product['power'][3] + gpu['index'] * 0.37:.6f}",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": int((time.time() - state.boot_time()) * product["power"][3] * 1000),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
        "DCGM_FI_DEV_GPU_UTIL": 0,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 0,
        "DCGM_FI_DEV_ENC_UTIL": 0,
        "DCGM_FI_DEV_DEC_UTIL": 0,
        "DCGM_FI_DEV_XID_ERRORS": dcgm_only.get("xid", last_xid),
        "DCGM_FI_DEV_FB_FREE": gpu["memory_mib"] - product["reserved"],
        "DCGM_FI_DEV_FB_USED": 0,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": remap["uncorrectable"],
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": remap["correctable"],
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": dcgm_only.get("remap_failure", int(remap["failure"])),
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0 if gpu["links"] else None,
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0,
    }


def _on_request(gpu: Gpu) -> dict[str, Any]:
    """The same for the counters of ON_REQUEST, but for violations."""
    ecc = gpu["ecc"]["mode"] == "Enabled"
    links = [link.get("errors", {}) for link in gpu["links"]]
    return {
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0 if ecc else None,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": sum(gpu["ecc"]["volatile"].values()) if ecc else None,
        **{
            f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL": sum(errors.get(kind, 0) for errors in links)
            if links
            else None
            for name, kind in (("CRC_FLIT", "CRC"), ("REPLAY", "Replay"), ("RECOVERY", "Recovery"))
        },
    }


class Violations:
    """How long each GPU was slowed down, in ns, since the exporter was started; it grows while the reason lasts."""

    def __init__(self) -> None:
        self._total: dict[tuple[str, int], int] = {}
        self._counted_at = time.monotonic_ns()

    def count(self, gpus: Sequence[Gpu]) -> None:
        """Add the time since the last scrape for the reasons that are active now."""
        moment = time.monotonic_ns()
        elapsed, self._counted_at = moment - self._counted_at, moment
        for gpu in gpus:
            active = {key.rpartition("clocks_event_reason_")[2] for key, value in gpu.get("printed", {}).items()
                      if value == "Active"}  # fmt: skip
            for name, reasons in SLOWED_BY.items():
                slowed_ns = elapsed if active.intersection(reasons) else 0
                self._total[name, gpu["index"]] = self._total.get((name, gpu["index"]), 0) + slowed_ns

    def of(self, gpu: Gpu) -> dict[str, int]:
        return {name: self._total.get((name, gpu["index"]), 0) for name in SLOWED_BY}


VIOLATIONS = Violations()


def counters_csv() -> str:
    """default-counters.csv, which the package ships."""
    rows = "".join(f"{name}, {kind}, {text}\n" for name, kind, text in METRICS)
    return "# Counters of the simulated DCGM exporter, by gpuprov\n# field, Prometheus type, help\n" + rows


def counters(file: Path) -> frozenset[str]:
    """Names of the counters that a counters file asks for; those that are not simulated give nothing."""
    rows = (line.split(",")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return frozenset(name for name in rows if name and not name.startswith("#"))


def metrics(loaded: Driver, host: str, names: frozenset[str] | None = None) -> str:
    """The text that Prometheus scrapes; `names` are the counters file's names, None for the default ones."""
    VIOLATIONS.count(loaded.gpus)
    xids: dict[str, int] = {}
    for line in [*loaded.machine.get("kernel_log", []), *state.read(state.KERNEL_LOG, [])]:
        if match := XID.search(line["text"]):
            xids[match[1].lower()] = int(match[2])
    out = []
    for name, kind, help_ in METRICS if names is None else (*METRICS, *ON_REQUEST):
        if names is not None and name not in names:
            continue
        out += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        for number, gpu in enumerate(loaded.gpus):
            last_xid = xids.get(gpu["pci"][4:].rpartition(".")[0].lower(), 0)
            reading = (_readings(gpu, last_xid) | _on_request(gpu) | VIOLATIONS.of(gpu))[name]
            if reading is not None and not gpu["lost"]:
                labels = {
                    "gpu": number,
                    "UUID": gpu["uuid"],
                    "pci_bus_id": gpu["pci"],
                    "device": f"nvidia{number}",
                    "modelName": gpu["name"],
                    "Hostname": host,
                    "DCGM_FI_DRIVER_VERSION": loaded.version,
                }
                joined = ",".join(f'{key}="{text}"' for key, text in labels.items())
                out.append(f"{name}{{{joined}}} {reading}")
    return "\n".join(out) + "\n"


class Scrape(BaseHTTPRequestHandler):
    """GET /metrics and /health."""

    server_version = "dcgm-exporter (simulated by gpuprov)"
    wanted: frozenset[str] | None = None

    def do_GET(self) -> None:
        if self.path not in ("/metrics", "/health", "/"):
            self.send_error(404)
            return
        try:
            body = (
                metrics(driver(running=True), socket.gethostname(), self.wanted) if self.path == "/metrics" else "KO\n"
            )
        except NoAnswer as error:
            self.send_error(500, str(error).splitlines()[0])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """The journal of a node is not for one line a scrape."""


def _option(arguments: list[str], *names: str) -> str | None:
    return next((arguments[i + 1] for i, item in enumerate(arguments[:-1]) if item in names), None)


def dcgm_exporter(arguments: list[str], version: str) -> int:
    if "--version" in arguments:
        print(f"DCGM Exporter version {version} (simulated by gpuprov)")
        return 0
    if state.hardware().get("exporter", {}).get("broken"):
        time.sleep(0.3)
        return 1
    try:
        driver()
    except NoAnswer as error:
        print(f'level=ERROR msg="Failed to initialize NVML: {str(error).splitlines()[0]}"', file=sys.stderr)
        return 1
    if _option(arguments, "-r", "--remote-hostengine-info") is not None and not state.hostengine_runs():
        print('level=ERROR msg="Failed to connect to remote host engine"', file=sys.stderr)
        return 1
    file = _option(arguments, "-f", "--collectors")
    if file is not None:
        try:
            Scrape.wanted = counters(state.path(file.lstrip("/")))
        except OSError as error:
            print(f'level=ERROR msg="Could not read collectors file: {error}"', file=sys.stderr)
            return 1
    address = _option(arguments, "-a", "--address") or os.environ.get("DCGM_EXPORTER_LISTEN") or ":9400"
    host, _, port = address.rpartition(":")
    ThreadingHTTPServer.daemon_threads = True
    server = ThreadingHTTPServer((host or "0.0.0.0", int(port)), Scrape)  # noqa: S104 - as the real one listens
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(3600)
