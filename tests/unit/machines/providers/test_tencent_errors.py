"""What Tencent Cloud says, as people saw it: read as code, class, what follows and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, row_of, table
from provisioner.machines.providers.tencent import errors
from tests.support.plans import planned_group

TEXTS = yaml.safe_load((Path(__file__).parent / "tencent_errors.yaml").read_text(encoding="utf-8"))
GROUP = planned_group("GN10Xp.20XLARGE320")
NODE = 'module.site.tencentcloud_instance.node["train-0"]'
SDK = "[TencentCloudSDKError] Code={}, Message={}, RequestId=00000000-1111"


def read(text: str, kind: str = "on-demand", **keys: Any) -> CloudError:
    return errors.read(Diagnostic(text, "", NODE), "ap-guangzhou", GROUP, Way(kind, "ap-guangzhou-3"), **keys)


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']} {case['code'] or case['text'][:30]}")
def test_a_real_text_is_read(case: dict[str, Any]) -> None:
    error = read(case["text"])
    assert (error.kind, error.code, error.then) == (case["kind"], case["code"], case["then"])
    assert case.get("hint", "") in error.hint
    assert case.get("says", "") in error.text
    assert error.address == NODE
    assert "RequestId" not in error.text and "request id" not in error.text
    assert error.kind == "unknown" or error.hint


def test_every_text_has_a_source_and_every_class_a_text() -> None:
    assert all(case["source"] for case in TEXTS)
    assert {case["kind"] for case in TEXTS} >= {row.kind for row in table("tencent")}


def test_every_row_has_a_source_and_a_class_that_is_known() -> None:
    for row in table("tencent"):
        assert row.source
        assert row.codes or row.text
        assert row.kind in AFTER or row.then in (None, "stop", "again")
        assert row.hint or row.quota == "machines"


def test_of_codes_in_codes_the_inner_one_counts_and_of_several_the_one_that_needs_most() -> None:
    inner = SDK.format("LimitExceeded.InstanceQuota", "no more")
    outer = f"[TencentCloudSDKError] Code=InternalError, Message=CVM said ({inner}), RequestId=2"
    assert read(outer).code == "LimitExceeded.InstanceQuota"
    unknown = SDK.format("Brand.New", "nobody knows")
    assert read(f"[TencentCloudSDKError] Code=InternalError, Message=({unknown}), RequestId=2").kind == "unknown"
    shortage = SDK.format("ResourcesSoldOut.SpecifiedInstanceType", "sold out")
    denied = SDK.format("UnauthorizedOperation", "you may not")
    for text in (f"{shortage}\n{denied}", f"{denied}\n{shortage}"):
        error = read(text)
        assert (error.code, error.then) == ("UnauthorizedOperation", "stop")
        assert "sold out" in error.text and "you may not" in error.text


def test_a_text_without_a_code_is_told_as_it_is() -> None:
    error = read("something that nobody has seen")
    assert (error.kind, error.code, error.text, error.then) == ("unknown", "", "something that nobody has seen", "stop")


def test_the_tables_codes_are_of_the_sdk_or_of_families(request: pytest.FixtureRequest) -> None:
    """A code without a pattern is one that the SDK knows; of the SDK's codes of RunInstances most have a class."""
    known = set(_codes("cvm")) | set(_codes("vpc"))
    table_codes = {code for row in table("tencent") for code in row.codes if "*" not in code and "." in code}
    ours = {
        "AuthFailure.InvalidAuthorization", "AuthFailure.MFAFailure", "AuthFailure.TokenFailure",
        "AuthFailure.UnauthorizedOperation", "ClientError.NetworkError", "ClientError.HttpStatusCodeError",
        "OperationDenied.Retry",
    }  # fmt: skip
    assert table_codes - known - ours == set()
    rows = table("tencent")
    instances = [
        code for code in _codes("cvm") if not code.startswith(("InvalidParameter", "MissingParameter", "Invalid"))
    ]
    without = [code for code in instances if row_of(rows, [code], "") is None]
    assert len(without) / len(instances) < 0.15, without


def _codes(service: str) -> list[str]:
    module = pytest.importorskip(f"tencentcloud.{service}.v20170312.errorcodes")
    return [value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)]
