"""What Azure says, as people saw it: read as code, class, what follows and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.azure import errors
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, table
from tests.support.plans import planned_group

TEXTS = yaml.safe_load((Path(__file__).parent / "azure_errors.yaml").read_text(encoding="utf-8"))
GROUP = planned_group("Standard_ND96asr_v4")
SITE = AzureSite(provider="azure", region="eastus")
NODE = 'module.site.azurerm_linux_virtual_machine.node["train-0"]'


def read(text: str, kind: str = "on-demand") -> CloudError:
    return errors.read(Diagnostic(text, "", NODE), SITE, GROUP, Way(kind, "eastus"))


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']} {case['code'] or case['text'][:30]}")
def test_a_real_text_is_read(case: dict[str, Any]) -> None:
    error = read(case["text"])
    assert (error.kind, error.code, error.then) == (case["kind"], case["code"], case["then"])
    assert case.get("hint", "") in error.hint
    assert error.address == NODE
    assert "Correlation ID" not in error.text and "Trace ID" not in error.text
    assert error.text and (error.hint or error.kind == "reservation-full")


TRIED = (
    ("QuotaExceeded", "exceeding approved standardNDSFamily Cores quota"),
    ("ZonalAllocationFailed", "Allocation failed. We do not have sufficient capacity for the requested VM size."),
    ("AuthorizationFailed", "The client does not have authorization to perform action"),
    ("InternalServerError", "try later"),
)


@pytest.mark.parametrize(
    ("names", "code", "then"),
    [
        ("2 1", "AuthorizationFailed", "stop"), ("1 2", "AuthorizationFailed", "stop"),
        ("2 3", "AuthorizationFailed", "stop"), ("0 1", "QuotaExceeded", "kind"), ("1 0", "QuotaExceeded", "kind"),
        ("1 3", "ZonalAllocationFailed", "zone"), ("3 1 0 2", "AuthorizationFailed", "stop"),
    ],
)  # fmt: skip
def test_of_several_errors_the_worst_counts(names: str, code: str, then: str) -> None:
    details = [{"code": TRIED[int(n)][0], "message": TRIED[int(n)][1]} for n in names.split()]
    failed = "At least one resource deployment operation failed."
    error = read(json.dumps({"error": {"code": "DeploymentFailed", "message": failed, "details": details}}))
    assert (error.code, error.then) == (code, then)


def test_every_text_has_a_source_and_every_class_a_text() -> None:
    assert all(case["source"] for case in TEXTS)
    assert {case["kind"] for case in TEXTS} >= {row.kind for row in table("azure")}


def test_every_row_has_a_source_and_a_class_that_is_known() -> None:
    for row in table("azure"):
        assert row.source
        assert row.codes or row.text
        assert row.kind in AFTER or row.then in (None, "stop")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("StandardSkuPublicIpCountLimitReached", "quota"), ("NetworkSecurityGroupCountLimitReached", "quota"),
        ("VirtualNetworkQuotaExceeded", "quota"), ("SomethingThrottled", "throttled"), ("AADSTS99999", "credentials"),
        ("DiskImageNotFound", "image"), ("NicInUseByVm", "conflict"), ("SomethingInternalError", "transient"),
        ("NewAllocationFailed", "shortage"), ("MarketplaceBrandNew", "terms"),
        ("LocationNotSupportAvailabilityZones", "unsupported"), ("AuthorizationFailure", "denied"),
    ],
)  # fmt: skip
def test_a_family_of_codes_is_read_by_its_ending(code: str, kind: str) -> None:
    message = f"{code}: it did not work" if code.startswith("AADSTS") else f"with error: {code}: it did not work"
    assert read(f"unexpected status 409 (409 Conflict) {message}").kind == kind


def test_a_code_that_nobody_knows_stops_and_is_told_as_it_is() -> None:
    error = read(
        "performing CreateOrUpdate: unexpected status 409 (409 Conflict) with error: BrandNewTrouble: something"
    )
    assert (error.kind, error.code, error.then, error.summary) == (
        "unknown", "BrandNewTrouble", "stop", "BrandNewTrouble: something",
    )  # fmt: skip


@pytest.mark.parametrize("number", ["429", "401", "403"])
def test_a_number_within_an_id_is_no_status(number: str) -> None:
    error = read(f"creating Network Interface: polling 00000000-{number}-0000 of /resourceGroups/rg-{number}/x")
    assert (error.kind, error.then) == ("unknown", "stop")
    kinds = {"429": "throttled", "401": "credentials", "403": "denied"}
    for message in (f"unexpected status {number} with an odd body", f"StatusCode={number} -- x",
                    f"HTTP status {number}", f"RESPONSE {number}: no",
                    f"returned http error: {number} and no more"):  # fmt: skip
        assert read(message).kind == kinds[number], message


def test_what_signs_a_url_is_not_told() -> None:
    error = read(
        'Get "https://x.blob.core.windows.net/log?sv=2020&sr=b&sig=SECRET%3D&se=2026": connection reset by peer'
    )
    assert "SECRET" not in error.summary and error.kind == "transient"


def test_a_quotas_page_is_of_the_right_azure() -> None:
    site = AzureSite(provider="azure", region="chinaeast2", environment="china")
    error = errors.read(Diagnostic("with error: QuotaExceeded: exceeding approved quota", "", NODE), site)
    assert "https://portal.azure.cn/" in error.hint and "chinaeast2" in error.hint
