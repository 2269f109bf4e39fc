"""What would keep `up` from working at Azure, asked of its API as the REST reference has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.core.paging import ItemPaged

from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers import actions
from provisioner.machines.providers.azure import image, machines, permissions
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.preflight import preflight
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.azure_api import (
    REGION,
    SUBSCRIPTION,
    Api,
    Token,
    error,
    permission,
    resource_document,
    serving,
    sku,
    usage,
)

ND, NC = "Standard_ND96asr_v4", "Standard_NC24ads_A100_v4"
FAMILY = "standard NDASv4_A100 Family"
URN = "Canonical:ubuntu-24_04-lts:server"
SUBNET = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/hub/providers/Microsoft.Network/"
    "virtualNetworks/hub/subnets/gpu"
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(monkeypatch) as served:
        served.skus = [
            sku(ND, FAMILY, 96, RdmaEnabled="True", LowPriorityCapable="True", EncryptionAtHostSupported="True"),
            sku(NC, "StandardNCADSA100v4Family", 24, ("1", "2"), LowPriorityCapable="True"),
        ]
        served.compute = [
            usage("cores", 10, 500, "Total Regional vCPUs"), usage("StandardNDASv4_A100Family", 96, 400, "ND A100 v4"),
            usage("StandardNCADSA100v4Family", 0, 48),
            usage("lowPriorityCores", 0, 96, "Total Regional Low-priority vCPUs"),
        ]  # fmt: skip
        served.network = [usage("StandardSkuPublicIpAddresses", 1, 20), usage("PublicIPAddresses", 1, 20)]
        yield served


def plan(groups: dict[str, Any]) -> Plan:
    site = {"provider": "azure", "region": "eastus"}
    spec = ClusterSpec.model_validate({"name": "test", "sites": {"here": site}, "groups": groups})
    offline_plan = plans.plan(spec)
    bases = {"here": {group.stack.os: BaseImage(id="x", why="test") for group in offline_plan.groups}}
    return Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)


def preflight_findings(
    api: Api, groups: dict[str, Any] | None = None, existing: tuple[str, ...] = (), **site: Any
) -> list[Finding]:
    subscription = api.subscription(**site)
    site_context = Place("test", "here", subscription.site, Path("/nowhere"))
    site_plan = plan(groups or {"train": {"machine": ND, "count": 2}})
    return preflight(subscription, site_context, site_plan, existing, PublicAddress(called=False))


def of(findings: list[Finding], *statuses: str) -> dict[str, str]:
    return {finding.subject: finding.message for finding in findings if finding.status in statuses}


def test_all_is_well(api: Api) -> None:
    findings = preflight_findings(api)
    assert of(findings, "blocks", "warning") == {}
    assert of(findings, "unknown") == {
        "capacity of train": f"whether Azure has 2 × {ND} now is known only when they are created"
    }
    passed = of(findings, "ok")
    assert passed["credentials"].startswith("ada@example.com, subscription Fleet (1111")
    assert passed["quota ND A100 v4"] == "400 vCPUs in eastus, 96 in use, 192 wanted"
    assert passed["quota Total Regional vCPUs"] == "500 vCPUs in eastus, 10 in use, 192 wanted"
    assert passed["group train"] == f"{ND} is sold in eastus"
    assert set(of(preflight_findings(api, existing=("train-0", "train-1")), "unknown")) == set()
    assert not [call for call in api.calls if call[0] != "GET"], "nothing is changed, nothing is registered"


def test_machines_that_would_get_secure_boot_unasked_are_not_made(api: Api) -> None:
    api.features["TrustedLaunchByDefaultPreview"] = "Registered"
    (blocker,) = [finding for finding in preflight_findings(api) if finding.status == "blocks"]
    assert blocker.subject == "Trusted Launch"
    assert blocker.message.endswith(f"the driver would not load on {ND}")
    assert "az feature unregister --namespace Microsoft.Compute --name TrustedLaunchByDefaultPreview" in blocker.action
    assert of(preflight_findings(api, existing=("train-0", "train-1")), "blocks") == {}, (
        "machines that stand are not changed by it"
    )
    api.skus[0]["capabilities"] += [{"name": "TrustedLaunchDisabled", "value": "True"}]
    assert of(preflight_findings(api), "blocks") == {}, "the size takes no Trusted Launch"


def test_machines_without_gpus_have_no_driver_that_secure_boot_would_refuse(api: Api) -> None:
    api.features["TrustedLaunchByDefaultPreview"] = "Registered"
    api.skus.append(sku("Standard_D4s_v5", "standardDSv5Family", 4))
    api.compute.append(usage("standardDSv5Family", 8, 10, "Standard DSv5 Family vCPUs"))
    findings = preflight_findings(api, {"head": {"machine": "Standard_D4s_v5", "count": 1}})
    assert of(findings, "blocks") == {"quota Standard DSv5 Family vCPUs": "10 vCPUs in eastus, 8 in use, 4 wanted"}


def test_whether_machines_get_secure_boot_is_unknown_where_it_may_not_be_asked(api: Api) -> None:
    api.rules = [("GET", "Microsoft.Features", error("AuthorizationFailed", "no", 403))]
    assert "Trusted Launch" in of(preflight_findings(api), "unknown")


def test_a_family_without_room_blocks_with_what_to_ask_for(api: Api) -> None:
    (blocker,) = [
        finding
        for finding in preflight_findings(api, {"train": {"machine": ND, "count": 4}})
        if finding.status == "blocks"
    ]
    assert blocker.subject == "quota ND A100 v4"
    assert "ask for 480 vCPUs: https://portal.azure.com/" in blocker.action


def test_another_kind_that_has_room_makes_it_a_warning(api: Api) -> None:
    group = {"machine": NC, "count": 4, "capacity": {"kind": "spot", "fallback": ("on-demand",)}}
    findings = preflight_findings(api, {"t": group})
    assert of(findings, "blocks") == {}
    assert set(of(findings, "warning")) == {"quota StandardNCADSA100v4Family"}
    assert "Low-priority" in "".join(of(findings, "ok"))
    group["count"] = 5
    assert set(of(preflight_findings(api, {"t": group}), "blocks")) == {
        "quota StandardNCADSA100v4Family",
        "quota Total Regional Low-priority vCPUs",
    }


def test_what_is_not_sold_or_not_to_this_subscription_blocks(api: Api) -> None:
    location = {
        "type": "Location",
        "values": ["eastus"],
        "reasonCode": "NotAvailableForSubscription",
        "restrictionInfo": {},
    }
    api.skus[0]["restrictions"] = [location]
    assert "NotAvailableForSubscription" in of(preflight_findings(api), "blocks")["group train"]
    del api.skus[0]
    assert of(preflight_findings(api), "blocks")["group train"] == f"{ND} is not sold in eastus"
    zone = {"type": "Zone", "reasonCode": "NotAvailableForSubscription", "restrictionInfo": {"zones": ["1"]}}
    api.skus[0]["restrictions"] = [zone]
    on_demand = {"t": {"machine": NC}}
    assert (
        "sold to this subscription in 2, not in 1"
        in of(preflight_findings(api, on_demand, zones=["1"]), "blocks")["group t"]
    )
    assert of(preflight_findings(api, on_demand, zones=["1", "2"]), "warning")["group t"].endswith("in 1")
    api.skus[0]["capabilities"] = [{"name": "LowPriorityCapable", "value": "False"}]
    spot = {"t": {"machine": NC, "capacity": {"kind": "spot"}}}
    assert of(preflight_findings(api, spot), "blocks")["group t"].endswith("is not sold as spot")


@pytest.mark.parametrize(
    ("rule", "status", "subject", "text"),
    [
        (("GET", "/skus$", error("AuthorizationFailed", "may not", 403)), "unknown", "VM sizes", "not allowed to look"),
        (("GET", "Compute/.*/usages$", error("TooManyRequests", "slow", 429)), "unknown", "quota", "too often"),
        (("GET", "Network/.*/usages$", error("ServerError", "x", 500)), "unknown", "public IP addresses", "no ans"),
        (("GET", "Authorization/permissions$", error("x", "y", 403)), "unknown", "permissions", "not allowed to look"),
        (("GET", "5555$", error("SubscriptionNotFound", "none", 404)), "blocks", "credentials", "none"),
        (("GET", "5555$", error("ExpiredAuthenticationToken", "old", 401)), "blocks", "credentials", "have expired"),
    ],
)  # fmt: skip
def test_a_question_without_an_answer_is_no_pass(
    api: Api, rule: tuple[str, str, Any], status: str, subject: str, text: str
) -> None:
    api.rules.append(rule)
    assert text in of(preflight_findings(api, internet="public"), status)[subject]


def test_a_subscription_that_is_off_or_not_registered_blocks(api: Api) -> None:
    api.registered = "NotRegistered"
    findings = preflight_findings(api)
    assert (
        of(findings, "blocks")["Microsoft.Compute"]
        == "the subscription is not registered for Microsoft.Compute (NotRegistered)"
    )
    assert "az provider register --namespace Microsoft.Compute" in "".join(finding.action for finding in findings)
    api.state = "Disabled"
    (findings,) = [preflight_findings(api)]
    assert [finding.subject for finding in findings] == ["credentials"] and "is Disabled" in findings[0].message


def test_addresses_are_counted(api: Api) -> None:
    api.network = [usage("StandardSkuPublicIpAddresses", 19, 20)]
    assert "limit 20, 19 in use, 2 required" in "".join(of(preflight_findings(api), "blocks").values())
    assert of(preflight_findings(api, internet="nat"), "blocks") == {}
    api.network = [usage("StandardSkuPublicIpAddresses", 20, 20)]
    assert "1 required" in "".join(of(preflight_findings(api, internet="nat"), "blocks").values()), "the NAT gateway's"
    api.calls.clear()
    preflight_findings(api, internet="none")
    assert not [path for _, path in api.calls if "Microsoft.Network/locations" in path]


def test_permissions_are_compared_with_what_is_called(api: Api) -> None:
    api.permissions = [
        {
            "actions": ["Microsoft.Compute/*", "*/read", "Microsoft.Network/*"],
            "notActions": ["Microsoft.Compute/disks/*"],
        }
    ]
    message = of(preflight_findings(api), "blocks")["permissions"]
    assert "Microsoft.Compute/disks/delete" in message and "resourceGroups/write" in message
    assert "Microsoft.Network" not in message
    api.permissions.append({"actions": ["*"], "notActions": []})
    assert "permissions" in of(preflight_findings(api), "ok")


def test_the_table_has_what_is_asked_and_no_more(api: Api) -> None:
    """With everything that cluster.yaml can name."""
    hub = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/hub/providers"
    site_keys = {
        "subnet": f"{hub}/Microsoft.Network/virtualNetworks/hub/subnets/gpu", "resource_group": "mine",
        "identities": (f"{hub}/Microsoft.ManagedIdentity/userAssignedIdentities/me",), "encryption_at_host": True,
        "disk_encryption_set": f"{hub}/Microsoft.Compute/diskEncryptionSets/keys",
    }  # fmt: skip
    reserved = f"{hub}/Microsoft.Compute/capacityReservationGroups/mine"
    api.resources = [resource_document("hub", "Microsoft.Network/virtualNetworks", "hub")]
    preflight_findings(api)
    preflight_findings(api, {"t": {"machine": NC, "capacity": {"kind": "reservation", "id": reserved}}}, **site_keys)
    with suppress(GpuprovError):
        image.base_image(api.subscription(), "ubuntu-24.04")
    list(machines.of_site(api.subscription(), "test", "here"))
    called_permissions = {permission(method, path) for method, path in api.calls}
    failed = {"Microsoft.Compute/virtualMachines/instanceView/read"}  # of a machine whose making has failed
    assert called_permissions == set(actions.load("azure").calls["preflight"]) - failed


def test_an_action_of_one_role_is_not_taken_by_another() -> None:
    rows = [{"actions": ["*/read"], "notActions": []}, {"actions": ["*"], "notActions": ["*/write"]}]
    assert permissions.allowed(rows, "Microsoft.Compute/disks/read")
    assert permissions.allowed(rows, "Microsoft.Compute/disks/delete")
    assert not permissions.allowed(rows, "Microsoft.Compute/disks/write")


def test_what_cluster_yaml_names_is_looked_at(api: Api) -> None:
    network = resource_document("hub", "Microsoft.Network/virtualNetworks", "hub")
    subnet = {
        "id": SUBNET,
        "name": "gpu",
        "properties": {"addressPrefix": "10.0.0.0/29", "ipConfigurations": [{"id": "a"}, {"id": "b"}]},
    }
    site: dict[str, Any] = {"subnet": SUBNET, "resource_group": "mine", "encryption_at_host": True}
    blockers = of(preflight_findings(api, **site), "blocks")
    assert blockers["resource group mine"] == "there is no such resource group"
    assert blockers["subnet gpu"] == "there is no such subnet"
    api.groups = [{"name": "mine", "location": "eastus", "id": "x"}]
    api.resources = [network]
    api.others[SUBNET] = subnet
    api.features = {}
    blockers = of(preflight_findings(api, **site), "blocks")
    assert blockers["subnet gpu"] == "1 addresses are free, 2 required"
    assert blockers["encryption at host"] == "the subscription's feature EncryptionAtHost is NotRegistered"
    network["location"] = "westus"
    assert "cannot use it" in of(preflight_findings(api, **site), "blocks")["subnet gpu"]
    network["location"], site["storage"] = "eastus", {"files": {}}
    subnet["properties"] = {"addressPrefix": "10.0.0.0/24", "serviceEndpoints": [{"service": "Microsoft.Sql"}]}
    (refused,) = [
        finding
        for finding in preflight_findings(api, **site)
        if finding.status == "blocks" and finding.subject == "subnet gpu"
    ]
    assert refused.message.startswith("it has no service endpoint Microsoft.Storage")
    assert refused.action.endswith("--service-endpoints Microsoft.Storage Microsoft.Sql`")
    subnet["properties"]["serviceEndpoints"] += [{"service": "Microsoft.Storage"}]
    assert "subnet gpu" not in of(preflight_findings(api, **site), "blocks")


def test_a_reservation_has_the_size_and_room(api: Api) -> None:
    group = f"{SUBNET.partition('/providers')[0]}/providers/Microsoft.Compute/capacityReservationGroups/mine"
    groups = {"t": {"machine": NC, "count": 2, "capacity": {"kind": "reservation", "id": group}}}
    assert (
        of(preflight_findings(api, groups), "blocks")["group t"]
        == "there is not the ID of a capacity reservation group mine"
    )
    row = {
        "name": "one",
        "location": "eastus",
        "sku": {"name": NC, "capacity": 2},
        "zones": ["1"],
        "id": f"{group}/capacityReservations/one",
    }
    api.others[f"{group}/capacityReservations"] = {"value": [row]}
    used = [{"id": "a"}]
    api.others[f"{group}/capacityReservations/one"] = {**row, "properties": {"virtualMachinesAssociated": used}}
    findings = preflight_findings(api, groups)
    assert of(findings, "warning")["group t"] == f"mine has 2 × {NC}, 1 in use, 2 wanted"
    assert "quota StandardNCADSA100v4Family" not in of(findings, "ok", "blocks", "warning"), "it has its quota already"
    used.clear()
    assert f"mine has 2 × {NC}, 0 in use, 2 wanted" in of(preflight_findings(api, groups), "ok").values()
    assert "no reservation for" in of(preflight_findings(api, groups, zones=["2"]), "blocks")["group t"]


def test_an_image_is_its_newest_version_by_number(api: Api) -> None:
    api.images[URN] = ["24.04.202409120", "24.04.202511100", "24.4.9", "latest"]
    base = image.base_image(api.subscription(), "ubuntu-24.04")
    assert base.id == f"{URN}:24.04.202511100"
    with pytest.raises(GpuprovError, match="debian-12 is not published in eastus"):
        image.base_image(api.subscription(), "debian-12")
    api.rules.append(("GET", "/versions$", error("AuthorizationFailed", "no", 403)))
    with pytest.raises(GpuprovError, match="could not be asked for"):
        image.base_image(api.subscription(), "ubuntu-24.04")


def test_an_hpc_image_is_the_one_of_that_version_or_none(api: Api) -> None:
    hpc, name = "microsoft-dsvm:ubuntu-hpc:2404", "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026072901"
    api.images[hpc] = ["24.04.2026052601", "24.04.2026072901", "24.04.2026092501"]
    assert image.vendor_image(api.subscription(), name).id == name
    api.images[hpc] = ["24.04.2026092501"]
    with pytest.raises(GpuprovError, match=r"2026072901 is not published in eastus; the newest .* is 24.04.2026092501"):
        image.vendor_image(api.subscription(), name)


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def pages(page_count: int) -> ItemPaged[int]:
        def page(token: str | None) -> int:
            number = int(token or 0)
            assert number < 20, "asked for ever"
            return number

        return ItemPaged(page, lambda number: (str(number + 1) if number + 1 < page_count else None, [number]))

    monkeypatch.setattr("provisioner.machines.providers.azure.client.MOST_PAGES", 5, raising=False)
    subscription = Subscription(
        AzureSite(provider="azure", region=REGION, subscription=SUBSCRIPTION), test_credential=Token()
    )
    assert subscription.all(lambda: pages(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(Trouble, match="more than 5 pages"):
        subscription.all(lambda: pages(10**9))


def test_a_file_share_needs_the_subnets_service_endpoint_and_says_what_down_removes(api: Api) -> None:
    files = {"files": {"path": "/files"}}
    findings = preflight_findings(api, storage=files)
    assert "removes the file share at /files with its data" in of(findings, "warning")["storage"]
    assert any("/providers/Microsoft.Storage" in path for _, path in api.calls), "whether it is registered"
