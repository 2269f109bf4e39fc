"""Alerts on golden images: old ones, and nodes of which nobody knows the image. The timer of the checks exports the
build that a node was made of (verify/readings.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner.monitoring.fleet import HOURS_A_DAY, WatchedFleet, WatchedGroup
from provisioner.monitoring.models import AlertRule, RuleGroup
from provisioner.monitoring.rules import checks
from provisioner.monitoring.rules.series import ON_GROUP, constant, on_node, select

BUILD = "gpuprov_image_build_timestamp_seconds"
UNKNOWN = "GoldenImageUnknown"
DOC = 'monitoring "Old golden images"'


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where no group starts from a golden image, none is old at any age, or the nodes do not run the checks."""
    groups = [group for group in fleet.groups if group.golden]
    if not groups or fleet.health_minutes is None or fleet.image_days is None:
        return None
    return RuleGroup(
        f"gpuprov-images-{fleet.cluster}", tuple(_rules(fleet, groups, fleet.image_days)), checks.READINGS_S
    )


def _rules(fleet: WatchedFleet, groups: Sequence[WatchedGroup], days: int) -> Iterator[AlertRule]:
    """One alert for a group: its nodes are replaced together."""
    group, age_s = groups[0], days * HOURS_A_DAY * 3600
    build = select(fleet, BUILD)
    yield AlertRule(
        name="GoldenImageOld",
        expr=f"count by ({ON_GROUP}) (time() - {build} > {age_s})",
        pending="15m",
        severity="ticket",
        summary="group {{ $labels.group }}: {{ $value }} nodes were made of a golden image of more than "
        f"{days} days",
        description="The distribution's packages on it lack the security updates since. Build a new image, promote it, "
        "take it into the lock, and replace the nodes.",
        doc=DOC,
        command="gpuprov lock FILE --upgrade",
        basis="monitoring.image_days of cluster.yaml",
        firing=(on_node(fleet, group, BUILD, constant(-age_s)),),
        silent=(on_node(fleet, group, BUILD, constant(1800 - age_s)),),
        fires_at_s=1320,
        twin=UNKNOWN,
    )
    results = checks.results(fleet, group)
    yield AlertRule(
        name=UNKNOWN,
        expr=f"count by ({ON_GROUP}) ({checks.nodes_with_results(fleet, groups)} unless on (cluster, node) {build})",
        pending="1h",
        severity="ticket",
        summary="group {{ $labels.group }}: {{ $value }} nodes do not say of which golden image they were made",
        description="They were made before cluster.yaml named an image, or /etc/gpuprov/image.json is gone. Nobody "
        "knows how old their system is.",
        doc=DOC,
        command="gpuprov replace FILE NODE",
        firing=results,
        silent=(*results, on_node(fleet, group, BUILD, constant(0))),
        fires_at_s=3720,
        twin=checks.MISSING,
        counts_nan=True,
    )
