"""What AWS says, as people saw it: read as code, class, what follows and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.aws import errors, quotas
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, Row, error_lines, row_of, table
from tests.support.aws_answers import Answers, ec2_error, sts_error
from tests.support.plans import planned_group

TEXTS = yaml.safe_load((Path(__file__).parent / "aws_errors.yaml").read_text(encoding="utf-8"))
GROUP = planned_group("p4d.24xlarge")
NODE = 'module.site.aws_instance.node["train-0"]'


def read(text: str, kind: str = "on-demand", **keys: Any) -> CloudError:
    return errors.read(Diagnostic(text, "", NODE), "us-east-1", GROUP, Way(kind, "us-east-1a"), **keys)


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']} {case['code'] or case['text'][:30]}")
def test_a_real_text_is_read(case: dict[str, Any]) -> None:
    error = read(case["text"], "spot" if "Spot" in case["code"] else "on-demand")
    assert (error.kind, error.code, error.then) == (case["kind"], case["code"], case["then"])
    assert error.zones == tuple(case.get("zones", error.zones))
    assert case.get("hint", "") in error.hint
    assert error.address == NODE
    assert "request id" not in error.text and "Encoded" not in error.text
    assert error.kind in ("unknown", "shortage", "unsupported", "reservation-full") or error.hint


def test_every_text_has_a_source_and_every_class_a_text() -> None:
    assert all(case["source"] for case in TEXTS)
    assert {case["kind"] for case in TEXTS} >= {row.kind for row in table("aws")}


def test_every_row_has_a_source_and_a_class_that_is_known() -> None:
    for row in table("aws"):
        assert row.source
        assert row.codes or row.text
        assert row.kind in AFTER or row.then in (None, "stop")
        if row.quota not in ("", "machines"):
            assert quotas.quota(row.quota).code.startswith("L-")


def test_whose_fault_it_is_counts_before_the_code_alone() -> None:
    """Client.InternalError is a key that EC2 may not use, Server.InternalError AWS's own trouble."""
    end = "unexpected state 'terminated', wanted target 'running'. last error: {}.InternalError: error on launch"
    assert [read(end.format(side)).kind for side in ("Client", "Server")] == ["denied", "transient"]


def test_a_code_that_nobody_knows_stops_and_is_told_as_it_is() -> None:
    error = read("operation error EC2: RunInstances, api error BrandNew.Trouble: something new")
    assert (error.kind, error.code, error.then, error.summary) == (
        "unknown", "BrandNew.Trouble", "stop", "BrandNew.Trouble: something new",
    )  # fmt: skip


def test_what_signs_a_url_is_not_told() -> None:
    signed = 'request send failed, Post "https://s3.us-east-1.amazonaws.com/b/k?X-Amz-Security-Token=SECRET&a=b": EOF'
    error = read(f"operation error S3: HeadObject, {signed}")
    assert "SECRET" not in error.summary and '"https://s3.us-east-1.amazonaws.com/b/k": EOF' in error.text
    assert "?sku=x" in read("api error OptInRequired: visit https://aws.amazon.com/marketplace/pp?sku=x").text


def test_a_quota_of_a_machine_that_is_not_known_still_has_a_page() -> None:
    error = errors.read(Diagnostic("api error VcpuLimitExceeded: more", "", "x"), "eu-west-1")
    assert "https://eu-west-1.console.aws.amazon.com/servicequotas/home" in error.hint


def test_the_first_row_that_fits_counts() -> None:
    rows = [Row(("A",), "image", "s", text="image"), Row(("A", "B*"), "quota", "s"), Row((), "terms", "s", text="pay")]
    assert [row.kind if (row := row_of(rows, codes, text)) else None for codes, text in (
        (["A"], "no image"), (["A"], "else"), (["X.Bee", "Bee"], ""), (["C"], "you have to pay"), (["C"], ""),
    )] == ["image", "quota", "quota", "terms", None]  # fmt: skip


def test_what_was_said_of_many_is_told_once() -> None:
    same = [CloudError("quota", "Q", "no more", node=f"train-{n}") for n in range(8)]
    other = CloudError("conflict", "C", "there already", address="aws_eip.node")
    assert error_lines([*same, other]) == [
        "train-0, train-1, train-2 and 5 more: Q (quota): no more", "aws_eip.node: C (conflict): there already",
    ]  # fmt: skip


DECODED = json.dumps(
    {"allowed": False, "explicitDeny": True,
     "context": {"principal": {"arn": "arn:aws:iam::1:user/me"}, "action": "ec2:RunInstances", "resource": "arn:x"}}
)  # fmt: skip
REFUSED = "api error UnauthorizedOperation: You are not authorized. Encoded authorization failure message: abc_-1"


def test_an_encoded_refusal_is_decoded_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    body = (
        '<DecodeAuthorizationMessageResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        f"<DecodeAuthorizationMessageResult><DecodedMessage>{DECODED.replace(chr(34), '&quot;')}</DecodedMessage>"
        "</DecodeAuthorizationMessageResult></DecodeAuthorizationMessageResponse>"
    ).encode()
    aws = Answers({"sts.DecodeAuthorizationMessage": (200, body)})
    error = read(REFUSED, decode=errors.decoder(aws.region()))
    assert "ec2:RunInstances on arn:x: by an explicit deny, for arn:aws:iam::1:user/me" in error.text
    aws.rules["sts.DecodeAuthorizationMessage"] = (403, sts_error("AccessDenied", "no"))
    error = read(REFUSED, decode=errors.decoder(aws.region()))
    assert error.text == "You are not authorized."
    assert "aws sts decode-authorization-message" in error.hint
    aws.rules["sts.DecodeAuthorizationMessage"] = (500, ec2_error("x", "y"))
    assert read(REFUSED, decode=errors.decoder(aws.region())).kind == "denied"
