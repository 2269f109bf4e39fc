"""docs/azure.md is true: its role is what is called."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from provisioner.providers.azure import permissions
from provisioner.providers.azure.site import AzureFiles, AzureSite, AzureStorage
from tests.support.rehearsal import ROOT

TEXT = (ROOT / "docs" / "azure.md").read_text(encoding="utf-8")


def test_the_role_has_what_is_called_and_no_more() -> None:
    role = json.loads(re.findall(r"```json\n(.*?)```", TEXT, re.S)[0])
    assert role["Actions"] == sorted({name for names in permissions.actions().values() for name in names})
    assert role["NotActions"] == [] and not any("*" in name for name in role["Actions"])


def test_each_type_of_the_module_may_be_made_and_removed() -> None:
    """azurerm's resources → the actions of their type."""
    types = {
        "azurerm_availability_set": "Microsoft.Compute/availabilitySets",
        "azurerm_linux_virtual_machine": "Microsoft.Compute/virtualMachines",
        "azurerm_nat_gateway": "Microsoft.Network/natGateways",
        "azurerm_nat_gateway_public_ip_association": "Microsoft.Network/natGateways",
        "azurerm_network_interface": "Microsoft.Network/networkInterfaces",
        "azurerm_network_interface_security_group_association": "Microsoft.Network/networkInterfaces",
        "azurerm_network_security_group": "Microsoft.Network/networkSecurityGroups",
        "azurerm_network_security_rule": "Microsoft.Network/networkSecurityGroups/securityRules",
        "azurerm_proximity_placement_group": "Microsoft.Compute/proximityPlacementGroups",
        "azurerm_public_ip": "Microsoft.Network/publicIPAddresses",
        "azurerm_resource_group": "Microsoft.Resources/subscriptions/resourceGroups",
        "azurerm_storage_account": "Microsoft.Storage/storageAccounts",
        "azurerm_storage_share": "Microsoft.Storage/storageAccounts/fileServices/shares",
        "azurerm_subnet": "Microsoft.Network/virtualNetworks/subnets",
        "azurerm_subnet_nat_gateway_association": "Microsoft.Network/virtualNetworks/subnets",
        "azurerm_virtual_network": "Microsoft.Network/virtualNetworks",
    }
    module = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "terraform" / "azure").glob("*.tf"))
    assert set(re.findall(r'^resource "(\w+)"', module, re.M)) == set(types)
    files = AzureStorage(files=AzureFiles())
    public = permissions.wanted(AzureSite(provider="azure", region="eastus", storage=files))
    nat = permissions.wanted(AzureSite(provider="azure", region="eastus", internet="nat"))
    for name in types.values():
        for verb in ("read", "write", "delete"):
            assert f"{name}/{verb}" in {*public, *nat}, name
    mine = permissions.wanted(AzureSite(provider="azure", region="eastus", resource_group="mine", internet="none"))
    assert not [name for name in mine if re.search("resourceGroups/write|publicIP|Microsoft.Storage", name)]


def test_the_page_says_how_many_texts_there_are() -> None:
    texts = yaml.safe_load((Path(__file__).parent / "azure_errors.yaml").read_text(encoding="utf-8"))
    assert f"{len(texts)} error texts that people saw" in TEXT
