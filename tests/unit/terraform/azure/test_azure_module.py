"""terraform/azure by real Terraform, told what the provider tells it, against the schema of azurerm."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.paths import data
from provisioner.machines.providers.azure import module as azure_module
from provisioner.machines.providers.azure.module import AzureModule
from provisioner.machines.providers.azure.provider import Azure
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.terraform.render import render
from provisioner.plan.models import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.schema_provider import Cloud
from tests.support.terraform_run import terraform

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV test"
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
URN = "Canonical:ubuntu-24_04-lts:server:24.04.202511100"
IDENTITY = "0123456789ab"
GROUP = "gpuprov-test-here-01234567"
VM, NIC = "azurerm_linux_virtual_machine", "azurerm_network_interface"
RESERVATION = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/shared/providers/Microsoft.Compute/capacityReservationGroups/mine"
)
SUBNET = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/hub/providers/Microsoft.Network/virtualNetworks/hub/subnets/gpu"
pytestmark = [pytest.mark.heavy, pytest.mark.heavy]


class Root:
    """A site's workspace as gpuprov writes it, and Terraform in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, {**os.environ, **environment}
        self.workspace = folder / "sites" / "here"
        self.workspace.mkdir(parents=True)

    def write(
        self, groups: dict[str, Any], other_sites: Mapping[str, Any] | None = None, name: str = "test", **site: Any
    ) -> Plan:
        settings = {"provider": "azure", "region": "eastus", "subscription": SUBSCRIPTION, **site}
        access = {"allow": ["203.0.113.7/32"]}
        file = {"name": name, "sites": {"here": settings, **(other_sites or {})}, "groups": groups, "access": access}
        spec = ClusterSpec.model_validate_json(json.dumps(file))
        offline_plan = plans.plan(spec)
        bases = {"here": {group.stack.os: BaseImage(id=URN, why="test") for group in offline_plan.groups}}
        plan = Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)
        provider = Azure(Place("test", "here", spec.sites["here"], self.workspace))
        assert provider.module is not None
        render(plan, "here", provider.module, self.workspace, ssh_public_key=KEY, identity=IDENTITY)
        return plan

    def run(self, *arguments: str, check: bool = True) -> str:
        return terraform(self.workspace, self.environment, *arguments, check=check)

    def apply(self, check: bool = True) -> str:
        return self.run("apply", "-no-color", "-auto-approve", "-input=false", check=check)

    def actions(self, *arguments: str) -> dict[str, str]:
        lines = self.run("plan", "-json", "-input=false", *arguments).splitlines()
        changes = [event["change"] for event in map(json.loads, lines) if event["type"] == "planned_change"]
        return {change["resource"]["addr"].removeprefix("module.site."): change["action"] for change in changes}

    def nodes(self) -> dict[str, Any]:
        output: dict[str, Any] = json.loads(self.run("output", "-json", "nodes"))
        return output


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    return Cloud("azurerm")


@pytest.fixture(scope="module")
def serving(cloud: Cloud) -> Iterator[dict[str, str]]:
    with cloud.serving() as environment:
        yield environment


@pytest.fixture
def root(cloud: Cloud, serving: dict[str, str], tmp_path: Path) -> Root:
    cloud.objects.clear()
    cloud.refusals.clear()
    return Root(tmp_path, serving)


def by_name(cloud: Cloud, kind: str) -> dict[str, dict[str, Any]]:
    return {str(row["name"]): row for row in cloud.of(kind)}


@pytest.mark.slow  # a fifth of a minute of both processors
def test_every_machine_type_is_made_widened_replaced_and_destroyed(root: Root, cloud: Cloud) -> None:
    sold = [machine_type for machine_type in catalog.load().machines("azure") if not machine_type.retired]
    groups: dict[str, Any] = {
        f"g{number}": {"machine": machine.name, "count": 2} for number, machine in enumerate(sold)
    }
    root.write(groups)
    root.run("init", "-no-color", "-input=false")
    root.apply()
    machines = by_name(cloud, VM)
    assert set(machines) == {f"{name}-{i}" for name in groups for i in range(2)}
    sets = by_name(cloud, "azurerm_availability_set")
    for number, machine in enumerate(sold):
        node = machines[f"g{number}-1"]
        assert (node["size"], node["zone"], node["priority"]) == (machine.name, None, "Regular")
        availability_set = sets.get(f"gpuprov-g{number}")
        assert (node["availability_set_id"] or None) == (availability_set["id"] if availability_set else None)
        assert (availability_set is not None) == (machine.network.kind == "infiniband"), machine.name
    assert {(row["platform_fault_domain_count"], row["platform_update_domain_count"]) for row in sets.values()} == {
        (1, 1)
    }
    node = machines["g0-1"]
    assert node["tags"] == {
        "gpuprov-cluster": "test", "gpuprov-group": "g0", "gpuprov-id": IDENTITY, "gpuprov-node": "g0-1",
        "gpuprov-site": "here",
    }  # fmt: skip
    assert node["source_image_reference"] == [
        {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server", "version": "24.04.202511100"}
    ]
    assert (node["computer_name"], node["resource_group_name"], node["admin_username"]) == ("g0-1", GROUP, "azureuser")
    (disk,) = node["os_disk"]
    assert (disk["name"], disk["disk_size_gb"], disk["storage_account_type"]) == ("g0-1-os", 200, "Premium_LRS")
    assert node["boot_diagnostics"] != [] and node["disable_password_authentication"] is True
    rules = by_name(cloud, "azurerm_network_security_rule")
    opened_ports = {
        name: (rule["access"], rule["destination_port_range"], rule["source_address_prefixes"])
        for name, rule in rules.items()
    }
    assert opened_ports == {
        "ssh": ("Allow", "22", ["203.0.113.7/32"]), "nodes": ("Allow", "*", ["10.77.0.0/17"]),
        "closed": ("Deny", "*", None),
    }  # fmt: skip
    assert rules["closed"]["priority"] == max(rule["priority"] for rule in rules.values())
    (subnet,) = cloud.of("azurerm_subnet")
    assert (subnet["address_prefixes"], subnet["default_outbound_access_enabled"]) == (["10.77.0.0/17"], False)

    out = root.nodes()["g0-1"]
    assert re.fullmatch(r"[0-9a-f-]{36}", out["id"]) and out["public_ip"].startswith("203.0.113.")
    module = Azure(Place("test", "here", ClusterSpec.model_validate({
        "name": "test", "sites": {"here": {"provider": "azure", "region": "eastus"}},
        "groups": {"t": {"machine": sold[0].name}},
    }).sites["here"], root.workspace)).module  # fmt: skip
    assert module is not None
    described = module.described(
        {**node, "private_ip_address": out["private_ip"], "public_ip_address": out["public_ip"]}
    )
    same = {key: value for key, value in out.items() if key not in ("capacity", "mounts")}
    assert described == same, "a failed apply tells the same"

    assert root.actions() == {}, "a second plan is empty"
    groups["g0"]["count"] = 3
    root.write(groups)
    new = {"azurerm_public_ip.node", "azurerm_network_interface.node", "azurerm_linux_virtual_machine.node",
           "azurerm_network_interface_security_group_association.node"}  # fmt: skip
    assert root.actions() == {f'{kind}["g0-2"]': "create" for kind in new}
    groups["g0"]["count"] = 2
    root.write(groups)
    address = module.address("g0-1").removeprefix("module.site.")
    assert root.actions(f"-replace=module.site.{address}") == {address: "replace"}, "and its interface stays"
    root.write({**groups, "g0": {"machine": sold[1].name, "count": 2}}, disk_encryption_set=None)
    assert set(root.actions()) <= {"azurerm_availability_set.group"}, "nodes stay as they were made"
    root.write(groups)
    evicted = by_name(cloud, VM)["g0-0"]
    del cloud.objects[VM, evicted["id"]]
    assert root.actions() == {'azurerm_linux_virtual_machine.node["g0-0"]': "create"}, "evicted, or removed by hand"
    root.run("destroy", "-no-color", "-auto-approve", "-input=false")
    assert cloud.objects == {}


def test_what_a_site_may_say_arrives(root: Root, cloud: Cloud) -> None:
    groups = {
        "a": {
            "machine": "Standard_NC24ads_A100_v4",
            "count": 2,
            "capacity": {"kind": "spot", "fallback": ["on-demand"]},
        },
        "b": {"machine": "Standard_NC24ads_A100_v4", "capacity": {"kind": "reservation", "id": RESERVATION}},
        "c": {"machine": "Standard_NC24ads_A100_v4", "count": 2},
        "d": {"machine": "Standard_ND96asr_v4", "capacity": {"kind": "spot"}},
    }
    identity = (
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/hub/providers/Microsoft.ManagedIdentity/userAssignedIdentities/n"
    )
    encryption = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/hub/providers/Microsoft.Compute/diskEncryptionSets/k"
    choices = Choices(taken={"c": Way("on-demand", "2"), "a": Way("on-demand", "eastus")}, without={"c": ["c-1"]})
    choices.write(root.workspace)
    root.write(
        groups, zones=["1", "2"], resource_group="mine", subnet=SUBNET, internet="nat", identities=[identity],
        disk_encryption_set=encryption, encryption_at_host=True, tags={"cost-center": "ml"},
        spot_max_price=9.5,
    )  # fmt: skip
    root.run("init", "-no-color", "-input=false")
    root.apply()
    machines = by_name(cloud, VM)
    name = "gpuprov-01234567-"
    assert set(machines) == {f"{name}{node}" for node in ("a-0", "a-1", "b-0", "c-0", "d-0")}
    assert {key.removeprefix(name): (vm["zone"], vm["priority"]) for key, vm in machines.items()} == {
        "a-0": (None, "Regular"), "a-1": (None, "Regular"), "b-0": ("1", "Regular"), "c-0": ("2", "Regular"),
        "d-0": (None, "Spot"),
    }  # fmt: skip
    spot = machines[f"{name}d-0"]
    assert (spot["eviction_policy"], spot["max_bid_price"], spot["availability_set_id"]) == ("Delete", 9.5, None)
    assert machines[f"{name}b-0"]["capacity_reservation_group_id"] == RESERVATION
    assert {vm["resource_group_name"] for vm in machines.values()} == {"mine"}
    node = machines[f"{name}c-0"]
    assert node["identity"][0]["identity_ids"] == [identity] and node["encryption_at_host_enabled"] is True
    assert node["os_disk"][0]["disk_encryption_set_id"] == encryption and node["tags"]["cost-center"] == "ml"
    nics = cloud.of(NIC)
    assert {nic["ip_configuration"][0]["subnet_id"] for nic in nics} == {SUBNET}
    assert sorted(by_name(cloud, "azurerm_network_security_rule")["nodes"]["source_address_prefixes"]) == sorted(
        nic["private_ip_address"] for nic in nics
    ), "in a network of somebody else's the nodes alone"
    kinds = {kind for kind, _ in cloud.objects}
    assert not kinds & {
        "azurerm_resource_group",
        "azurerm_virtual_network",
        "azurerm_subnet",
        "azurerm_public_ip",
        "azurerm_nat_gateway",
    }
    assert {name: out["capacity"] for name, out in root.nodes().items()} == {
        "a-0": "on-demand", "a-1": "on-demand", "b-0": "reservation", "c-0": "on-demand", "d-0": "spot",
    }  # fmt: skip
    assert root.actions() == {}


def test_names_stay_when_the_file_gets_a_second_site(root: Root, cloud: Cloud) -> None:
    group = {"machine": "Standard_NC24ads_A100_v4", "placement": "cluster"}
    for site_keys in ({}, {"resource_group": "mine"}):
        cloud.objects.clear()
        root.write({"t": group}, **site_keys)
        root.run("init", "-no-color", "-input=false")
        root.apply()
        other = {"there": {"provider": "azure", "region": "westus3", "subscription": SUBSCRIPTION}}
        two = {"t": {**group, "site": "here"}, "u": {**group, "site": "there"}}
        root.write(two, other_sites=other, **site_keys)
        assert root.actions() == {}
        root.run("destroy", "-no-color", "-auto-approve", "-input=false")


def test_the_longest_names_are_cut_and_stay_apart(root: Root, cloud: Cloud) -> None:
    long, infiniband = "g" * 32, "i" * 32
    groups = {
        long: {"machine": "Standard_NC24ads_A100_v4", "placement": "cluster"},
        infiniband: {"machine": "Standard_ND96asr_v4"},
    }
    network_names = set()
    for end in "ab":
        cloud.objects.clear()
        root.write(groups, name="c" * 31 + end, resource_group="mine")
        main = root.workspace / "main.tf"
        text = main.read_text(encoding="utf-8")
        assert '"site" = "here"' in text
        main.write_text(text.replace('"site" = "here"', f'"site" = "{"s" * 32}"'), encoding="utf-8")
        root.run("init", "-no-color", "-input=false")
        root.apply()
        limits = {"azurerm_virtual_network": 64, "azurerm_linux_virtual_machine": 64, "azurerm_resource_group": 90}
        for kind in {kind for kind, _ in cloud.objects}:
            for name in (str(row["name"]) for row in cloud.of(kind) if "name" in row):
                assert len(name) <= limits.get(kind, 80), f"{kind} {name}"
        (network,) = by_name(cloud, "azurerm_virtual_network")
        network_names.add(network)
        root.run("destroy", "-no-color", "-auto-approve", "-input=false")
    assert len(network_names) == 2


def test_what_azure_refuses_is_refused_before(root: Root, cloud: Cloud) -> None:
    """By the module itself, for those who use it without gpuprov."""
    group = {"machine": "Standard_ND96asr_v4", "count": 2}
    root.write({"t": group}, internet="nat")
    root.run("init", "-no-color", "-input=false")
    assert set(root.actions()) >= {"azurerm_nat_gateway.own[0]", "azurerm_subnet_nat_gateway_association.nodes[0]"}
    main = (root.workspace / "main.tf").read_text(encoding="utf-8")
    wrong = {
        ('"kind" = "on-demand"', '"kind" = "spot"'): "would not connect",
        ('"count" = 2', '"count" = 201'): "at most 200 machines",
        (URN, "Canonical:ubuntu-24_04-lts:server:latest"): "`latest` moves",
        ("203.0.113.7/32", "0.0.0.0/0"): "never opened to every address",
        ("ssh-ed25519 ", "ecdsa-sha2-nistp256 "): "ssh-ed25519 and ssh-rsa",
        ('"location"', '"locatoin"'): "location",
    }  # fmt: skip
    for (old, new), message in wrong.items():
        assert old in main
        (root.workspace / "main.tf").write_text(main.replace(old, new), encoding="utf-8")
        text = root.run("plan", "-no-color", "-input=false", check=False)
        assert message in " ".join(text.split()), f"{new}: {text[-1500:]}"
    spelt = root.workspace / "module" / "main.tf"
    (root.workspace / "main.tf").write_text(main, encoding="utf-8")
    spelt.write_text(spelt.read_text(encoding="utf-8").replace("computer_name ", "computer_nam "), encoding="utf-8")
    assert 'Did you mean "computer_name"?' in " ".join(root.run("validate", "-no-color", check=False).split())


def test_a_machine_that_azure_could_not_finish_is_replaced(root: Root, cloud: Cloud) -> None:
    root.write({"t": {"machine": "Standard_NC24ads_A100_v4", "count": 2}})
    root.run("init", "-no-color", "-input=false")
    cloud.fail(VM, 'Status: "AllocationFailed"', match={"name": "t-1"}, times=1, half=True)
    assert "AllocationFailed" in root.apply(check=False)
    assert root.actions() == {'azurerm_linux_virtual_machine.node["t-1"]': "replace"}
    root.apply()
    assert root.actions() == {}
    assert "persist_id_on_create_before_polling_for_completion = true" in (root.workspace / "main.tf").read_text()


def test_the_version_is_the_modules() -> None:
    text = (data("terraform") / "azure" / "versions.tf").read_text(encoding="utf-8")
    assert f'version = "{azure_module.VERSION}"' in text


def test_a_file_share_is_for_the_nodes_alone_and_mounted_by_them(root: Root, cloud: Cloud) -> None:
    groups = {"g": {"machine": "Standard_NC24ads_A100_v4"}}
    root.write(groups, storage={"files": {"path": "/work", "size_gib": 2048, "replication": "ZRS"}})
    assert "data_plane_available = false" in (root.workspace / "main.tf").read_text(encoding="utf-8")
    root.run("init", "-no-color", "-input=false")
    root.apply()
    (account,), (share,) = cloud.of("azurerm_storage_account"), cloud.of("azurerm_storage_share")
    assert re.fullmatch("gpuprov[0-9a-f]{16}", account["name"]) and account["account_kind"] == "FileStorage"
    assert (account["shared_access_key_enabled"], account["allow_nested_items_to_be_public"]) == (False, False)
    (rules,), (subnet,) = account["network_rules"], cloud.of("azurerm_subnet")
    assert (rules["default_action"], rules["virtual_network_subnet_ids"]) == ("Deny", [subnet["id"]])
    assert subnet["service_endpoints"] == ["Microsoft.Storage"]
    assert (share["enabled_protocol"], share["quota"], share["storage_account_id"]) == ("NFS", 2048, account["id"])
    (mount,) = root.nodes()["g-0"]["mounts"]
    assert (mount["type"], mount["path"]) == ("nfs4", "/work")
    assert mount["source"] == f"{account['name']}.file.core.windows.net:/{account['name']}/files"
    assert "minorversion=1" in mount["options"] and root.actions() == {}
    root.write(groups)
    lost = {address for address, action in root.actions().items() if action == "delete"}
    assert {address.partition(".")[0] for address in lost} == set(AzureModule.data_resources)
