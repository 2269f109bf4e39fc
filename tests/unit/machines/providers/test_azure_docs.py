"""docs/guides/azure.md is true, and the preflight asks for the permissions that its role has."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import yaml

from provisioner.machines.providers import actions
from provisioner.machines.providers.azure import permissions
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.settings import AzureFiles, AzureStorage
from provisioner.machines.providers.azure.site import AzureSite
from tests.support.sandbox_cluster import ROOT

SCOPE = "/subscriptions/11111111-2222-3333-4444-555555555555"
TEXT = (ROOT / "docs/guides/azure.md").read_text(encoding="utf-8")


def test_the_preflight_asks_for_what_a_site_makes_and_removes() -> None:
    """The features of a site decide which resources count (actions.yaml)."""
    table = actions.load("azure")
    files = AzureStorage(files=AzureFiles())
    public = permissions.required(AzureSite(provider="azure", region="eastus", storage=files))
    nat = permissions.required(AzureSite(provider="azure", region="eastus", internet="nat"))
    unused_kinds = [kind for feature in ("reservation", "gallery", "identities") for kind in table.features[feature]]
    assert public | nat == table.of_resources(kind for kind in table.resources if kind not in unused_kinds)
    assert "Microsoft.Storage/storageAccounts/fileServices/shares/write" in public - nat
    own_group_permissions = permissions.required(
        AzureSite(provider="azure", region="eastus", resource_group="mine", internet="none")
    )
    assert not [
        name
        for name in own_group_permissions
        if re.search("resourceGroups/write|publicIP|Microsoft.Storage|assign", name)
    ]


def test_a_subnet_and_an_identity_of_yours_are_asked_for_where_they_are() -> None:
    hub = f"{SCOPE}/resourceGroups/hub/providers"
    people = f"{SCOPE}/resourceGroups/people/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
    site = AzureSite(
        provider="azure", region="eastus", resource_group="mine", identities=(f"{people}/me",),
        subnet=f"{hub}/Microsoft.Network/virtualNetworks/hub/subnets/gpu",
    )  # fmt: skip
    scopes = permissions.by_scope(cast(Subscription, SimpleNamespace(scope=SCOPE, site=site)))
    assert scopes[f"{SCOPE}/resourceGroups/hub"] == {"Microsoft.Network/virtualNetworks/subnets/join/action"}
    assert scopes[f"{SCOPE}/resourceGroups/people"] == {
        "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
    }
    assert not scopes[f"{SCOPE}/resourceGroups/mine"] & scopes[f"{SCOPE}/resourceGroups/hub"]


def test_the_page_says_how_many_texts_there_are() -> None:
    texts = yaml.safe_load((Path(__file__).parent / "azure_errors.yaml").read_text(encoding="utf-8"))
    assert f"{len(texts)} error texts that people saw" in TEXT
