"""What a crash left in a region of a subscription: found by tag, removed in the order that Azure accepts.

Machines go first and are waited for. An OS disk has no tags of its own (azurerm gives it none): it is found by its name
in the resource group of what has them. A resource group goes last, and only where nothing else is in it: with it Azure
removes whatever it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from provisioner.errors import ProviderError
from provisioner.providers.azure.client import Subscription, parts
from provisioner.providers.azure.findings import credentials, unknown
from provisioner.providers.azure.machines import CLUSTER, IDENTITY, SITE
from provisioner.providers.azure.rules import environment_of
from provisioner.providers.azure.site import AzureSite
from provisioner.providers.orphans import Found, Thing, many
from provisioner.providers.trouble import Trouble

WAIT_S, PAUSE_S = 900.0, 5.0
"""For the whole removal: a network interface whose machine failed is held back for three minutes
(NicReservedForAnotherVm), and machines take some."""
KINDS: Mapping[str, tuple[str, str]] = {
    "microsoft.compute/virtualmachines": ("machine", "2024-07-01"),
    "microsoft.network/networkinterfaces": ("network interface", "2024-05-01"),
    "microsoft.compute/disks": ("disk", "2024-03-02"),
    "microsoft.compute/availabilitysets": ("availability set", "2024-07-01"),
    "microsoft.compute/proximityplacementgroups": ("proximity placement group", "2024-07-01"),
    "microsoft.network/virtualnetworks": ("virtual network", "2024-05-01"),
    "microsoft.network/natgateways": ("NAT gateway", "2024-05-01"),
    "microsoft.network/publicipaddresses": ("public IP address", "2024-05-01"),
    "microsoft.network/networksecuritygroups": ("network security group", "2024-05-01"),
}
"""Types of terraform/azure, in the order in which they can be removed → for people, and the API's version."""
GROUP = "resource group"
GROUP_API = "2024-11-01"
ORDER = (*(kind for kind, _ in KINDS.values()), GROUP)
BUSY = (
    "InUse",
    "CannotBeDeleted",
    "InProgress",
    "Reserved",
    "OperationNotAllowed",
    "Conflict",
    "Retryable",
    "Preempted",
)
"""Parts of codes that say that something which is going still uses it."""
LOCKED = "ScopeLocked"
FILTER = f"tagName eq '{CLUSTER}'"
PERMISSION = "Microsoft.Resources/subscriptions/resources/read"
Tell = Callable[[str], None]


class InRegion:
    """One region of a subscription."""

    def __init__(self, subscription: Subscription, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        self._subscription, self._wait_s, self._pause_s = subscription, wait_s, pause_s
        self._end = 0.0

    @property
    def _client(self) -> Any:
        """Raises Trouble."""
        return self._subscription.client("resources")

    def find(self) -> Found:
        ask = self._subscription
        try:
            client = self._client
            ask.get(ask.scope, "2022-12-01")
        except Trouble as trouble:
            said = credentials(trouble, ask.cloud)
            raise ProviderError(said.message, where=ask.region, hint=said.action) from None
        things: list[Thing] = []
        puzzles: list[str] = []
        try:
            things += [
                found for row in ask.all(lambda: client.resources.list(filter=FILTER)) if (found := self._thing(row))
            ]
        except Trouble as trouble:
            puzzles.append(_puzzle("resources", trouble))
        try:
            groups = [row for row in ask.all(lambda: client.resource_groups.list(filter=FILTER)) if self._here(row)]
        except Trouble as trouble:
            groups = []
            puzzles.append(_puzzle("resource groups", trouble))
        theirs = {str(row.name).lower(): row for row in groups}
        for name in sorted({parts(thing.id)["resourcegroups"].lower() for thing in things} | set(theirs)):
            try:
                things += self._in_group(name, theirs.get(name), things)
            except Trouble as trouble:
                puzzles.append(_puzzle(f"other things in resource group {name}", trouble))
        return Found(tuple(things), tuple(puzzles))

    def _here(self, row: Any) -> bool:
        return str(row.location).replace(" ", "").lower() == self._subscription.region

    def _thing(self, row: Any, tags: Mapping[str, str] | None = None) -> Thing | None:
        """None for what is elsewhere, and for what has no tag after all."""
        tags = dict(row.tags or {}) if tags is None else tags
        if not tags.get(CLUSTER) or not self._here(row):
            return None
        kind, _ = KINDS.get(str(row.type).lower(), (str(row.type), ""))
        kept = "" if str(row.type).lower() in KINDS else "gpuprov makes nothing of this kind"
        since = getattr(row, "created_time", None)
        return Thing(
            kind, str(row.id), tags[CLUSTER], tags.get(SITE, ""), self._subscription.region, name=str(row.name),
            since=since if isinstance(since, datetime) else None, kept=kept, identity=tags.get(IDENTITY, ""),
        )  # fmt: skip

    def _in_group(self, name: str, group: Any, known: Sequence[Thing]) -> Iterator[Thing]:
        """The disks of a resource group that are of its machines, and the group itself where it has the tag. Raises
        Trouble."""
        rows = self._subscription.all(lambda: self._client.resources.list_by_resource_group(name))
        seen, others = {thing.id.lower(): thing for thing in known}, list[str]()
        by_prefix = {f"gpuprov-{one.identity[:8]}-": one for one in known if one.identity}
        for row in rows:
            if one := seen.get(str(row.id).lower()):
                others += [str(row.name)] if one.kept else []
                continue
            of = dict(group.tags) if group is not None else next(
                (
                    {CLUSTER: one.cluster, SITE: one.site, IDENTITY: one.identity}
                    for prefix, one in by_prefix.items() if str(row.name).startswith(prefix)
                ), {},
            )  # fmt: skip
            disk = str(row.type).lower() == "microsoft.compute/disks" and str(row.name).endswith("-os")
            if disk and of.get(CLUSTER) and (found := self._thing(row, of)):
                yield found
            else:
                others.append(str(row.name))
        if group is not None:
            tags = dict(group.tags)
            kept = (
                f"{', '.join(others[:3])} in it {'is' if len(others) == 1 else 'are'} not gpuprov's" if others else ""
            )
            yield Thing(
                GROUP, str(group.id), tags[CLUSTER], tags.get(SITE, ""), self._subscription.region,
                name=str(group.name), kept=kept, identity=tags.get(IDENTITY, ""),
            )  # fmt: skip

    def remove(self, things: Sequence[Thing], tell: Tell) -> list[str]:
        self._end = time.monotonic() + self._wait_s
        by_kind: dict[str, list[Thing]] = {}
        for thing in things:
            if not thing.kept:
                by_kind.setdefault(thing.kind, []).append(thing)
        left: list[str] = []
        for kind in ORDER:
            found = by_kind.get(kind, [])
            if not found:
                continue
            if kind == GROUP and left:
                return [*left, *(f"{thing}: something of it is left" for thing in found)]
            tell(f"{self._subscription.region}: removing {len(found)} {kind if len(found) == 1 else many(kind)}")
            refused = [(thing, said) for thing in found if (said := self._delete(thing))]
            left += [f"{thing}: {said}" for thing, said in refused]
            bad = {thing.id for thing, _ in refused}
            left += self._wait([thing for thing in found if thing.id not in bad])
            if left and kind == ORDER[0]:
                rest = sum(len(others) for name, others in by_kind.items() if name != kind)
                return [*left, f"{rest} other things were not touched: the machines that are left may need them"]
        return left

    def _delete(self, thing: Thing) -> str:
        """Begin to delete it; while something that is going uses it, again. Why it was refused."""
        while True:
            try:
                self._once(thing)
            except Trouble as trouble:
                if trouble.kind == "absent":
                    return ""
                if trouble.code == LOCKED:
                    return f"protected, and not forced: {trouble.message}"
                if not any(part in trouble.code for part in BUSY) or time.monotonic() > self._end:
                    return trouble.message
            else:
                return ""
            time.sleep(self._pause_s)

    def _once(self, thing: Thing) -> None:
        """Raises Trouble."""
        if thing.kind == GROUP:
            self._subscription.ask(lambda: self._client.resource_groups.begin_delete(thing.name, polling=False))
        else:
            version = _version(thing)
            self._subscription.ask(
                lambda: self._client.resources.begin_delete_by_id(thing.id, api_version=version, polling=False)
            )

    def _wait(self, things: Sequence[Thing]) -> Iterator[str]:
        """Wait until they are gone; one sentence for each that is there when time is up."""
        waiting = list(things)
        while waiting:
            try:
                waiting = [thing for thing in waiting if self._there(thing)]
            except Trouble as trouble:
                yield f"whether {len(waiting)} {many(waiting[0].kind)} are gone is not known: {trouble.message}"
                return
            if not waiting or time.monotonic() > self._end:
                break
            time.sleep(self._pause_s)
        yield from (f"{thing}: it was deleted, and is still there" for thing in waiting)

    def _there(self, thing: Thing) -> bool:
        """Raises Trouble."""
        try:
            self._subscription.get(thing.id, GROUP_API if thing.kind == GROUP else _version(thing))
        except Trouble as trouble:
            if trouble.kind == "absent":
                return False
            raise
        return True


def _version(thing: Thing) -> str:
    return next(version for kind, version in KINDS.values() if kind == thing.kind)


def _puzzle(what: str, trouble: Trouble) -> str:
    found = unknown(what, trouble, PERMISSION)
    return f"whether there are {what}: {found.message} ({found.action})"


def orphans(region: str) -> InRegion:
    """The default subscription's."""
    return InRegion(Subscription(AzureSite(provider="azure", region=region, environment=environment_of(region))))
