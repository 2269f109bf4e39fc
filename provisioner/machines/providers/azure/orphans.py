"""What a crash left in a region of a subscription: found by tag, removed in the order that Azure accepts.

Machines go first and are waited for. An OS disk has no tags of its own (azurerm gives it none): it is found by its name
in the resource group of what has them. A resource group goes last, and only where nothing else is in it: with it Azure
removes whatever it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.azure.client import Subscription, parts
from provisioner.machines.providers.azure.findings import credentials, unknown
from provisioner.machines.providers.azure.machines import CLUSTER, IDENTITY, SITE
from provisioner.machines.providers.azure.rules import environment_of
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import HOLDS_DATA, PAUSE_S, WAIT_S, Order, Removal, Tell
from provisioner.machines.providers.trouble import Trouble

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
"""Types of terraform/azure → for people, and the API's version."""
WITH_DATA: Mapping[str, str] = {"microsoft.storage/storageaccounts": "storage account"}
"""Types of it that are not removed (removal.HOLDS_DATA)."""
GROUP = "resource group"
GROUP_API = "2024-11-01"
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
"""Parts of codes that say that something which is going still uses it; a network interface whose machine failed is held
back for three minutes (NicReservedForAnotherVm)."""
LOCKED = "ScopeLocked"
FILTER = f"tagName eq '{CLUSTER}'"
PERMISSION = "Microsoft.Resources/subscriptions/resources/read"


class InRegion(Removal):
    """One region of a subscription."""

    order = Order(
        machines=("machine",), linger=("network interface", "disk", "availability set", "proximity placement group"),
        then=(), network=("virtual network", "NAT gateway", "public IP address", "network security group"),
        last=(GROUP,),
    )  # fmt: skip

    def __init__(self, subscription: Subscription, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        super().__init__(subscription.region, wait_s=wait_s, pause_s=pause_s)
        self._subscription = subscription
        self._deleted: dict[str, list[str]] = {}

    @property
    def _client(self) -> Any:
        """Raises Trouble."""
        return self._subscription.client("resources")

    def find(self) -> Found:
        ask = self._subscription
        try:
            client = self._client
            ask.get(ask.scope, "2022-12-01")
        except Trouble as error:
            finding = credentials(error, ask.cloud)
            raise ProviderError(finding.message, where=ask.region, hint=finding.action) from None
        resources: list[Thing] = []
        puzzles: list[str] = []
        try:
            resources += [
                resource
                for row in ask.all(lambda: client.resources.list(filter=FILTER))
                if (resource := self._resource_of(row))
            ]
        except Trouble as error:
            puzzles.append(_puzzle("resources", error))
        try:
            groups = [
                row for row in ask.all(lambda: client.resource_groups.list(filter=FILTER)) if self._is_in_region(row)
            ]
        except Trouble as error:
            groups = []
            puzzles.append(_puzzle("resource groups", error))
        theirs = {str(row.name).lower(): row for row in groups}
        for name in sorted({parts(resource.id)["resourcegroups"].lower() for resource in resources} | set(theirs)):
            try:
                resources += self._in_group(name, theirs.get(name), resources)
            except Trouble as error:
                puzzles.append(_puzzle(f"other things in resource group {name}", error))
        return Found(tuple(resources), tuple(puzzles))

    def _is_in_region(self, row: Any) -> bool:
        return str(row.location).replace(" ", "").lower() == self._subscription.region

    def _resource_of(self, row: Any, tags: Mapping[str, str] | None = None) -> Thing | None:
        """None for what is elsewhere, and for what has no tag after all."""
        tags = dict(row.tags or {}) if tags is None else tags
        if not tags.get(CLUSTER) or not self._is_in_region(row):
            return None
        type_ = str(row.type).lower()
        kind = KINDS[type_][0] if type_ in KINDS else WITH_DATA.get(type_, str(row.type))
        keep_reason = (
            HOLDS_DATA if type_ in WITH_DATA else "" if type_ in KINDS else "gpuprov makes nothing of this kind"
        )
        since = getattr(row, "created_time", None)
        return Thing(
            kind, str(row.id), tags[CLUSTER], tags.get(SITE, ""), self._subscription.region, name=str(row.name),
            since=since if isinstance(since, datetime) else None, kept=keep_reason, identity=tags.get(IDENTITY, ""),
        )  # fmt: skip

    def _in_group(self, name: str, group: Any, known: Sequence[Thing]) -> Iterator[Thing]:
        """The disks of a resource group that are of its machines, and the group itself where it has the tag. Raises
        Trouble."""
        rows = self._subscription.all(lambda: self._client.resources.list_by_resource_group(name))
        known_by_id, foreign_names, data = (
            {resource.id.lower(): resource for resource in known},
            list[str](),
            list[str](),
        )
        by_prefix = {f"gpuprov-{resource.identity[:8]}-": resource for resource in known if resource.identity}
        for row in rows:
            if resource := known_by_id.get(str(row.id).lower()):
                if resource.kept:
                    (data if resource.kept == HOLDS_DATA else foreign_names).append(str(row.name))
                continue
            of = dict(group.tags) if group is not None else next(
                (
                    {CLUSTER: resource.cluster, SITE: resource.site, IDENTITY: resource.identity}
                    for prefix, resource in by_prefix.items() if str(row.name).startswith(prefix)
                ), {},
            )  # fmt: skip
            disk = str(row.type).lower() == "microsoft.compute/disks" and str(row.name).endswith("-os")
            if disk and of.get(CLUSTER) and (orphan := self._resource_of(row, of)):
                yield orphan
            else:
                foreign_names.append(str(row.name))
        if group is not None:
            tags = dict(group.tags)
            not_ours = (
                f"{', '.join(foreign_names[:3])} in it {'is' if len(foreign_names) == 1 else 'are'} not gpuprov's"
            )
            keep_reason = not_ours if foreign_names else f"{', '.join(data)} in it: {HOLDS_DATA}" if data else ""
            yield Thing(
                GROUP, str(group.id), tags[CLUSTER], tags.get(SITE, ""), self._subscription.region,
                name=str(group.name), kept=keep_reason, identity=tags.get(IDENTITY, ""),
            )  # fmt: skip

    def delete(self, resource: Thing) -> None:
        try:
            if resource.kind == GROUP:
                self._subscription.ask(lambda: self._client.resource_groups.begin_delete(resource.name, polling=False))
            else:
                version, client = _version(resource.kind), self._client.resources
                self._subscription.ask(
                    lambda: client.begin_delete_by_id(resource.id, api_version=version, polling=False)
                )
        except Trouble as error:
            if error.kind != "absent":
                raise
        self._deleted.setdefault(resource.kind, []).append(resource.id)

    def existing_ids(self, kind: str) -> set[str]:
        """Of what was deleted here."""
        return {number for number in self._deleted.get(kind, ()) if self._is_present(number, kind)}

    def busy(self, error: Trouble) -> bool:
        return any(part in error.code for part in BUSY)

    def protected(self, error: Trouble) -> bool:
        return error.code == LOCKED

    def network(self, resources: Sequence[Thing], report: Tell, remove: Callable[[], list[str]]) -> list[str]:
        """Azure says yes at once, and may change its mind: each is waited for."""
        leftovers = remove()
        refused = {line.partition(":")[0] for line in leftovers}
        for kind in self.order.network:
            leftovers += self.wait(
                kind,
                [resource for resource in resources if resource.kind == kind and str(resource) not in refused],
                report,
            )
        return leftovers

    def _is_present(self, number: str, kind: str) -> bool:
        """Raises Trouble."""
        try:
            self._subscription.get(number, GROUP_API if kind == GROUP else _version(kind))
        except Trouble as error:
            if error.kind == "absent":
                return False
            raise
        return True


def _version(kind: str) -> str:
    return next(version for name, version in KINDS.values() if name == kind)


def _puzzle(subject: str, error: Trouble) -> str:
    finding = unknown(subject, error, PERMISSION)
    return f"whether there are {subject}: {finding.message} ({finding.action})"


def orphans(region: str) -> InRegion:
    """The default subscription's."""
    return InRegion(Subscription(AzureSite(provider="azure", region=region, environment=environment_of(region))))
