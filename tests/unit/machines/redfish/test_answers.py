"""Error answers of real BMCs, each told in one sentence with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.machines.redfish import answers

ANSWERS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "answers.json").read_text())

MEANT = {
    "idrac9-503-session-limit-RAC0218.json": ("session-limit", "sessions"),
    "idrac9-503-session-limit-RAC0218-newer.json": ("session-limit", "sessions"),
    "idrac9-insert-internal-SYS446.json": ("media-unreachable", "failed inside"),
    "idrac9-insert-unreachable-RAC0904.json": ("media-unreachable", "can't fetch the image"),
    "idrac9-insert-write-protected-SYS458.json": ("parameter-refused", "WriteProtected"),
    "ilo4-patch-property-unknown.json": ("parameter-refused", "does not know Inserted"),
    "ilo5-401-no-valid-session.json": ("no-session", "session"),
    "ilo5-400-unable-to-modify-during-post.json": ("in-post", "BootSourceOverrideTarget"),
    "ilo-400-unsupported-operation.json": ("unsupported", "setting"),
    "ilo-200-success-in-error.json": ("success", "accepted"),
    "ami-428-precondition-header-missing.json": ("precondition", "If-Match"),
    "openbmc-400-mediatype-missing.json": ("parameter-missing", "MediaType"),
    "idrac8-401-html-no-body.txt": ("credentials", "user and password"),
    "ami-400-transfer-protocol-type-missing.json": ("parameter-missing", "TransferProtocolType"),
    "ami-400-transfer-protocol-type-missing-2.json": ("parameter-missing", "TransferProtocolType"),
    "ami-400-transfer-protocol-type-missing-3.json": ("parameter-missing", "TransferProtocolType"),
    "400-transfer-method-missing.json": ("parameter-missing", "TransferMethod"),
    "dgx-400-insert-wants-username-password.json": ("parameter-missing", "UserName and Password"),
    "401-no-valid-session.json": ("no-session", "session"),
    "400-extended-info-is-object.json": ("unsupported", "form"),
    "idrac9-pending-config-LC068.json": ("job", "pending changes"),
    "idrac9-job-running-RAC0679.json": ("job", "running"),
    "supermicro-like-403-xhtml.html": ("denied", "may not"),
}


def test_every_answer_has_its_meaning_here() -> None:
    assert {row["answer"] for row in ANSWERS} == set(MEANT)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: str(row["answer"]))
def test_an_answer_is_told_in_one_sentence(row: dict[str, Any]) -> None:
    kind, phrase = MEANT[row["answer"]]
    answer = answers.read(row["status"], row["body"].encode())
    assert (answer.kind, phrase in answer.say) == (kind, True), answer
    assert answer.failed == (kind != "success")
    assert bool(answer.do) == answer.failed
    assert "\n" not in answer.say + answer.do + answer.said and "{" not in answer.say


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: str(row["answer"]))
def test_the_registry_s_version_does_not_matter(row: dict[str, Any]) -> None:
    newer = row["body"].replace("IDRAC.2.", "IDRAC.9.").replace("Base.1.", "Base.7.").replace("iLO.2.", "iLO.5.")
    assert answers.read(row["status"], newer) == answers.read(row["status"], row["body"])


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: str(row["answer"]))
def test_an_answer_that_is_cut_is_told_by_its_status(row: dict[str, Any]) -> None:
    cut = answers.read(503, row["body"][: len(row["body"]) // 2])
    assert cut.kind == "busy" and cut.again


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (204, b"", "success"),
        (200, b"<html>", "success"),
        (418, b"", "refused"),
        (599, b"\xff\xfe", "internal"),
        (400, b'{"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.4.Success"}]}}', "refused"),
        (400, b'{"error": {"@Message.ExtendedInfo": [3, null, {"MessageId": 7, "MessageArgs": "x"}]}}', "refused"),
        (400, b"[" * 100_000, "refused"),
    ],
)
def test_odd_answers(status: int, body: bytes, kind: str) -> None:
    assert answers.read(status, body).kind == kind
