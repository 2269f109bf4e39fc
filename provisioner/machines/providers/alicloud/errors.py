"""Alibaba Cloud's errors as its Terraform provider and its SDKs write them: code and text → class and hint."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, Row, Then, row_of, table

_NAME = r"(?P<code>[A-Za-z][\w.]*\w)"
FORMS = (
    # SDK for Go: alibaba-cloud-sdk-go
    rf"ErrorCode: {_NAME}\b(?: Recommend: \S*)?(?: RequestId: ?[\w-]*)?(?: Message: (?P<text>.*?)(?= RespHeaders:|$))?",
    # Tea SDKs; the provider since 1.2xx: SDKError
    rf"(?<!Error)\bCode: {_NAME},? Message: (?:code: \d+, )?(?P<text>.*?)(?= request id: | Data: |, RequestId|$)",
    rf'Code:"{_NAME}", Message:"(?P<text>[^"]*)"',  # aliyungo
    rf"[eE]rrorCode=\"?{_NAME}\"?, [eE]rrorMessage=\"?(?P<text>[^\"]*)",
    rf"Status Code: \d+ Code: {_NAME} Message: (?P<text>.*)",
    rf'"Code" ?: ?"{_NAME}"(?:[^{{}}]*?"Message" ?: ?"(?P<text>[^"]*)")?',  # the answer itself, in either order
    rf'"Message" ?: ?"(?P<text>[^"]*)"[^{{}}]*"Code" ?: ?"{_NAME}"',
    rf"<Code>{_NAME}</Code>\s*<Message>(?P<text>.*?)</Message>",  # OSS
    rf"Error:{_NAME} (?P<text>.*?)(?= RequestID|$)",  # SDK for Python, first edition
    rf"Exception: {_NAME} : (?P<text>.*?)(?= ?\+ \[|$)",  # SDKs for Java and .NET
)
"""How an error is written. github.com/aliyun/alibaba-cloud-sdk-go sdk/errors/server_error.go,
github.com/alibabacloud-go/tea tea.SDKError, github.com/denverdino/aliyungo common/client.go,
github.com/aliyun/aliyun-openapi-python-sdk"""
_KNOWN = re.compile(r"\b([A-Z]\w+(?:\.[A-Z]\w+)+|(?:[A-Z][a-z]+){2,})\b")
"""A word that may be a code where none of the forms is."""
_NOISE = re.compile(
    r"\s*(?:Recommend: \S+|RequestId ?: ?[\w-]+|[Rr]equest id: ?[\w-]+|\[ RequestId : [\w-]+ \]|RequestID: ?[\w-]+|"
    r"RespHeaders: map\[.*?\](?=\s|$)|requestId: [\w-]+,?)"
)
_SEVERAL = re.compile(r"^\s*\d+ errors? occurred", re.I)
_WORST: tuple[Then, ...] = ("stop", "kind", "zone", "again")


def read(diagnostic: Diagnostic) -> CloudError:
    """A diagnostic as an error of Alibaba Cloud. Of nested errors the innermost that is known counts; of several in a
    list that which needs most: to stop, then another kind, then another zone."""
    flat = " ".join(re.sub("[│╷╵]", " ", diagnostic.text).split())
    candidates = [(code, text, row_of(table("alicloud"), [code], text or flat)) for code, text in parts(flat)]
    known = [candidate for candidate in candidates if candidate[2] is not None and candidate[2].codes] or [
        candidate for candidate in candidates if candidate[2] is not None
    ]
    if not known:
        code, text, row = candidates[-1] if candidates else ("", flat, row_of(table("alicloud"), [], flat))
    elif _SEVERAL.search(flat):
        code, text, row = min(known, key=lambda candidate: _WORST.index(_then(candidate[2])))
    else:
        code, text, row = known[-1]
    text = _NOISE.sub("", text or flat).strip() or flat
    return CloudError(
        row.kind if row else "unknown", code, text, diagnostic.address, row.hint if row else "", then=_then(row)
    )


def _then(row: Row | None) -> Then:
    return (row.then or AFTER.get(row.kind, "stop")) if row else "stop"


def parts(flat: str) -> list[tuple[str, str]]:
    """Every code in an error's text with its message, as they stand, each code once; words that a row names where no
    form has any."""
    codes_by_position: dict[int, tuple[str, str]] = {}
    for form in FORMS:
        for match in _each(form, flat):
            groups = match.groupdict()
            if groups["code"] not in ("SDK.ServerError", "SDK.ClientError", "SDKError"):
                codes_by_position.setdefault(
                    match.start("code"), (groups["code"], (groups.get("text") or "").strip(" ,;"))
                )
    if not codes_by_position:
        rows = [row for row in table("alicloud") if row.codes]
        for match in _KNOWN.finditer(flat):
            if any(row.fits(match[1], flat) and _exact(row, match[1]) for row in rows):
                codes_by_position[match.start()] = (match[1], flat)
    codes: dict[str, str] = {}
    for _, (code, text) in sorted(codes_by_position.items()):
        codes[code] = codes.get(code) or text
    return list(codes.items())


def _each(form: str, flat: str) -> Iterator[re.Match[str]]:
    """Every place where a form is, also within the message of another."""
    pattern, start = re.compile(form, re.S), 0
    while match := pattern.search(flat, start):
        yield match
        start = match.end("code")


def _exact(row: Row, name: str) -> bool:
    """Whether a row names the word itself, or its family by more than an ending: prose has words too."""
    return name in row.codes or "." in name
