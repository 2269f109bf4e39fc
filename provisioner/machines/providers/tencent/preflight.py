"""What would keep `up` from working in a region of Tencent Cloud, found before anything is spent.

Every finding says what was seen and what to do. A question that was denied, throttled or not answered is `unknown`:
said, and never taken for a yes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from provisioner.common.preflight import Finding
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.tencent import dry_run, quotas, stock
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import credentials, unknown
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.trouble import Trouble, signed_in
from provisioner.plan.models import PlannedGroup


def preflight(
    region: Region, site: TencentSite, groups: Sequence[PlannedGroup], zones: Sequence[str],
    images: Mapping[str, str | None], existing_nodes: Collection[str],
) -> list[Finding]:  # fmt: skip
    """Everything about these groups of one site. `images`: group → id; `existing_nodes`: names of their nodes that
    stand already, so that an `up` of a running fleet does not ask for room twice."""
    findings = [caller_identity(region)]
    if findings[0].status == "blocks":
        return findings
    findings += _zones(region, zones)
    findings += [finding for group in groups for finding in _offered(region, group, zones)]
    findings += quotas.machines(region, groups, zones, existing_nodes)
    if site.vpc is not None:
        findings += _subnets(region, site, groups, existing_nodes)
    elif not existing_nodes:
        findings += quotas.vpcs(region)
        if site.internet == "nat":
            findings += quotas.addresses(region)
    if site.spread is not None:
        findings += quotas.spread(region, site.spread, groups)
    for group in groups:
        findings += _tried(region, site, group, zones, images.get(group.name), existing_nodes)
    return findings


def caller_identity(region: Region) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    return signed_in(lambda: region.ask("sts", "GetCallerIdentity"), "AccountId", credentials)


def _zones(region: Region, zones: Sequence[str]) -> Iterator[Finding]:
    """The zones that cluster.yaml names are there."""
    try:
        usable = stock.usable(region)
    except Trouble as error:
        yield unknown("zones", error, "cvm:DescribeZones")
        return
    if wrong := sorted(set(zones) - set(usable)):
        usable_text = f"{region.name} has {', '.join(usable)}"
        yield Finding("blocks", "zones", f"{', '.join(wrong)} cannot be used; {usable_text}", "change sites.*.zones")


def _offered(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """The machine type is sold in the zones that are wanted, in one of the ways that are allowed, and how well it is
    stocked."""
    name, subject, capacity = group.machine.name, f"group {group.name}", group.spec.capacity
    kinds = list(dict.fromkeys((capacity.kind, *capacity.fallback)))
    for kind in kinds:
        try:
            offers = stock.offers(region, name, kind)
        except Trouble as error:
            yield unknown(subject, error, "cvm:DescribeZoneInstanceConfigInfos")
            continue
        known = [offer for offer in offers if not zones or offer.zone in zones]
        ready = [offer for offer in known if offer.there]
        last = len(kinds) == 1
        if kind == kinds[0]:
            yield from _as_known(group, offers)
        if ready:
            zones_text = ", ".join(f"{offer.zone}{f' ({offer.stock})' if offer.stock else ''}" for offer in ready)
            yield Finding("ok", subject, f"{name} is sold as {kind} in {zones_text}")
        elif known:
            zones_text = ", ".join(f"{offer.zone}{f': {offer.why}' if offer.why else ''}" for offer in known)
            status = Finding(
                "warning", subject, f"{name} is sold out as {kind} in {zones_text}", "other zones, or later"
            )
            yield status
        elif offers:
            places = ", ".join(offer.zone for offer in offers)
            finding = Finding("blocks", subject, f"{name} is sold as {kind} in {places}, not in {', '.join(zones)}",
                              f"sites.*.zones: [{places}]")  # fmt: skip
            yield finding if last else replace(finding, status="warning")
        else:
            hint = "another region, or another kind (groups.*.capacity)"
            finding = Finding("blocks", subject, f"{name} is not sold as {kind} in {region.name}", hint)
            yield finding if last else replace(finding, status="warning")


def _as_known(group: PlannedGroup, offers: Sequence[stock.Offer]) -> Iterator[Finding]:
    """The region agrees with the catalogue on what a machine has: checks are held to the catalogue."""
    machine = group.machine
    known = {"GPUs": machine.gpu_count, "vCPUs": machine.vcpus, "GiB of memory": machine.memory_gib}
    for offer in offers[:1]:
        reported = {"GPUs": offer.gpus, "vCPUs": offer.vcpus, "GiB of memory": offer.memory_gib}
        wrong = [
            f"{reported[quantity]} {quantity}, not {known[quantity]}"
            for quantity in reported
            if reported[quantity] and reported[quantity] != known[quantity]
        ]
        if wrong:
            message = f"{machine.name} has {' and '.join(wrong)}, as gpuprov's catalogue has it"
            yield Finding(
                "warning", f"group {group.name}", message, "tell gpuprov's maintainers; checks may fail for it"
            )


def _subnets(
    region: Region, site: TencentSite, groups: Sequence[PlannedGroup], existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """The subnets of cluster.yaml are there, of the VPC and zone that it names, and have room."""
    assert site.vpc is not None
    numbers = list(site.vpc.subnets.values())
    try:
        answer = region.ask("vpc", "DescribeSubnets", SubnetIds=numbers, Limit=str(len(numbers)), Offset="0")
    except Trouble as error:
        if error.kind == "absent":
            yield Finding("blocks", "vpc", f"a subnet is not there: {error.message}", "correct sites.*.vpc.subnets")
        else:
            yield unknown("vpc", error, "vpc:DescribeSubnets")
        return
    subnets = {str(row["SubnetId"]): row for row in answer.get("SubnetSet") or ()}
    needed_count = max((sum(name not in existing_nodes for name in group.node_names()) for group in groups), default=0)
    for zone, number in site.vpc.subnets.items():
        row = subnets.get(number)
        if row is None or row.get("VpcId") != site.vpc.id:
            yield Finding("blocks", "vpc", f"{number} is not a subnet of {site.vpc.id}", "correct sites.*.vpc.subnets")
        elif row.get("Zone") != zone:
            yield Finding(
                "blocks", "vpc", f"{number} is in {row.get('Zone')}, not in {zone}", "correct sites.*.vpc.subnets"
            )
        elif int(row.get("AvailableIpAddressCount") or 0) < needed_count:
            message = (
                f"{number} has {row.get('AvailableIpAddressCount')} free addresses, {needed_count} required at once"
            )
            yield Finding("warning", "vpc", message, "a larger subnet, or another zone")


def _tried(
    region: Region, site: TencentSite, group: PlannedGroup, zones: Sequence[str], image: str | None,
    existing_nodes: Collection[str],
) -> Iterator[Finding]:  # fmt: skip
    """RunInstances as a dry run, of all machines of the group that are still to be made, in the first way: whether it
    is allowed, and whether Tencent Cloud has them now."""
    missing, subject = sum(name not in existing_nodes for name in group.node_names()), f"group {group.name}"
    if image is None or not missing or not zones or group.spec.capacity.probe:
        return
    option = Way(group.spec.capacity.kind, zones[0])
    try:
        error = dry_run.ask(region, site, group, image, option, missing)
    except Trouble as api_error:
        yield unknown(subject, api_error, "cvm:RunInstances")
        return
    machines = f"{min(missing, dry_run.MOST)} × {group.machine.name} as {option}"
    if error is None:
        yield Finding("ok", subject, f"Tencent Cloud would start {machines} (dry run)")
    elif error.then == "stop" or (
        error.kind in ("quota", "spot-refused") and not group.spec.capacity.fallback and error.then == "kind"
    ):
        yield Finding("blocks", subject, f"Tencent Cloud would not start {machines}: {error.summary}", error.hint)
    elif error.then == "again":
        yield Finding("unknown", subject, f"whether it would start {machines}: {error.summary}", error.hint)
    else:
        yield Finding("warning", subject, f"Tencent Cloud would not start {machines} now: {error.summary}", error.hint)
