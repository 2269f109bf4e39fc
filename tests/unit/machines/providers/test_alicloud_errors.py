"""What Alibaba Cloud says, as people saw it: read as code, class, what follows and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.alicloud import errors
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, sandbox_texts, table

TEXTS = yaml.safe_load((Path(__file__).parent / "alicloud_errors.yaml").read_text(encoding="utf-8"))
NODE = 'module.site.alicloud_instance.node["train-0"]'


def read(text: str) -> CloudError:
    return errors.read(Diagnostic(text, "", NODE))


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']} {case['code'] or case['text'][:30]}")
def test_a_real_text_is_read(case: dict[str, Any]) -> None:
    error = read(case["text"])
    assert (error.kind, error.code, error.then) == (case["kind"], case["code"], case["then"])
    assert case.get("hint", "") in error.hint
    assert error.address == NODE
    assert "request id" not in error.text and "RequestId" not in error.text and "RespHeaders" not in error.text
    assert error.kind in ("unknown", "shortage", "unsupported") or error.hint


def test_every_text_has_a_source_and_every_class_a_text() -> None:
    assert all(case["source"] for case in TEXTS)
    assert {case["kind"] for case in TEXTS} >= {row.kind for row in table("alicloud")}


def test_every_row_has_a_source_and_a_class_that_is_known() -> None:
    for row in table("alicloud"):
        assert row.source and (row.codes or row.text)
        assert row.kind in AFTER or row.then in (None, "stop", "again")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("QuotaExceed.SomethingNew", "quota"), ("QuotaExceeded.SecurityGroup", "quota"),
        ("Throttling.Api", "throttled"),
        ("OperationDenied.NoStockOfThat", "shortage"), ("Forbidden.SubUser", "denied"),
        ("NoPermission.VpcId", "denied"),
        ("InvalidSecurityToken.MismatchWithAccessKey", "credentials"), ("InvalidImage.NotSupported", "image"),
        ("IncorrectStatus.NATGW", "conflict"), ("DependencyViolation.EIPS", "conflict"),
        ("InvalidVpcId.NotFound", "network"),
        ("InternalError.Anything", "transient"), ("InvalidInstanceType.PhasedOut", "unsupported"),
        ("InvalidAccountStatus.SnapshotServiceUnavailable", "terms"), ("BrandNew.Trouble", "unknown"),
    ],
)  # fmt: skip
def test_a_code_that_has_no_row_has_its_familys_class(code: str, kind: str) -> None:
    assert read(f"SDKError: StatusCode: 403 Code: {code} Message: code: 403, It is so. request id: 1").kind == kind


def test_of_nested_errors_the_inner_one_counts() -> None:
    outer = "SDK.ServerError ErrorCode: OperationFailed.Create RequestId: 1 Message: failed to create: "
    error = read(outer + "SDK.ServerError ErrorCode: OperationDenied.NoStock RequestId: 2 Message: sold out")
    assert (error.kind, error.code) == ("shortage", "OperationDenied.NoStock")


def test_of_several_errors_that_which_needs_most_counts() -> None:
    error = read(
        "2 errors occurred: * Status Code: 403 Code: Forbidden.RAM Message: not authorized "
        "* Status Code: 403 Code: OperationDenied.NoStock Message: sold out"
    )
    assert error.kind == "denied"


def test_what_a_sandbox_says_is_read_as_its_class() -> None:
    kinds = {"spot-quota": "quota"}
    for name, text in sandbox_texts("alicloud").items():
        error = read(text.format(machine="ecs.gn7", zone="cn-shanghai-b"))
        assert error.kind == kinds.get(name, name)
        assert "simulated" not in error.summary
