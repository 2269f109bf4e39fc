"""What would keep `up` from working in a region of Tencent Cloud, found before anything is spent.

Every finding says what was seen and what to do. A question that was denied, throttled or not answered is `unknown`:
said, and never taken for a yes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.capacity import Way
from provisioner.providers.tencent import dry_run, quotas, stock
from provisioner.providers.tencent.client import Region
from provisioner.providers.tencent.findings import credentials, unknown
from provisioner.providers.tencent.site import TencentSite
from provisioner.providers.trouble import Trouble, signed_in


def preflight(
    region: Region, site: TencentSite, groups: Sequence[PlannedGroup], zones: Sequence[str],
    images: Mapping[str, str | None], there: Collection[str],
) -> list[Finding]:  # fmt: skip
    """Everything about these groups of one site. `images`: group → id; `there`: names of their nodes that stand
    already, so that an `up` of a running fleet does not ask for room twice."""
    found = [who(region)]
    if found[0].status == "blocks":
        return found
    found += _zones(region, zones)
    found += [finding for group in groups for finding in _offered(region, group, zones)]
    found += quotas.machines(region, groups, zones, there)
    if site.vpc is not None:
        found += _subnets(region, site, groups, there)
    elif not there:
        found += quotas.vpcs(region)
        if site.internet == "nat":
            found += quotas.addresses(region)
    if site.spread is not None:
        found += quotas.spread(region, site.spread, groups)
    for group in groups:
        found += _tried(region, site, group, zones, images.get(group.name), there)
    return found


def who(region: Region) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    return signed_in(lambda: region.ask("sts", "GetCallerIdentity"), "AccountId", credentials)


def _zones(region: Region, zones: Sequence[str]) -> Iterator[Finding]:
    """The zones that cluster.yaml names are there."""
    try:
        usable = stock.usable(region)
    except Trouble as trouble:
        yield unknown("zones", trouble, "cvm:DescribeZones")
        return
    if wrong := sorted(set(zones) - set(usable)):
        there = f"{region.name} has {', '.join(usable)}"
        yield Finding("blocks", "zones", f"{', '.join(wrong)} cannot be used; {there}", "change sites.*.zones")


def _offered(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """The machine type is sold in the zones that are wanted, in one of the ways that are allowed, and how well it is
    stocked."""
    name, subject, ways = group.machine.name, f"group {group.name}", group.spec.capacity
    kinds = list(dict.fromkeys((ways.kind, *ways.fallback)))
    for kind in kinds:
        try:
            offers = stock.offers(region, name, kind)
        except Trouble as trouble:
            yield unknown(subject, trouble, "cvm:DescribeZoneInstanceConfigInfos")
            continue
        known = [one for one in offers if not zones or one.zone in zones]
        ready = [one for one in known if one.there]
        last = len(kinds) == 1
        if kind == kinds[0]:
            yield from _as_known(group, offers)
        if ready:
            told = ", ".join(f"{one.zone}{f' ({one.stock})' if one.stock else ''}" for one in ready)
            yield Finding("ok", subject, f"{name} is sold as {kind} in {told}")
        elif known:
            told = ", ".join(f"{one.zone}{f': {one.why}' if one.why else ''}" for one in known)
            status = Finding("warning", subject, f"{name} is sold out as {kind} in {told}", "other zones, or later")
            yield status
        elif offers:
            places = ", ".join(one.zone for one in offers)
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
        told = {"GPUs": offer.gpus, "vCPUs": offer.vcpus, "GiB of memory": offer.memory_gib}
        wrong = [f"{told[what]} {what}, not {known[what]}" for what in told if told[what] and told[what] != known[what]]
        if wrong:
            said = f"{machine.name} has {' and '.join(wrong)}, as gpuprov's catalogue has it"
            yield Finding("warning", f"group {group.name}", said, "tell gpuprov's maintainers; checks may fail for it")


def _subnets(
    region: Region, site: TencentSite, groups: Sequence[PlannedGroup], there: Collection[str]
) -> Iterator[Finding]:
    """The subnets of cluster.yaml are there, of the VPC and zone that it names, and have room."""
    assert site.vpc is not None
    numbers = list(site.vpc.subnets.values())
    try:
        answer = region.ask("vpc", "DescribeSubnets", SubnetIds=numbers, Limit=str(len(numbers)), Offset="0")
    except Trouble as trouble:
        if trouble.kind == "absent":
            yield Finding("blocks", "vpc", f"a subnet is not there: {trouble.message}", "correct sites.*.vpc.subnets")
        else:
            yield unknown("vpc", trouble, "vpc:DescribeSubnets")
        return
    seen = {str(row["SubnetId"]): row for row in answer.get("SubnetSet") or ()}
    wanted = max((sum(name not in there for name in group.node_names()) for group in groups), default=0)
    for zone, number in site.vpc.subnets.items():
        row = seen.get(number)
        if row is None or row.get("VpcId") != site.vpc.id:
            yield Finding("blocks", "vpc", f"{number} is no subnet of {site.vpc.id}", "correct sites.*.vpc.subnets")
        elif row.get("Zone") != zone:
            yield Finding(
                "blocks", "vpc", f"{number} is in {row.get('Zone')}, not in {zone}", "correct sites.*.vpc.subnets"
            )
        elif int(row.get("AvailableIpAddressCount") or 0) < wanted:
            said = f"{number} has {row.get('AvailableIpAddressCount')} free addresses, {wanted} are wanted at once"
            yield Finding("warning", "vpc", said, "a larger subnet, or another zone")


def _tried(
    region: Region, site: TencentSite, group: PlannedGroup, zones: Sequence[str], image: str | None,
    there: Collection[str],
) -> Iterator[Finding]:  # fmt: skip
    """RunInstances as a dry run, of all machines of the group that are still to be made, in the first way: whether it
    is allowed, and whether Tencent Cloud has them now."""
    missing, subject = sum(name not in there for name in group.node_names()), f"group {group.name}"
    if image is None or not missing or not zones or group.spec.capacity.probe:
        return
    way = Way(group.spec.capacity.kind, zones[0])
    try:
        error = dry_run.ask(region, site, group, image, way, missing)
    except Trouble as trouble:
        yield unknown(subject, trouble, "cvm:RunInstances")
        return
    machines = f"{min(missing, dry_run.MOST)} × {group.machine.name} as {way}"
    if error is None:
        yield Finding("ok", subject, f"Tencent Cloud would start {machines} (dry run)")
    elif error.then == "stop" or (
        error.kind in ("quota", "spot-refused") and not group.spec.capacity.fallback and error.then == "kind"
    ):
        yield Finding("blocks", subject, f"Tencent Cloud would not start {machines}: {error.said}", error.hint)
    elif error.then == "again":
        yield Finding("unknown", subject, f"whether it would start {machines}: {error.said}", error.hint)
    else:
        yield Finding("warning", subject, f"Tencent Cloud would not start {machines} now: {error.said}", error.hint)
