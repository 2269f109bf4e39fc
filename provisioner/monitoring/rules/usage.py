"""What is paid for and what is used: recording rules, and an alert on nodes whose GPUs are idle."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.common.text import counted, money
from provisioner.monitoring.fleet import HOURS_A_DAY, WatchedFleet
from provisioner.monitoring.models import NODE_JOB, AlertRule, RecordingRule, RuleGroup
from provisioner.monitoring.rules.gpus import TEMPERATURE, UTILISATION, absence_name, watched_metrics
from provisioner.monitoring.rules.series import ON_GROUP, ON_NODE, constant, on_gpu, on_gpus, select, up

IDLE_HOURS = 6
IDLE_PERCENT = 5
"""A GPU below it does nothing: nvidia-smi itself causes some per cent (limit gpu.idle_utilization)."""

GPUS_PRESENT = "gpuprov:gpus_present"
GPUS_IN_USE = "gpuprov:gpus_in_use"
GPUS_PAID = "gpuprov:gpus_paid"
PRICE_HOUR = "gpuprov:price_per_hour"
UTILISATION_MEAN = "gpuprov:gpu_utilization"


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where nothing is watched."""
    if not any(group.machine.gpu_count for group in fleet.groups):
        return None
    return RuleGroup(f"gpuprov-usage-{fleet.cluster}", (*_recorded(fleet), *_idle(fleet)))


def _recorded(fleet: WatchedFleet) -> Iterator[RecordingRule]:
    used, temperature = select(fleet, UTILISATION), select(fleet, TEMPERATURE)
    metrics = watched_metrics(fleet)
    if TEMPERATURE in metrics:
        yield RecordingRule(
            GPUS_PRESENT,
            f"count by ({ON_GROUP}) (count by ({ON_NODE}, UUID) ({temperature}))",
            "GPUs that answer, by group",
        )
    if UTILISATION in metrics:
        yield RecordingRule(
            GPUS_IN_USE,
            f"count by ({ON_GROUP}) (avg_over_time({used}[5m]) > {IDLE_PERCENT}) or 0 * count by ({ON_GROUP}) ({used})",
            f"GPUs whose utilisation over 5 minutes is above {IDLE_PERCENT} %, by group; without those cut up by MIG",
        )
        yield RecordingRule(
            UTILISATION_MEAN, f"avg by ({ON_GROUP}) ({used}) / 100", "mean utilisation of the GPUs, 0 to 1, by group"
        )
    up_nodes = [select(fleet, "up", job=NODE_JOB, group=group.name) for group in fleet.groups]
    counts = [(group, f"count by ({ON_GROUP}) ({nodes})") for group, nodes in zip(fleet.groups, up_nodes, strict=True)]
    yield RecordingRule(
        GPUS_PAID,
        " or ".join(f"{count} * {number}" for group, count in counts if (number := group.machine.gpu_count)),
        "GPUs of the machines that are scraped, in use or not, by group",
    )
    prices = [
        f'label_replace({count} * {group.price_hour:g}, "currency", "{group.currency}", "", "")'
        for group, count in counts
        if group.price_hour is not None
    ]
    if prices:
        yield RecordingRule(PRICE_HOUR, " or ".join(prices), "list price an hour, by group, in its label `currency`")


def _idle(fleet: WatchedFleet) -> Iterator[AlertRule]:
    for group in fleet.dcgm_groups:
        if group.mig:
            continue
        used = select(fleet, UTILISATION, group=group.name)
        cost = ""
        if group.price_hour is not None:
            cost = f" It costs {money(group.price_hour * HOURS_A_DAY, group.currency)} a day at list price."
        yield AlertRule(
            name="HighGPUIdle",
            expr=f"max by ({ON_NODE}) (avg_over_time({used}[{IDLE_HOURS}h])) < {IDLE_PERCENT} "
            f"and on (cluster, node) count_over_time({select(fleet, 'up', job=NODE_JOB)}[{IDLE_HOURS}h]) "
            f"> {0.9 * IDLE_HOURS * 120:g}",
            pending="10m",
            severity="ticket",
            summary=f"{{{{ $labels.node }}}}: idle for {IDLE_HOURS} hours ({counted(group.machine.gpu_count, 'GPU')})",
            description=f"No GPU of the node was used above {IDLE_PERCENT} % on average.{cost}",
            doc='monitoring "Idle GPUs"',
            command="gpuprov status FILE",
            basis=f"list price of {group.machine.name}" if cost else "",
            firing=(*on_gpus(fleet, group, UTILISATION, constant(1)), up(fleet, group)),
            silent=(
                *on_gpus(fleet, group, UTILISATION, constant(1), less=1),
                on_gpu(fleet, group, UTILISATION, constant(95), gpu=group.machine.gpu_count - 1),
                up(fleet, group),
            ),
            fires_at_s=IDLE_HOURS * 3600 + 900,
            twin=absence_name(UTILISATION),
            labels={"group": group.name},
        )
