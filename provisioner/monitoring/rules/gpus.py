"""Alerts on GPUs, from dcgm-exporter: missing, memory errors, NVLink errors, slowed down, hotter or slower than others.

For each machine type the rules of those metrics that its GPUs have, and one rule for each metric that fires where it is
absent although they have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import DCGM_JOB, SCRAPE_S, AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.series import (
    LONG_S,
    ON_NODE,
    VERIFY,
    constant,
    on_gpu,
    on_gpus,
    rising,
    samples,
    select,
    up,
)

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"
XID = "DCGM_FI_DEV_XID_ERRORS"
SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK"
DOUBLE_BIT = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
REMAPPED = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
NVLINK_RECOVERY = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
NVLINK_REPLAY = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
PCIE_REPLAY = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
HEAT = "DCGM_FI_DEV_THERMAL_VIOLATION"
POWER_CAP = "DCGM_FI_DEV_POWER_VIOLATION"

REMAPS_ROWS = ("ampere", "hopper", "blackwell")
"""Architectures whose memory remaps rows (NVIDIA A100 GPU Memory Error Management; dcgm-exporter's own list has the
fields for Ampere and later). Ada's cards with GDDR6 are left out: nothing published says that they give it."""
NS = 1e9
"""Violations are counted in nanoseconds (NVIDIA/dcgm-exporter#589)."""
THERMAL_SHARE = 0.05
HOTTER, SLOWER, AT_WORK = 15, 0.85, 50
"""°C above the group's median (check fleet.hot); share of its median SM clock; per cent of utilisation: judgement, so
both make tickets."""
LOST_SHARE = 0.5
"""NVIDIA/NVSentinel#1748: a degrading GPU stalls DCGM so that most samples of the others are lost while `up` is 1."""


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where no node exports DCGM's metrics."""
    if not (groups := fleet.dcgm_groups):
        return None
    first = groups[0]
    absences = {metric: absence_name(metric) for metric in watched_metrics(fleet)}
    rules: list[AlertRule] = []
    for group in groups:
        rules += _missing(fleet, group)
    for metric, rules_of in ((DOUBLE_BIT, _memory_errors), (REMAP_FAILURE, _remapping), (NVLINK_RECOVERY, _links)):
        if (first_with := _first(fleet, metric)) is not None:
            rules += rules_of(fleet, first_with, absences)
    rules += _slowed_down(fleet, first, absences)
    if (first_with := _first(fleet, UTILISATION)) is not None:
        rules += _against_group(fleet, first_with, absences)
    rules += (_absence(fleet, metric) for metric in absences)
    return RuleGroup(f"gpuprov-gpus-{fleet.cluster}", tuple(rules))


def watched_metrics(fleet: WatchedFleet) -> Mapping[str, tuple[str, ...]]:
    """Metric → the groups whose nodes have to give it. DCGM has no utilisation of a GPU that MIG cuts up
    (NVIDIA/dcgm-exporter#272), no error counts of memory without ECC, no links of a card without."""
    metrics: dict[str, list[str]] = {}
    for group in fleet.dcgm_groups:
        of_machine = [TEMPERATURE, POWER, SM_CLOCK, XID, PCIE_REPLAY, HEAT, POWER_CAP]
        of_machine += [] if group.mig else [UTILISATION]
        of_machine += [DOUBLE_BIT] if group.ecc else []
        of_machine += [REMAP_FAILURE, REMAPPED] if group.ecc and group.gpu.arch in REMAPS_ROWS else []
        of_machine += [NVLINK_RECOVERY, NVLINK_REPLAY] if group.machine.nvlink.topology in ("nvswitch", "mesh") else []
        for metric in of_machine:
            metrics.setdefault(metric, []).append(group.name)
    return {metric: tuple(names) for metric, names in metrics.items()}


def absence_name(metric: str) -> str:
    """
    >>> absence_name("DCGM_FI_DEV_GPU_TEMP")
    'DcgmGpuTempMissing'
    """
    parts = metric.removeprefix("DCGM_FI_DEV_").lower().split("_")
    return f"Dcgm{''.join(part.capitalize() for part in parts)}Missing"


def _first(fleet: WatchedFleet, metric: str) -> WatchedGroup | None:
    names = watched_metrics(fleet).get(metric)
    return next(group for group in fleet.dcgm_groups if group.name == names[0]) if names else None


def _missing(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    expected = group.machine.gpu_count
    temperature = select(fleet, TEMPERATURE, group=group.name)
    # A GPU that is gone has no series, and on MIG each instance has one: GPUs are counted by UUID.
    present = f"count by ({ON_NODE}) (count by ({ON_NODE}, UUID) ({temperature}))"
    if expected > 1:  # of a single GPU the absence of its readings says the same
        yield _gpu_missing(fleet, group, f"{present} < {expected}")
    exporter_up = select(fleet, "up", job=DCGM_JOB, group=group.name)
    yield AlertRule(
        name="GpuSamplesLost",
        expr=f"avg by ({ON_NODE}) (count_over_time({temperature}[10m])) < {LOST_SHARE} * "
        f"max by ({ON_NODE}) (count_over_time({exporter_up}[10m])) "
        f"and on (cluster, node) min_over_time({exporter_up}[15m]) == 1",
        pending="10m",  # a new target has half of the samples after five minutes
        severity="ticket",
        summary='{{ $labels.node }}: {{ $value | printf "%.0f" }} readings of its GPUs in 10 minutes of scrapes',
        description="DCGM loses samples of this node. One GPU may be failing and stall the readings of all: look at "
        "the node, not at the GPU that is shown.",
        doc='runbook "dcgm.fields"',
        command=VERIFY,
        firing=(
            *on_gpus(fleet, group, TEMPERATURE, " ".join(["40 _x4"] * 300)),
            up(fleet, group, DCGM_JOB),
        ),
        silent=(*on_gpus(fleet, group, TEMPERATURE, constant(40)), up(fleet, group, DCGM_JOB)),
        fires_at_s=1800,
        twin=absence_name(TEMPERATURE),
        counts_nan=True,
        labels={"group": group.name},
    )


def _gpu_missing(fleet: WatchedFleet, group: WatchedGroup, expr: str) -> AlertRule:
    return AlertRule(
        name="GpuMissing",
        expr=expr,
        pending="2m",
        severity="page",
        summary=f"{{{{ $labels.node }}}}: {{{{ $value }}}} of {group.machine.gpu_count} GPUs answer",
        description="A GPU has fallen off the bus, or DCGM has lost it.",
        doc='runbook "gpu.count"',
        command=VERIFY,
        basis=f"catalogue, {group.machine.name}",
        firing=on_gpus(fleet, group, TEMPERATURE, constant(40), less=1),
        silent=on_gpus(fleet, group, TEMPERATURE, constant(40)),
        fires_at_s=180,
        twin=absence_name(TEMPERATURE),
        counts_nan=True,
        labels={"group": group.name},
    )


def _memory_errors(fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str]) -> Iterator[AlertRule]:
    yield _growth(
        fleet, group, absences, DOUBLE_BIT, "GpuMemoryError", "page",
        "has an uncorrectable memory error", "A job that used that memory has wrong numbers or has died.", "gpu.ecc",
    )  # fmt: skip


def _remapping(fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str]) -> Iterator[AlertRule]:
    yield AlertRule(
        name="GpuRowRemapFailure",
        expr=f"{select(fleet, REMAP_FAILURE)} == 1",
        pending="1m",
        severity="page",
        summary="{{ $labels.node }}: GPU {{ $labels.gpu }} cannot remap a row of its memory",
        description="The spare rows are used up: NVIDIA takes such a GPU back.",
        doc='runbook "gpu.remap"',
        command=VERIFY,
        basis="NVIDIA A100 GPU Memory Error Management",
        firing=(on_gpu(fleet, group, REMAP_FAILURE, constant(1)),),
        silent=(on_gpu(fleet, group, REMAP_FAILURE, constant(0)),),
        fires_at_s=120,
        twin=absences[REMAP_FAILURE],
    )
    yield _growth(
        fleet, group, absences, REMAPPED, "GpuRowsRemapped", "ticket",
        "has remapped rows of its memory", "The new rows are used after a reset of the GPU.", "gpu.remap",
    )  # fmt: skip


def _links(fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str]) -> Iterator[AlertRule]:
    yield _growth(
        fleet, group, absences, NVLINK_RECOVERY, "GpuNvlinkRecovery", "ticket",
        "had to recover an NVLink", "A link that fails for a moment stalls collectives.", "nvlink.recoveries",
    )  # fmt: skip
    yield _growth(
        fleet, group, absences, NVLINK_REPLAY, "GpuNvlinkReplay", "ticket",
        "repeats transfers over NVLink", "A link has transmission errors.", "nvlink.errors",
    )  # fmt: skip


def _growth(
    fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str], metric: str, name: str, severity: str,
    predicate: str, description: str, check: str,
) -> AlertRule:  # fmt: skip
    """A counter of errors that rises. `increase` is 0 over a reset: some counters begin again when the driver loads."""
    return AlertRule(
        name=name,
        expr=f"increase({select(fleet, metric)}[15m]) > 0",
        pending="1m",
        severity=severity,
        summary=f"{{{{ $labels.node }}}}: GPU {{{{ $labels.gpu }}}} {predicate}",
        description=description,
        doc=f'runbook "{check}"',
        command=VERIFY,
        firing=(on_gpu(fleet, group, metric, f"0x{samples(300)} 1x{samples(LONG_S)}"),),
        silent=(on_gpu(fleet, group, metric, constant(7)),),
        fires_at_s=480,
        twin=absences[metric],
        keep_firing_for="15m",
    )


def _slowed_down(fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str]) -> Iterator[AlertRule]:
    heat = f"rate({select(fleet, HEAT)}[5m]) / {NS:g}"
    yield AlertRule(
        name="GpuSlowedByHeat",
        expr=f"{heat} > {THERMAL_SHARE}",
        pending="10m",
        severity="ticket",
        summary="{{ $labels.node }}: heat slows GPU {{ $labels.gpu }} {{ $value | humanizePercentage }} of the time",
        description="The driver lowers the clocks at the GPU's own limit of temperature. Look at fans and air flow.",
        doc='runbook "gpu.throttle"',
        command="gpuprov verify FILE --node {{ $labels.node }} --level stress",
        basis="the GPU's own slowdown limit; the share of time is judgement",
        firing=(on_gpu(fleet, group, HEAT, rising(0.2 * SCRAPE_S * NS)),),
        silent=(on_gpu(fleet, group, HEAT, constant(9e12)),),
        fires_at_s=900,
        twin=absences[HEAT],
    )


def _against_group(fleet: WatchedFleet, group: WatchedGroup, absences: Mapping[str, str]) -> Iterator[AlertRule]:
    used = select(fleet, UTILISATION)

    def at_work(expr: str) -> str:
        """Of GPUs at work alone: a busy GPU differs from idle ones in everything."""
        return f"({expr} and on (cluster, node, UUID) {used} > {AT_WORK})"

    def median(expr: str) -> str:
        return f"on (cluster, group) group_left () quantile by (cluster, group) (0.5, {expr})"

    def busy(metric: str, values: str, percent: int = 99) -> tuple[Series, ...]:
        """The series of the GPU that is judged."""
        return (on_gpu(fleet, group, metric, values), on_gpu(fleet, group, UTILISATION, constant(percent)))

    def group_at_work(metric: str, values: str) -> tuple[Series, ...]:
        rows = [
            (
                on_gpu(fleet, group, metric, values, node=node),
                on_gpu(fleet, group, UTILISATION, constant(99), node=node),
            )
            for node in range(1, 4)
        ]
        return tuple(series for row in rows for series in row)

    temperature, clock = at_work(select(fleet, TEMPERATURE)), at_work(select(fleet, SM_CLOCK))
    power = at_work(f"rate({select(fleet, POWER_CAP)}[5m]) / {NS:g}")
    idle = tuple(
        series
        for node in range(1, 4)
        for series in (
            on_gpu(fleet, group, TEMPERATURE, constant(32), node=node),
            on_gpu(fleet, group, UTILISATION, constant(0), node=node),
        )
    )
    yield AlertRule(
        name="GpuHotterThanGroup",
        expr=f"{temperature} - {median(temperature)} > {HOTTER}",
        pending="15m",
        severity="ticket",
        summary="{{ $labels.node }}: GPU {{ $labels.gpu }} is {{ $value }} °C above its group's median at work",
        description="Fans, filters, air flow, or a heat sink.",
        doc='runbook "gpu.heat"',
        command="gpuprov verify FILE --node {{ $labels.node }} --level stress",
        basis="judgement",
        firing=(*group_at_work(TEMPERATURE, constant(50)), *busy(TEMPERATURE, constant(80))),
        silent=(*idle, *busy(TEMPERATURE, constant(65))),
        fires_at_s=1080,
        twin=absences[TEMPERATURE],
    )
    yield AlertRule(
        name="GpuSlowerThanGroup",
        expr=f"{clock} / {median(clock)} < {SLOWER}",
        pending="15m",
        severity="ticket",
        summary="{{ $labels.node }}: GPU {{ $labels.gpu }} at work runs at {{ $value | humanizePercentage }} of the "
        "group's clock",
        description="One slow GPU slows every collective down. Clocks may be locked, or heat or power hold it back.",
        doc='runbook "load.clock"',
        command="gpuprov verify FILE --node {{ $labels.node }} --level stress",
        basis="judgement",
        firing=(*group_at_work(SM_CLOCK, constant(1400)), *busy(SM_CLOCK, constant(600))),
        silent=(*group_at_work(SM_CLOCK, constant(1400)), *busy(SM_CLOCK, constant(600), percent=0)),
        fires_at_s=1080,
        twin=absences[SM_CLOCK],
    )
    yield AlertRule(
        name="GpuSlowedByPower",
        # At work a GPU reaches its power limit: what counts is more of it than the group has.
        expr=f"{power} - {median(power)} > 0.3",
        pending="15m",
        severity="ticket",
        summary="{{ $labels.node }}: power slows GPU {{ $labels.gpu }} down more than its group",
        description="The GPU meets its power limit more often than the group's median GPU: a lower limit, or a supply.",
        doc='runbook "gpu.power_limit"',
        command="gpuprov verify FILE --node {{ $labels.node }} --level stress",
        basis="the group's median; the difference is judgement",
        firing=(*group_at_work(POWER_CAP, constant(0)), *busy(POWER_CAP, rising(0.9 * SCRAPE_S * NS))),
        silent=(*group_at_work(POWER_CAP, rising(0.3 * SCRAPE_S * NS)), *busy(POWER_CAP, rising(0.3 * SCRAPE_S * NS))),
        fires_at_s=1500,
        twin=absences[POWER_CAP],
    )


def _absence(fleet: WatchedFleet, metric: str) -> AlertRule:
    names = watched_metrics(fleet)[metric]
    group = next(group for group in fleet.dcgm_groups if group.name == names[0])
    exporter_up = select(fleet, "up", job=DCGM_JOB, group="~" + "|".join(names))
    is_vital = metric == TEMPERATURE
    return AlertRule(
        name=absence_name(metric),
        expr=f"{exporter_up} == 1 unless on (cluster, node) {select(fleet, metric)}",
        pending="2m" if is_vital else "5m",
        severity="page" if is_vital else "ticket",
        summary=f"{{{{ $labels.node }}}}: dcgm-exporter answers without {metric}",
        description="No GPU of the node has readings: all are gone, or DCGM hangs."
        if is_vital
        else "Alerts on this metric cannot fire for the node. The exporter's list of counters may be another.",
        doc='runbook "dcgm.exporter"' if is_vital else 'runbook "dcgm.fields"',
        command=VERIFY,
        basis=f"catalogue, machines of {', '.join(names)}",
        firing=(up(fleet, group, DCGM_JOB),),
        silent=(up(fleet, group, DCGM_JOB), on_gpu(fleet, group, metric, constant(0))),
        fires_at_s=360,
    )
