"""What exporters of healthy nodes give: dcgm-exporter (role dcgm_exporter has the list of counters), node_exporter and
gpuprov's own timer. The hardware is made up; names are held to the real exporters by
tests/unit/monitoring/test_dashboards.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from provisioner import spec
from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup, watched_fleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB
from provisioner.monitoring.rules.checks import watched_checks
from provisioner.monitoring.rules.gpus import watched_metrics
from provisioner.monitoring.rules.series import series_text
from tests.support.sandbox_cluster import ROOT

Value = Callable[[float], float]
"""Seconds since the first sample → the sample."""


@dataclass(frozen=True)
class Signal:
    """One series of a node."""

    metric: str
    labels: Mapping[str, str]
    value: Value


def example(name: str) -> WatchedFleet:
    """The fleet of a file of examples/."""
    return watched_fleet(spec.load(ROOT / "examples" / name), simulated=False)


def signals(fleet: WatchedFleet, nodes: int, began: float) -> Iterator[Signal]:
    """All series of the first so many nodes of each group. `began`: time of the first sample."""
    for group in fleet.groups:
        for number in range(min(nodes, group.count)):
            yield from _node(fleet, group, f"{group.name}-{number}", began)


def _node(fleet: WatchedFleet, group: WatchedGroup, name: str, began: float) -> Iterator[Signal]:
    target = fleet.labels(group, name)
    on_host = {**target, "job": NODE_JOB, "instance": f"{name}:9100"}
    yield Signal("up", on_host, _always(1))
    if fleet.health_minutes is not None:
        every_s = fleet.health_minutes * 60
        for check, declared in watched_checks(fleet).items():
            labels = {**on_host, "check": check, "severity": declared[0].severity}
            yield Signal("gpuprov_check", labels, _always(1))
        yield Signal("gpuprov_node_ok", on_host, _always(1))
        yield Signal("gpuprov_check_timestamp_seconds", on_host, lambda t: began + t // every_s * every_s)
    yield from _host(on_host)
    if group.rdma:
        for port in range(group.machine.network.ports):
            yield from _port({**on_host, "device": f"mlx5_{port}", "port": "1"})
    if group.efa and fleet.health_minutes is not None:
        for device in range(group.machine.network.ports):
            yield from _efa({**on_host, "device": f"rdmap{device}s27"})
    if group.has_dcgm and fleet.exports_dcgm:
        exporter = {**target, "job": DCGM_JOB, "instance": f"{name}:9400"}
        yield Signal("up", exporter, _always(1))
        groups_of = watched_metrics(fleet)
        expected_metrics = {metric for metric in groups_of if group.name in groups_of[metric]}
        for gpu in range(group.machine.gpu_count):
            labels = {**exporter, "gpu": str(gpu), "UUID": f"GPU-{name}-{gpu}", "modelName": "simulated"}
            for metric, value in _gpu(gpu).items():
                if metric in expected_metrics or metric not in watched_metrics(fleet):
                    yield Signal(metric, labels, value)


def _host(labels: Mapping[str, str]) -> Iterator[Signal]:
    yield Signal("node_cpu_seconds_total", {**labels, "cpu": "0", "mode": "idle"}, lambda t: 0.5 * t)
    yield Signal("node_memory_MemAvailable_bytes", labels, _always(5e11))
    yield Signal("node_memory_MemTotal_bytes", labels, _always(1e12))
    disk = {**labels, "device": "/dev/nvme0n1p1", "fstype": "ext4", "mountpoint": "/"}
    yield Signal("node_filesystem_avail_bytes", disk, _always(1e11))
    yield Signal("node_filesystem_size_bytes", disk, _always(2e11))
    yield Signal("node_filesystem_readonly", disk, _always(0))
    yield Signal("node_vmstat_oom_kill", labels, _always(2))
    for direction in ("receive", "transmit"):
        yield Signal(f"node_network_{direction}_bytes_total", {**labels, "device": "ens5"}, lambda t: 1e6 * t)


def _port(labels: Mapping[str, str]) -> Iterator[Signal]:
    yield Signal("node_infiniband_state_id", labels, _always(4))
    yield Signal("node_infiniband_link_downed_total", labels, _always(1))
    yield Signal("node_infiniband_port_errors_received_total", labels, _always(12))
    for direction in ("received", "transmitted"):
        yield Signal(f"node_infiniband_port_data_{direction}_bytes_total", labels, lambda t: 1e9 * t)


def _efa(labels: Mapping[str, str]) -> Iterator[Signal]:
    """As the timer writes them, which reads counters every 10 minutes."""
    for direction in ("rx", "tx"):
        yield Signal(f"gpuprov_efa_{direction}_bytes_total", labels, lambda t: 1e9 * (t // 600 * 600))
    yield Signal("gpuprov_efa_rx_drops_total", labels, lambda t: 20 * (t // 36000))  # of jobs that are killed
    for event in ("retrans_timeout", "impaired_remote_conn", "unresponsive_remote"):
        yield Signal(f"gpuprov_efa_{event}_events_total", labels, lambda t: 5 * (t // 36000))


def _gpu(number: int) -> dict[str, Value]:
    """Two hours of work, half an hour of rest, over and over; GPUs of a node differ a little."""

    def load(t: float) -> float:
        return 1.0 if t % 9000 < 7200 else 0.0

    def wave(t: float) -> float:
        return math.sin(t / 300 + number)

    return {
        "DCGM_FI_DEV_GPU_UTIL": lambda t: load(t) * (95 + 4 * wave(t)),
        "DCGM_FI_DEV_GPU_TEMP": lambda t: round(35 + 35 * load(t) + 3 * wave(t) + number % 3),
        "DCGM_FI_DEV_MEMORY_TEMP": lambda t: round(40 + 40 * load(t) + number % 3),
        "DCGM_FI_DEV_POWER_USAGE": lambda t: 60 + 330 * load(t) + 5 * wave(t),
        "DCGM_FI_DEV_SM_CLOCK": lambda t: 210 + load(t) * (1150 + 15 * wave(t)),
        "DCGM_FI_DEV_FB_USED": lambda t: 500 + 38000 * load(t),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda t: 350_000 * t,
        "DCGM_FI_DEV_XID_ERRORS": _always(31 if number == 2 else 0),  # of a program, before the first sample
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _always(3),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _always(0),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": _always(0),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _always(1 if number == 1 else 0),
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _always(0),
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _always(0),
        "DCGM_FI_DEV_THERMAL_VIOLATION": _always(1e9),
        "DCGM_FI_DEV_POWER_VIOLATION": lambda t: 3e8 * t,  # a GPU at work meets its power limit
    }


def _always(value: float) -> Value:
    return lambda _: value


def text_of(row: Signal) -> str:
    """As Prometheus writes a series."""
    return series_text(row.metric, row.labels)
