"""Versions of an Azure Compute Gallery: made of a machine, replicated to regions, removed with what holds them.

A build's name becomes a definition (recipe and group) and a version of it (the build). The gallery and its resource
group stay: they cost nothing. https://learn.microsoft.com/azure/virtual-machines/azure-compute-gallery
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.azure import machines
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import (
    DEPRECATED,
    PAUSE_S,
    STOP_S,
    Image,
    Tell,
    awaited,
    builder_of,
    not_ours,
    until,
)
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup
from provisioner.rundir.fleet import Node

COMPUTE, GALLERIES, GROUPS = "2024-07-01", "2023-07-03", "2024-11-01"
"""Versions of the APIs. Galleries take a machine as their source since 2023-07-03:
https://learn.microsoft.com/rest/api/compute/gallery-image-versions/create-or-update"""
BUILD = re.compile(r"(.+)-([0-9]{8})-([0-9]{6})-([0-9a-f]{8})")
"""A build's name: recipe and group, its second, and what tells two of a second apart."""
PENDING = ("Creating", "Updating", "Migrating")


class GalleryImages:
    """See providers/images.py for the contract. `pause_s`: between two looks."""

    def __init__(self, site_context: Place, subscription: Subscription, *, pause_s: float = PAUSE_S) -> None:
        self._site_context, self._subscription, self._pause_s = site_context, subscription, pause_s
        self._site = subscription.site
        self._group = self._site.resource_group or f"gpuprov-images-{self._site.region}"

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:
        return builder_of("azure", group, requested_type)

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:  # noqa: ARG002
        if accounts:
            raise ProviderError(
                "image.targets.*.share_with: Azure shares a gallery by a role assignment, which gpuprov does not make",
                where=f"site {self._site_context.site}",
                hint="leave it out, and once after the first build: az role assignment create --role Reader --assignee "
                f"WHO --scope {self._gallery}",
            )

    def find(self, name: str) -> Image | None:
        row = self._row(self._version(name))
        if row is None:
            return None
        state = str(row["properties"].get("provisioningState"))
        failure = "" if state in ("Succeeded", *PENDING) else _reason(row, state)
        return Image(str(row["id"]), ready=state == "Succeeded", why=failure)

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:
        if self.find(name) is None:
            machine = self._machine(node)
            report(f"stopping {machine.name}")
            self._send("POST", f"{machine.id}/deallocate", COMPUTE)
            until(
                lambda: self._stopped(machine), f"{machine.name} has not stopped", STOP_S,
                where=self._site_context.site, pause_s=self._pause_s,
            )  # fmt: skip
            self._send("POST", f"{machine.id}/generalize", COMPUTE)
            self._create_missing_parents(name, tags)
            self._send("PUT", self._version(name), GALLERIES, self._body(machine.id, tags))
            report(f"{self._version(name).rpartition('/images/')[2]} is being made of its disk")
        return self._ready(name)

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],  # noqa: ARG002
        report: Tell,
    ) -> dict[str, str]:  # fmt: skip
        self.check(regions, accounts)
        target_regions = list(dict.fromkeys([self._site.region, *regions]))
        row = self._row(self._version(name)) or {}
        if not set(target_regions) <= set(_regions(row)):
            report(f"replicating it to {', '.join(target_regions[1:])}")
            profile = {"publishingProfile": {"targetRegions": [self._target(region) for region in target_regions]}}
            self._send("PATCH", self._version(name), GALLERIES, {"properties": profile})
            self._ready(name)
        return dict.fromkeys(target_regions, image)

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:
        row = self._row(self._version(name))
        if row is None:
            return {}
        present_regions = {self._site.region, *_regions(row)}
        return {
            region: str(row["id"])
            for region in dict.fromkeys([self._site.region, *regions])
            if region in present_regions
        }

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """A version goes from all its regions at once; its definition goes with the last one."""
        for number in dict.fromkeys(ids.values()):
            row = self._row(number)
            if row is not None:
                if not tags.items() <= (row.get("tags") or {}).items():
                    raise not_ours(number, ", ".join(ids), self._site_context.site)
                self._send("DELETE", number, GALLERIES)
                self._wait_until_gone(number)
            definition = number.rpartition("/versions/")[0]
            definition_row = self._row(definition)
            if definition_row is None or (definition_row.get("tags") or {}).get("gpuprov-image") != tags.get(
                "gpuprov-image"
            ):
                continue
            if not self._send("GET", f"{definition}/versions", GALLERIES).get("value"):
                self._send("DELETE", definition, GALLERIES)

    def used(self, ids: Mapping[str, str]) -> list[str]:
        """In this subscription; those of others Azure does not tell."""
        image_ids, client = {number.lower() for number in ids.values()}, self._subscription.client("compute")
        try:
            rows = self._subscription.all(client.virtual_machines.list_all)
        except Trouble as error:
            raise self._error(error, "machines", "Microsoft.Compute/virtualMachines/read") from None
        machine_ids = list[str]()
        for row in rows:
            image = getattr(row.storage_profile, "image_reference", None)
            if image is not None and str(image.id).lower() in image_ids:
                machine_ids.append(str(row.id))
        return machine_ids

    @property
    def _gallery(self) -> str:
        """One of a region and resource group; a subscription has each name once."""
        mark = hashlib.sha256(self._group.lower().encode()).hexdigest()[:8]
        try:
            scope = self._subscription.scope
        except Trouble as error:
            raise self._error(error, "the subscription", "") from None
        group = f"{scope}/resourceGroups/{self._group}"
        return f"{group}/providers/Microsoft.Compute/galleries/gpuprov_{self._site.region}_{mark}"

    def _version(self, name: str) -> str:
        """Where the image of a name is, or would be. The parts of a version are numbers of 31 bits."""
        known = BUILD.fullmatch(name)
        definition = known[1] if known else name
        version = f"{int(known[2])}.{int(known[3])}.{int(known[4], 16) & 0x7FFFFFFF}" if known else "1.0.0"
        return f"{self._gallery}/images/{definition}/versions/{version}"

    def _create_missing_parents(self, name: str, tags: Mapping[str, str]) -> None:
        """What holds the version, each where it is not there yet. Azure makes them within seconds."""
        definition = self._version(name).rpartition("/versions/")[0]
        short, region = definition.rpartition("/")[2], self._site.region
        sku = short if len(short) <= 64 else f"{short[:55]}-{hashlib.sha256(short.encode()).hexdigest()[:8]}"
        marks = {"gpuprov-image": tags.get("gpuprov-image", "")}
        properties = {
            "osType": "Linux", "osState": "Generalized", "hyperVGeneration": "V2", "architecture": "x64",
            "identifier": {"publisher": "gpuprov", "offer": "gpuprov", "sku": sku},
            "features": [
                {"name": "IsAcceleratedNetworkSupported", "value": "True"},
                {"name": "DiskControllerTypes", "value": "SCSI, NVMe"},
            ],
        }  # fmt: skip
        required_resources: list[tuple[str, str, dict[str, Any]]] = [
            (self._gallery, GALLERIES, {"location": region, "tags": {"gpuprov-images": region}, "properties": {}}),
            (definition, GALLERIES, {"location": region, "tags": marks, "properties": properties}),
        ]
        if self._site.resource_group is None:
            group = self._gallery.partition("/providers/")[0]
            required_resources.insert(0, (group, GROUPS, {"location": region, "tags": {"gpuprov-images": region}}))
        for path, version, body in required_resources:
            if self._row(path, version) is None:
                self._send("PUT", path, version, body)
                self._wait_until_present(path, version)

    def _wait_until_present(self, path: str, version: str) -> None:
        """Wait until it can hold something."""

        def look() -> bool | None:
            row = self._row(path, version) or {}
            state = str(row.get("properties", {}).get("provisioningState"))
            if state == "Failed":
                raise ProviderError(
                    f"{path} was not made: {_reason(row, state)}", where=f"site {self._site_context.site}"
                )
            return True if state == "Succeeded" else None

        until(look, f"{path} is not there", STOP_S, where=self._site_context.site, pause_s=self._pause_s)

    def _wait_until_gone(self, path: str) -> None:
        def look() -> bool | None:
            return None if self._row(path) else True

        until(look, f"{path} is not gone", STOP_S, where=self._site_context.site, pause_s=self._pause_s)

    def _body(self, machine: str, tags: Mapping[str, str]) -> dict[str, Any]:
        old = (datetime.now(UTC) + DEPRECATED).strftime("%Y-%m-%dT00:00:00Z")
        return {
            "location": self._site.region, "tags": dict(tags),
            "properties": {
                "publishingProfile": {"targetRegions": [self._target(self._site.region)], "endOfLifeDate": old},
                "storageProfile": {"source": {"virtualMachineId": machine}},
                "safetyProfile": {"allowDeletionOfReplicatedLocations": True},
            },
        }  # fmt: skip

    def _target(self, region: str) -> dict[str, Any]:
        """A region that has a version. A disk encryption set is of one region: copies have Azure's own key."""
        key, home = self._site.disk_encryption_set, region == self._site.region
        sealed = {"encryption": {"osDiskImage": {"diskEncryptionSetId": key}}} if key and home else {}
        return {"name": region, "regionalReplicaCount": 1, "storageAccountType": "Standard_LRS", **sealed}

    def _ready(self, name: str) -> str:
        location = f"site {self._site_context.site}"
        return awaited(lambda: self.find(name), name, where=location, pause_s=self._pause_s)

    def _machine(self, node: Node) -> machines.Machine:
        try:
            rows = machines.listed(self._subscription)
        except Trouble as error:
            raise self._error(error, "machines", "Microsoft.Compute/virtualMachines/read") from None
        machine = next((row for row in rows if row.number == node.id), None)
        if machine is None:
            raise ProviderError(
                f"{node.name} ({node.id}) is gone", where=f"site {self._site_context.site}", hint="run it again"
            )
        return machine

    def _stopped(self, machine: machines.Machine) -> bool | None:
        row = self._send("GET", f"{machine.id}/instanceView", COMPUTE)
        codes = [str(status.get("code")) for status in row.get("statuses", ())]
        return True if "PowerState/deallocated" in codes else None

    def _row(self, path: str, version: str = GALLERIES) -> dict[str, Any] | None:
        try:
            return self._subscription.send("GET", path, version)
        except Trouble as error:
            if error.kind == "absent":
                return None
            raise self._error(error, path, _action("GET", path)) from None

    def _send(self, method: str, path: str, version: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            return self._subscription.send(method, path, version, body)
        except Trouble as error:
            if method == "DELETE" and error.kind == "absent":
                return {}
            raise self._error(error, path, _action(method, path)) from None

    def _error(self, error: Trouble, path: str, action: str) -> ProviderError:
        hint = f"allow {action} (`gpuprov docs azure image`)" if error.kind == "denied" else "run it again"
        return ProviderError(f"{path.rpartition('/')[2]}: {error}", where=f"site {self._site_context.site}", hint=hint)


def _regions(row: Mapping[str, Any]) -> list[str]:
    """The regions that a version is in; Azure writes East US."""
    rows = row.get("properties", {}).get("publishingProfile", {}).get("targetRegions") or ()
    return [str(target["name"]).replace(" ", "").lower() for target in rows]


def _reason(row: Mapping[str, Any], state: str) -> str:
    """Why it was not made, as far as Azure says it there."""
    rows = row.get("properties", {}).get("replicationStatus", {}).get("summary") or ()
    details = [f"{status.get('region')}: {status['details']}" for status in rows if status.get("details")]
    return "; ".join(details) or f"Azure says {state}"


def _action(method: str, path: str) -> str:
    """The permission that a request takes, as roles name it."""
    if "/providers/" not in path:
        return f"Microsoft.Resources/subscriptions/resourceGroups/{'read' if method == 'GET' else 'write'}"
    segments = path.partition("/providers/")[2].split("/")
    kind = "/".join([segments[0], *segments[1::2]])
    verbs = {"GET": "read", "DELETE": "delete", "POST": "action"}
    return f"{kind}/{verbs.get(method, 'write')}"
