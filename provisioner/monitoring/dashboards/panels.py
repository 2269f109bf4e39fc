"""The dashboards as data: which panel shows which query, in which unit.

`{of}` in a query stands for the selector that the variables of the dashboard give. Units are Grafana's ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from provisioner.monitoring.models import SCRAPE_S
from provisioner.monitoring.rules.usage import GPUS_IN_USE, GPUS_PAID, GPUS_PRESENT, PRICE_HOUR, UTILISATION_MEAN

Kind = Literal["number", "cells", "lines", "table"]
"""number: one value; cells: one coloured cell for each series; lines: over time; table: one row for each series."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query and its legend. `absent`: why it may have no series, where a healthy fleet may have none."""

    expr: str
    legend: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`steps`: from which value on a cell or number is of a colour, first step without a value. `width`: of 24."""

    title: str
    kind: Kind
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    width: int = 12
    steps: tuple[tuple[float | None, str], ...] = ()
    to_node: bool = False
    """Whether a series links to the dashboard of its node."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `variables`: labels by which the user narrows it, each within those before it."""

    name: str
    title: str
    about: str
    variables: tuple[str, ...]
    panels: tuple[Panel, ...]


AN_HOUR = 3600 // SCRAPE_S
"""Samples of a recording rule in an hour."""
OK_BAD = ((None, "green"), (1.0, "red"))
BAD_OK = ((None, "red"), (1.0, "green"))
NO_FAILURE = "no check fails"
NO_NVLINK, NO_RDMA, NO_ECC = "no NVLink in the fleet", "no InfiniBand or RoCE in the fleet", "GPUs without ECC"
NO_EFA = "no EFA in the fleet"
NO_PRICE = "machines whose price is unknown, or that are not bought"
NO_SENSOR = "GPUs without a sensor at their memory"
NO_MIG = "all GPUs are cut up by MIG"
NODE_LEGEND, GROUP_LEGEND = "{{cluster}} {{node}}", "{{cluster}} {{group}}"
GPU_LEGEND, CELL_LEGEND = f"{NODE_LEGEND} GPU {{{{gpu}}}}", f"{NODE_LEGEND}/{{{{gpu}}}}"
PORT_LEGEND = f"{NODE_LEGEND} {{{{device}}}}"


def _efa(title: str, unit: str, query: str, *queries: tuple[str, str], about: str = "") -> Panel:
    """Queries on EFA's counters, which are read every 10 minutes. `queries`: counter → its legend; `query` has
    `{counter}` for it."""
    rows = tuple(
        Query(query.replace("{counter}", f"gpuprov_efa_{counter}_total{{of}}"), f"{NODE_LEGEND} {legend}", NO_EFA)
        for counter, legend in queries
    )
    return Panel(title, "lines", unit, rows, about)


def _gpu(title: str, metric: str, unit: str, about: str = "", absent: str = "", rate: bool = False) -> Panel:
    expr = f"rate({metric}{{of}}[$__rate_interval])" if rate else f"{metric}{{of}}"
    return Panel(title, "lines", unit, (Query(expr, GPU_LEGEND, absent),), about)


FLEET = Board(
    "fleet",
    "GPU fleet",
    "Which nodes and GPUs are healthy, and how busy they are.",
    ("cluster", "group"),
    (
        Panel("Nodes that answer", "number", "none", (Query('sum(up{job="gpuprov-node",of})'),), width=4),
        Panel(
            "Nodes that do not",
            "number",
            "none",
            (Query('count(up{job="gpuprov-node",of} == 0) or vector(0)'),),
            width=4,
            steps=OK_BAD,
        ),
        Panel(
            "Nodes with a failed check",
            "number",
            "none",
            (Query("count(gpuprov_node_ok{of} == 0) or vector(0)"),),
            "No fatal check may fail or be unknown.",
            width=4,
            steps=OK_BAD,
        ),
        Panel("GPUs that answer", "number", "none", (Query(f"sum({GPUS_PRESENT}{{of}})"),), width=4),
        Panel("GPUs in use", "number", "none", (Query(f"sum({GPUS_IN_USE}{{of}})", absent=NO_MIG),), width=4),
        Panel(
            "Alerts",
            "number",
            "none",
            (Query('count(ALERTS{alertstate="firing",severity=~"page|ticket",of}) or vector(0)'),),
            width=4,
            steps=OK_BAD,
        ),
        Panel(
            "Utilization, one cell for each GPU",
            "cells",
            "percent",
            (Query("DCGM_FI_DEV_GPU_UTIL{of}", CELL_LEGEND, NO_MIG),),
            "A GPU that is cut up by MIG has none.",
            width=24,
            steps=((None, "blue"), (5.0, "green"), (95.0, "dark-green")),
            to_node=True,
        ),
        Panel(
            "Temperature, one cell for each GPU",
            "cells",
            "celsius",
            (Query("max by (cluster, node, gpu) (DCGM_FI_DEV_GPU_TEMP{of})", CELL_LEGEND),),
            width=24,
            steps=((None, "green"), (80.0, "orange"), (90.0, "red")),
            to_node=True,
        ),
        Panel(
            "Failed checks",
            "table",
            "none",
            (Query("gpuprov_check{of} == 0", absent=NO_FAILURE),),
            "What to do: `gpuprov docs runbook CHECK`.",
            to_node=True,
        ),
        Panel(
            "Firing alerts",
            "table",
            "none",
            (Query('ALERTS{alertstate="firing",severity=~"page|ticket",of}', absent="no alert fires"),),
            to_node=True,
        ),
    ),
)

NODE = Board(
    "node",
    "GPU node",
    "One node: its host, its GPUs, its checks.",
    ("cluster", "group", "node"),
    (
        Panel("Answers", "number", "bool_yes_no", (Query('min(up{job="gpuprov-node",of})'),), width=4, steps=BAD_OK),
        Panel("Healthy", "number", "bool_yes_no", (Query("min(gpuprov_node_ok{of})"),), width=4, steps=BAD_OK),
        Panel(
            "Last run of the checks",
            "number",
            "s",
            (Query("max(time() - gpuprov_check_timestamp_seconds{of})"),),
            "Seconds ago.",
            width=4,
        ),
        Panel(
            "Failed checks",
            "table",
            "none",
            (Query("gpuprov_check{of} == 0", absent=NO_FAILURE),),
            "What to do: `gpuprov docs runbook CHECK`.",
        ),
        Panel(
            "Processors",
            "lines",
            "percentunit",
            (
                Query(
                    '1 - avg by (cluster, node) (rate(node_cpu_seconds_total{mode="idle",of}[$__rate_interval]))',
                    NODE_LEGEND,
                ),
            ),
        ),
        Panel(
            "Memory in use",
            "lines",
            "percentunit",
            (Query("1 - node_memory_MemAvailable_bytes{of} / node_memory_MemTotal_bytes{of}", NODE_LEGEND),),
        ),
        Panel(
            "Disks in use",
            "lines",
            "percentunit",
            (
                Query(
                    '1 - node_filesystem_avail_bytes{fstype!~"tmpfs|overlay|squashfs",of} '
                    '/ node_filesystem_size_bytes{fstype!~"tmpfs|overlay|squashfs",of}',
                    f"{NODE_LEGEND} {{{{mountpoint}}}}",
                ),
            ),
        ),
        Panel(
            "Ethernet",
            "lines",
            "Bps",
            (
                Query('rate(node_network_receive_bytes_total{device!="lo",of}[$__rate_interval])', "{{device}} in"),
                Query('rate(node_network_transmit_bytes_total{device!="lo",of}[$__rate_interval])', "{{device}} out"),
            ),
        ),
        _gpu("Utilization", "DCGM_FI_DEV_GPU_UTIL", "percent", absent=NO_MIG),
        _gpu("Temperature", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
        _gpu("Power", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        _gpu("Memory in use", "DCGM_FI_DEV_FB_USED", "decmbytes"),
    ),
)

GPU = Board(
    "gpu",
    "GPU",
    "Readings and error counters of single GPUs.",
    ("cluster", "group", "node", "gpu"),
    (
        _gpu("Utilization", "DCGM_FI_DEV_GPU_UTIL", "percent", "A kernel ran; how well is another question.", NO_MIG),
        _gpu("SM clock", "DCGM_FI_DEV_SM_CLOCK", "rotmhz"),
        _gpu("Power", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        _gpu("Temperature", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
        _gpu("Memory temperature", "DCGM_FI_DEV_MEMORY_TEMP", "celsius", absent=NO_SENSOR),
        _gpu("Memory in use", "DCGM_FI_DEV_FB_USED", "decmbytes"),
        Panel(
            "Slowed down",
            "lines",
            "percentunit",
            (
                Query("rate(DCGM_FI_DEV_THERMAL_VIOLATION{of}[$__rate_interval]) / 1e9", f"{GPU_LEGEND} heat"),
                Query("rate(DCGM_FI_DEV_POWER_VIOLATION{of}[$__rate_interval]) / 1e9", f"{GPU_LEGEND} power"),
            ),
            "Share of the time for which the driver lowered clocks.",
        ),
        _gpu("Last Xid", "DCGM_FI_DEV_XID_ERRORS", "none", "It stays until the driver is loaded again."),
        _gpu("Uncorrectable memory errors", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "none", absent=NO_ECC),
        _gpu("Remapped rows", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "none", absent="GPUs that remap no rows"),
        _gpu("PCIe replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "cps", rate=True),
        _gpu("Mean power", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mwatt", "From the energy counter.", rate=True),
    ),
)

NETWORK = Board(
    "network",
    "GPU network",
    "InfiniBand and RoCE ports, EFA devices, NVLinks.",
    ("cluster", "group", "node"),
    (
        Panel(
            "Active RDMA ports",
            "lines",
            "none",
            (Query("count by (cluster, node) (node_infiniband_state_id{of} == 4)", NODE_LEGEND, NO_RDMA),),
        ),
        Panel(
            "Links lost in an hour",
            "lines",
            "none",
            (Query("increase(node_infiniband_link_downed_total{of}[1h])", PORT_LEGEND, NO_RDMA),),
        ),
        Panel(
            "RDMA received",
            "lines",
            "Bps",
            (
                Query(
                    "rate(node_infiniband_port_data_received_bytes_total{of}[$__rate_interval])", PORT_LEGEND, NO_RDMA
                ),
            ),
        ),
        Panel(
            "RDMA sent",
            "lines",
            "Bps",
            (
                Query(
                    "rate(node_infiniband_port_data_transmitted_bytes_total{of}[$__rate_interval])",
                    PORT_LEGEND,
                    NO_RDMA,
                ),
            ),
        ),
        Panel(
            "Receive errors",
            "lines",
            "cps",
            (Query("rate(node_infiniband_port_errors_received_total{of}[$__rate_interval])", PORT_LEGEND, NO_RDMA),),
        ),
        _efa(
            "EFA traffic",
            "Bps",
            "sum by (cluster, node) (rate({counter}[30m]))",
            ("rx_bytes", "received"),
            ("tx_bytes", "sent"),
            about="All devices of a node, mean of 30 minutes: the counters are read every 10 minutes.",
        ),
        _efa("EFA packets dropped in an hour", "none", "increase({counter}[1h])", ("rx_drops", "{{device}}")),
        _efa(
            "EFA timeouts and connections in trouble in an hour",
            "none",
            "sum by (cluster, node) (increase({counter}[1h]))",
            ("retrans_timeout_events", "timeouts"),
            ("impaired_remote_conn_events", "slowed down"),
            ("unresponsive_remote_events", "no answer"),
            about="All devices of a node. AWS documents these counters for Nitro v4 and later.",
        ),
        _gpu("NVLink replays", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "cps", absent=NO_NVLINK, rate=True),
        _gpu("NVLink recoveries", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "cps", absent=NO_NVLINK, rate=True),
    ),
)

USAGE = Board(
    "usage",
    "GPU cost and use",
    "GPUs that are paid for, GPUs that are used, and what idle ones cost at list price.",
    ("cluster", "group"),
    (
        Panel(
            "GPUs",
            "lines",
            "none",
            (
                Query(f"sum by (cluster, group) ({GPUS_PAID}{{of}})", f"{GROUP_LEGEND} paid"),
                Query(f"sum by (cluster, group) ({GPUS_IN_USE}{{of}})", f"{GROUP_LEGEND} in use", NO_MIG),
            ),
        ),
        Panel("Mean utilization", "lines", "percentunit", (Query(f"{UTILISATION_MEAN}{{of}}", GROUP_LEGEND, NO_MIG),)),
        Panel(
            "List price an hour",
            "lines",
            "none",
            (Query(f"{PRICE_HOUR}{{of}}", f"{GROUP_LEGEND} {{{{currency}}}}", NO_PRICE),),
            "In the currency of the provider's list, on demand.",
        ),
        Panel(
            "Price of idle GPUs an hour",
            "lines",
            "none",
            (
                Query(
                    f"{PRICE_HOUR}{{of}} * on (cluster, group) (1 - {GPUS_IN_USE}{{of}} / {GPUS_PAID}{{of}})",
                    GROUP_LEGEND,
                    NO_PRICE,
                ),
            ),
            "Share of the GPUs that are not in use, times the price.",
        ),
        Panel(
            "GPU hours in 24 hours",
            "table",
            "none",
            (
                Query(
                    f"sum by (cluster, group) (sum_over_time({GPUS_PAID}{{of}}[24h])) / {AN_HOUR}",
                    f"{GROUP_LEGEND} paid",
                ),
                Query(
                    f"sum by (cluster, group) (sum_over_time({GPUS_IN_USE}{{of}}[24h])) / {AN_HOUR}",
                    f"{GROUP_LEGEND} in use",
                    NO_MIG,
                ),
            ),
        ),
    ),
)

BOARDS = (FLEET, NODE, GPU, NETWORK, USAGE)
