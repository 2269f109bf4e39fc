"""docs/cluster-yaml-PROVIDER.md: every key that a site of the provider can have, and none of another cloud's."""

from __future__ import annotations

import re

import pytest

from provisioner.spec import folders, schema
from scripts.doc_tables import PROVIDERS, keys, page_of

ROWS = {provider: set(re.findall(r"^\| `([^`]+)` \|", keys(provider), re.M)) for provider in PROVIDERS}


def test_every_provider_with_sites_has_a_page() -> None:
    sites = {key.name for key in folders.FOLDER.iterdir() if (key / "site.py").is_file()}
    assert set(PROVIDERS) == sites
    assert all(page_of(provider).is_file() for provider in PROVIDERS)


def test_together_they_have_every_key() -> None:
    assert set.union(*ROWS.values()) == set(schema.key_names())


@pytest.mark.parametrize(
    ("provider", "present", "absent"),
    [
        ("aws", "storage.efs.throughput", "ram_role"),
        ("alicloud", "ram_role", "storage.efs"),
        ("azure", "internet", "vpc"),
        ("tencent", "vpc.subnets", "vpc.vswitches"),
        ("baremetal", "hosts", "region"),
    ],
)
def test_a_page_has_its_own_keys_alone(provider: str, present: str, absent: str) -> None:
    assert f"sites.<name>.{present}" in ROWS[provider]
    assert f"sites.<name>.{absent}" not in ROWS[provider]
    assert {"name", "groups.<name>.machine", "state.backend"} <= ROWS[provider]
