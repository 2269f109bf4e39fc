"""What would keep `up` from working at Azure, asked of its API as the REST reference has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.core.paging import ItemPaged

from provisioner.errors import GpuprovError
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers import actions
from provisioner.providers.azure import image, machines, permissions
from provisioner.providers.azure.client import Subscription
from provisioner.providers.azure.preflight import preflight
from provisioner.providers.azure.site import AzureSite
from provisioner.providers.base import Place
from provisioner.providers.public_address import PublicAddress
from provisioner.providers.trouble import Trouble
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.azure_api import REGION, SUBSCRIPTION, Api, Token, error, permission, serving, sku, thing, usage

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
    made = plans.plan(spec)
    bases = {"here": {group.stack.os: BaseImage(id="x", why="test") for group in made.groups}}
    return Plan(spec=made.spec, groups=made.groups, simulated=False, bases=bases)


def asked(api: Api, groups: dict[str, Any] | None = None, there: tuple[str, ...] = (), **site: Any) -> list[Finding]:
    subscription = api.subscription(**site)
    place = Place("test", "here", subscription.site, Path("/nowhere"))
    wanted = plan(groups or {"train": {"machine": ND, "count": 2}})
    return preflight(subscription, place, wanted, there, PublicAddress(called=False))


def of(found: list[Finding], *statuses: str) -> dict[str, str]:
    return {one.subject: one.message for one in found if one.status in statuses}


def test_all_is_well(api: Api) -> None:
    found = asked(api)
    assert of(found, "blocks", "warning") == {}
    assert of(found, "unknown") == {
        "capacity of train": f"whether Azure has 2 × {ND} now is not known until they are made"
    }
    good = of(found, "ok")
    assert good["credentials"].startswith("ada@example.com, subscription Fleet (1111")
    assert good["quota ND A100 v4"] == "400 vCPUs in eastus, 96 in use, 192 wanted"
    assert good["quota Total Regional vCPUs"] == "500 vCPUs in eastus, 10 in use, 192 wanted"
    assert good["group train"] == f"{ND} is sold in eastus"
    assert set(of(asked(api, there=("train-0", "train-1")), "unknown")) == set()
    assert not [call for call in api.calls if call[0] != "GET"], "nothing is changed, nothing is registered"


def test_machines_that_would_get_secure_boot_unasked_are_not_made(api: Api) -> None:
    api.features["TrustedLaunchByDefaultPreview"] = "Registered"
    (found,) = [one for one in asked(api) if one.status == "blocks"]
    assert found.subject == "Trusted Launch"
    assert found.message.endswith(f"the driver would not load on {ND}")
    assert "az feature unregister --namespace Microsoft.Compute --name TrustedLaunchByDefaultPreview" in found.action
    assert of(asked(api, there=("train-0", "train-1")), "blocks") == {}, "machines that stand are not changed by it"
    api.skus[0]["capabilities"] += [{"name": "TrustedLaunchDisabled", "value": "True"}]
    assert of(asked(api), "blocks") == {}, "the size takes no Trusted Launch"


def test_whether_machines_get_secure_boot_is_unknown_where_it_may_not_be_asked(api: Api) -> None:
    api.rules = [("GET", "Microsoft.Features", error("AuthorizationFailed", "no", 403))]
    assert "Trusted Launch" in of(asked(api), "unknown")


def test_a_family_without_room_blocks_with_what_to_ask_for(api: Api) -> None:
    (found,) = [one for one in asked(api, {"train": {"machine": ND, "count": 4}}) if one.status == "blocks"]
    assert found.subject == "quota ND A100 v4"
    assert "ask for 480 vCPUs: https://portal.azure.com/" in found.action


def test_another_kind_that_has_room_makes_it_a_warning(api: Api) -> None:
    group = {"machine": NC, "count": 4, "capacity": {"kind": "spot", "fallback": ("on-demand",)}}
    found = asked(api, {"t": group})
    assert of(found, "blocks") == {}
    assert set(of(found, "warning")) == {"quota StandardNCADSA100v4Family"}
    assert "Low-priority" in "".join(of(found, "ok"))
    group["count"] = 5
    assert set(of(asked(api, {"t": group}), "blocks")) == {
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
    assert "NotAvailableForSubscription" in of(asked(api), "blocks")["group train"]
    del api.skus[0]
    assert of(asked(api), "blocks")["group train"] == f"{ND} is not sold in eastus"
    zone = {"type": "Zone", "reasonCode": "NotAvailableForSubscription", "restrictionInfo": {"zones": ["1"]}}
    api.skus[0]["restrictions"] = [zone]
    one = {"t": {"machine": NC}}
    assert "sold to this subscription in 2, not in 1" in of(asked(api, one, zones=["1"]), "blocks")["group t"]
    assert of(asked(api, one, zones=["1", "2"]), "warning")["group t"].endswith("in 1")
    api.skus[0]["capabilities"] = [{"name": "LowPriorityCapable", "value": "False"}]
    spot = {"t": {"machine": NC, "capacity": {"kind": "spot"}}}
    assert of(asked(api, spot), "blocks")["group t"].endswith("is not sold as spot")


@pytest.mark.parametrize(
    ("rule", "status", "subject", "said"),
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
    api: Api, rule: tuple[str, str, Any], status: str, subject: str, said: str
) -> None:
    api.rules.append(rule)
    assert said in of(asked(api, internet="public"), status)[subject]


def test_a_subscription_that_is_off_or_not_registered_blocks(api: Api) -> None:
    api.registered = "NotRegistered"
    found = asked(api)
    assert (
        of(found, "blocks")["Microsoft.Compute"]
        == "the subscription is not registered for Microsoft.Compute (NotRegistered)"
    )
    assert "az provider register --namespace Microsoft.Compute" in "".join(one.action for one in found)
    api.state = "Disabled"
    (found,) = [asked(api)]
    assert [one.subject for one in found] == ["credentials"] and "is Disabled" in found[0].message


def test_addresses_are_counted(api: Api) -> None:
    api.network = [usage("StandardSkuPublicIpAddresses", 19, 20)]
    assert "20 may be had, 19 are there and 2 are wanted" in "".join(of(asked(api), "blocks").values())
    assert of(asked(api, internet="nat"), "blocks") == {}
    api.network = [usage("StandardSkuPublicIpAddresses", 20, 20)]
    assert "1 are wanted" in "".join(of(asked(api, internet="nat"), "blocks").values()), "the NAT gateway's"
    api.calls.clear()
    asked(api, internet="none")
    assert not [path for _, path in api.calls if "Microsoft.Network/locations" in path]


def test_permissions_are_compared_with_what_is_called(api: Api) -> None:
    api.permissions = [
        {
            "actions": ["Microsoft.Compute/*", "*/read", "Microsoft.Network/*"],
            "notActions": ["Microsoft.Compute/disks/*"],
        }
    ]
    said = of(asked(api), "blocks")["permissions"]
    assert "Microsoft.Compute/disks/delete" in said and "resourceGroups/write" in said
    assert "Microsoft.Network" not in said
    api.permissions.append({"actions": ["*"], "notActions": []})
    assert "permissions" in of(asked(api), "ok")


def test_the_table_has_what_is_asked_and_no_more(api: Api) -> None:
    """With everything that cluster.yaml can name."""
    hub = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/hub/providers"
    here = {
        "subnet": f"{hub}/Microsoft.Network/virtualNetworks/hub/subnets/gpu", "resource_group": "mine",
        "identities": (f"{hub}/Microsoft.ManagedIdentity/userAssignedIdentities/me",), "encryption_at_host": True,
        "disk_encryption_set": f"{hub}/Microsoft.Compute/diskEncryptionSets/keys",
    }  # fmt: skip
    reserved = f"{hub}/Microsoft.Compute/capacityReservationGroups/mine"
    api.resources = [thing("hub", "Microsoft.Network/virtualNetworks", "hub")]
    asked(api)
    asked(api, {"t": {"machine": NC, "capacity": {"kind": "reservation", "id": reserved}}}, **here)
    with suppress(GpuprovError):
        image.base_image(api.subscription(), "ubuntu-24.04")
    list(machines.of_site(api.subscription(), "test", "here"))
    made = {permission(method, path) for method, path in api.calls}
    failed = {"Microsoft.Compute/virtualMachines/instanceView/read"}  # of a machine whose making has failed
    assert made == set(actions.load("azure").calls["preflight"]) - failed


def test_an_action_of_one_role_is_not_taken_by_another() -> None:
    rows = [{"actions": ["*/read"], "notActions": []}, {"actions": ["*"], "notActions": ["*/write"]}]
    assert permissions.allowed(rows, "Microsoft.Compute/disks/read")
    assert permissions.allowed(rows, "Microsoft.Compute/disks/delete")
    assert not permissions.allowed(rows, "Microsoft.Compute/disks/write")


def test_what_cluster_yaml_names_is_looked_at(api: Api) -> None:
    network = thing("hub", "Microsoft.Network/virtualNetworks", "hub")
    subnet = {
        "id": SUBNET,
        "name": "gpu",
        "properties": {"addressPrefix": "10.0.0.0/29", "ipConfigurations": [{"id": "a"}, {"id": "b"}]},
    }
    site: dict[str, Any] = {"subnet": SUBNET, "resource_group": "mine", "encryption_at_host": True}
    found = of(asked(api, **site), "blocks")
    assert found["resource group mine"] == "there is no such resource group"
    assert found["subnet gpu"] == "there is no such subnet"
    api.groups = [{"name": "mine", "location": "eastus", "id": "x"}]
    api.resources = [network]
    api.others[SUBNET] = subnet
    api.features = {}
    found = of(asked(api, **site), "blocks")
    assert found["subnet gpu"] == "1 addresses are free, 2 are wanted"
    assert found["encryption at host"] == "the subscription's feature EncryptionAtHost is NotRegistered"
    network["location"] = "westus"
    assert "can't be in it" in of(asked(api, **site), "blocks")["subnet gpu"]
    network["location"], site["storage"] = "eastus", {"files": {}}
    subnet["properties"] = {"addressPrefix": "10.0.0.0/24", "serviceEndpoints": [{"service": "Microsoft.Sql"}]}
    (refused,) = [one for one in asked(api, **site) if one.status == "blocks" and one.subject == "subnet gpu"]
    assert refused.message.startswith("it has no service endpoint Microsoft.Storage")
    assert refused.action.endswith("--service-endpoints Microsoft.Storage Microsoft.Sql`")
    subnet["properties"]["serviceEndpoints"] += [{"service": "Microsoft.Storage"}]
    assert "subnet gpu" not in of(asked(api, **site), "blocks")


def test_a_reservation_has_the_size_and_room(api: Api) -> None:
    group = f"{SUBNET.partition('/providers')[0]}/providers/Microsoft.Compute/capacityReservationGroups/mine"
    wanted = {"t": {"machine": NC, "count": 2, "capacity": {"kind": "reservation", "id": group}}}
    assert of(asked(api, wanted), "blocks")["group t"] == "there is no capacity reservation group mine"
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
    found = asked(api, wanted)
    assert of(found, "warning")["group t"] == f"mine has 2 × {NC}, 1 in use, 2 wanted"
    assert "quota StandardNCADSA100v4Family" not in of(found, "ok", "blocks", "warning"), "it has its quota already"
    used.clear()
    assert f"mine has 2 × {NC}, 0 in use, 2 wanted" in of(asked(api, wanted), "ok").values()
    assert "no reservation for" in of(asked(api, wanted, zones=["2"]), "blocks")["group t"]


def test_an_image_is_its_newest_version_by_number(api: Api) -> None:
    api.images[URN] = ["24.04.202409120", "24.04.202511100", "24.4.9", "latest"]
    found = image.base_image(api.subscription(), "ubuntu-24.04")
    assert found.id == f"{URN}:24.04.202511100"
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
    def pages(most: int) -> ItemPaged[int]:
        def page(token: str | None) -> int:
            number = int(token or 0)
            assert number < 20, "asked for ever"
            return number

        return ItemPaged(page, lambda number: (str(number + 1) if number + 1 < most else None, [number]))

    monkeypatch.setattr("provisioner.providers.azure.client.MOST_PAGES", 5, raising=False)
    subscription = Subscription(AzureSite(provider="azure", region=REGION, subscription=SUBSCRIPTION), given=Token())
    assert subscription.all(lambda: pages(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(Trouble, match="more than 5 pages"):
        subscription.all(lambda: pages(10**9))


def test_a_file_share_needs_the_subnets_service_endpoint_and_says_what_down_removes(api: Api) -> None:
    files = {"files": {"path": "/files"}}
    found = asked(api, storage=files)
    assert "removes the file share at /files with its data" in of(found, "warning")["storage"]
    assert any("/providers/Microsoft.Storage" in path for _, path in api.calls), "whether it is registered"
