"""DCGM exporter's /metrics: which GPUs it has readings for.

Traps: a TYPE line may be missing, comments stand between samples, MIG samples repeat a family, a blank value is
9223372036854775794, one metric calls its label gpu_uuid.

The label of the host is `Hostname`, in releases after 4.5.3-4.8.2 `hostname` (NVIDIA/dcgm-exporter d5e5f510, #655);
NVLinks have `hostname` since 4.4.1-4.6.0. Times of violations are nanoseconds (NVML) in every release: HELP lines
before 4.4.2-4.7.1 call them "us" (#589 corrects those texts, no value).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool, nvidia

_SAMPLE = re.compile(r"^(DCGM_\w{1,80})\{(.*)\}\s+(\S{1,40})(?:\s+([0-9]{1,16}))?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BLANKS = {9223372036854775792.0, 140737488355328.0, 2147483632.0}
"""DCGM's blank values: 9223372036854775794 and its neighbours (int64, one value as a float), fp64 and int32."""


@dataclass(frozen=True, slots=True)
class Exported:
    """`gpus` maps GPU index → UUID (None if unlabelled) for GPUs with at least one reading; `newest` is the newest
    time stamp of a sample in seconds, None as nearly always: the exporter writes none."""

    gpus: dict[int, str | None]
    metrics: tuple[str, ...]
    driver_version: str | None
    hostname: str | None
    newest: float | None = None
    xids: Mapping[int, int] = field(default_factory=dict)
    """GPU index → the code of its last Xid since DCGM was started; a GPU that had none is not in it."""
    memory: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Field of MEMORY → GPU index → value."""
    temperatures: Mapping[int, float] = field(default_factory=dict)
    """GPU index → °C."""
    throttled: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Reason of VIOLATIONS → GPU index → seconds that the GPU was slowed down for it since its driver was loaded."""


XIDS = "DCGM_FI_DEV_XID_ERRORS"
MEMORY = ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
VIOLATIONS = {
    "DCGM_FI_DEV_POWER_VIOLATION": "power",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "thermal",
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": "sync_boost",
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": "board_limit",
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": "low_utilization",
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": "reliability",
}
"""Counter → the reason for which a GPU was slowed down."""
_NS = 1e9


def parse(text: str) -> Exported:
    gpus: dict[int, str | None] = {}
    metrics: dict[str, None] = {}
    driver = host = None
    newest: float | None = None
    xids: dict[int, int] = {}
    memory: dict[str, dict[int, float]] = {}
    temperatures: dict[int, float] = {}
    throttled: dict[str, dict[int, float]] = {}
    rows = [line for line in lines(text) if line]
    if rows and rows[-1].startswith("DCGM_") and not _SAMPLE.match(rows[-1]):
        raise Unreadable(f"its last sample was cut: {first_line(rows[-1])}")
    for line in rows:
        match = _SAMPLE.match(line)
        if not match:
            continue
        labels = dict(_LABEL.findall(match[2]))
        try:
            value = float(match[3])
        except ValueError:
            continue
        metrics[match[1]] = None
        driver = driver or labels.get("DCGM_FI_DRIVER_VERSION")
        host = host or labels.get("Hostname") or labels.get("hostname")
        if match[4]:
            newest = max(newest or 0.0, int(match[4]) / 1000)
        index = labels.get("gpu", "")
        if value in BLANKS or math.isnan(value) or not re.fullmatch(r"[0-9]{1,4}", index, re.ASCII):
            continue
        if match[1] == XIDS:  # no reading: it stays what it was when the GPU answers no more
            xids |= {int(index): int(value)} if 0 < value < 10_000 else {}
            continue
        if match[1] in MEMORY:
            memory.setdefault(match[1], {})[int(index)] = value
        if match[1] == "DCGM_FI_DEV_GPU_TEMP":
            temperatures[int(index)] = value
        if reason := VIOLATIONS.get(match[1]):
            throttled.setdefault(reason, {})[int(index)] = value / _NS
        gpus[int(index)] = gpus.get(int(index)) or labels.get("UUID") or labels.get("gpu_uuid")
    if not metrics:
        raise Unreadable(f"no DCGM metric in it: {first_line(text)}")
    return Exported(gpus, tuple(metrics), driver, host, newest, xids, memory, temperatures, throttled)


def _document(exported: Exported) -> dict[str, Any]:
    return {
        "gpus": {str(index): uuid for index, uuid in sorted(exported.gpus.items())},
        "metrics": list(exported.metrics),
        "driver_version": exported.driver_version,
        "hostname": exported.hostname,
        "xids": {str(index): code for index, code in sorted(exported.xids.items())},
        "throttled_seconds": {
            reason: {str(index): seconds for index, seconds in sorted(readings.items())}
            for reason, readings in sorted(exported.throttled.items())
        },
    }


TOOLS = (
    Tool(
        file="dcgm-exporter.prom",
        field="dcgm",
        parse=parse,
        seconds=10,
        when=nvidia,
        label="GET http://127.0.0.1:9400/metrics",
        document={"dcgm": _document},
    ),
)
