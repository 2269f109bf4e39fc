"""Tencent Cloud's errors as Terraform's provider, its SDKs and COS write them: code and text → class and hint.

Codes are nested in codes: a service passes on what another has said, in its own message. The inner one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, Row, Then, row_of, table
from provisioner.plan.models import PlannedGroup

_CODE = r"[A-Z][A-Za-z]+(?:\.[A-Za-z][\w-]*)*"
FORMS = (
    rf"Code=(?P<code>{_CODE}), ?Message=(?P<text>.*)",  # tencentcloud-sdk-go, common/errors
    rf"\bcode: ?(?P<code>{_CODE}),? ?message: ?(?P<text>.*)",  # tencentcloud-sdk-python, and the provider before 1.9
    rf"message: ?(?P<code>{_CODE})-(?P<text>.*)",  # tencentcloud-sdk-java
    rf'"Code": ?"(?P<code>{_CODE})", ?"Message": ?"(?P<text>.*)',  # the answer itself
    rf"<Code>(?P<code>{_CODE})</Code>\s*<Message>(?P<text>.*)",  # COS, the answer itself
    rf"[: ]\d{{3}} (?P<code>{_CODE})\(Message: (?P<text>.*)",  # cos-go-sdk-v5, error.go
    rf"_ERROR\[(?P<code>{_CODE}):(?P<text>.*)",  # CVM_COMMON_ERROR[…] of InternalError.CvmCommon
)
_LOOSE = re.compile(r"\b[A-Z][A-Za-z]{3,}\.[A-Z][A-Za-z]+\b")
"""A code in the middle of a text; it counts where the table has it."""
_END = re.compile(r"""[,}]?\s*"?\b[Rr]equestId"?\s?[=:]|</Message>""")
"""What ends an error of Tencent Cloud. "[request id:…]" begins a message of CAM's."""
_NOISE = re.compile(r"""[,;]?\s*\[*"?request ?id"?[:=]? ?"?[\w*-]+"?\]?""", re.I)
VAGUE = {
    "FailedOperation", "InternalError", "InvalidParameter", "InvalidParameterValue", "OperationDenied",
    "ResourceUnavailable", "UnsupportedOperation",
}  # fmt: skip
"""Codes without a second part: what happened is in the message (common error codes)."""
_WORST: tuple[Then, ...] = ("stop", "kind", "zone", "again")
QUOTAS = "https://cloud.tencent.com/document/product/213/2664"
"""What there is a quota for, and how more is asked for: by ticket."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An error in a text: its code and message, where the code begins, and where the error ends."""

    code: str
    text: str
    start: int
    end: int


def read(
    diagnostic: Diagnostic, region: str, group: PlannedGroup | None = None, option: Way | None = None, *,
    international: bool = False,
) -> CloudError:  # fmt: skip
    """A diagnostic as an error of Tencent Cloud; of several in one, that which needs most: to stop, then another kind,
    then another zone. `group`, `option`: whose machine was asked for, and how."""
    flat = " ".join(diagnostic.text.split())
    candidates = [(part, _row(part.code, f"{diagnostic.address} {part.text}")) for part in _innermost(flat)]
    part, row = min(candidates, key=lambda candidate: _WORST.index(_then(candidate[1])))
    kind = row.kind if row else "unknown"
    text = _NOISE.sub("", flat if len(candidates) > 1 else part.text).strip(" ,;()[]{}\"'") or flat
    return CloudError(
        kind, part.code, text, diagnostic.address, _hint(row, region, group, option, international), then=_then(row)
    )


def _row(code: str, text: str) -> Row | None:
    """The table's row: of a code that says little by its text first."""
    rows = table("tencent")
    return (row_of(rows, (), text) if code in VAGUE else None) or row_of(rows, [code], text)


def _then(row: Row | None) -> Then:
    return (row.then or AFTER.get(row.kind, "stop")) if row else "stop"


def _innermost(flat: str) -> list[_Part]:
    """The errors in a text without those that only pass on another; one without a code where there is none."""
    nested = _parts(flat)
    innermost = [
        part for part in nested
        if not any(part.start < other.start < part.end and _within(flat, part, other) for other in nested)
    ]  # fmt: skip
    return innermost or [_Part("", flat, 0, len(flat))]


def _within(flat: str, outer: _Part, inner: _Part) -> bool:
    """Whether the second error is told by the first: nothing has ended the first before it."""
    return _END.search(flat, outer.start, inner.start) is None


def _parts(flat: str) -> list[_Part]:
    starts: dict[int, str] = {}
    for form in FORMS:
        pattern, at = re.compile(form), 0
        while match := pattern.search(flat, at):
            starts.setdefault(match.start("code"), match["code"])
            at = match.start("text")
    rows = [row for row in table("tencent") if row.codes]
    for match in _LOOSE.finditer(flat):
        if any(row.fits(match[0], flat) for row in rows):
            starts.setdefault(match.start(), match[0])
    results = []
    for start, code in sorted(starts.items()):
        stop = _END.search(flat, start)
        end = stop.start() if stop else len(flat)
        text = re.sub(r"^[\s:,=\"'(-]*([Mm]essage[\s:=\"]*)?", "", flat[start + len(code) : end])
        results.append(_Part(code, text.strip(), start, len(flat)))
    return results


def _hint(row: Row | None, region: str, group: PlannedGroup | None, option: Way | None, international: bool) -> str:
    if row is None:
        return ""
    if row.quota == "machines":
        machine_kind = f"{option.kind} machines" if option else "machines"
        which = f" ({group.machine.name})" if group else ""
        ticket = (
            "https://console.tencentcloud.com/workorder"
            if international
            else "https://console.cloud.tencent.com/workorder"
        )
        return f"ask for more {machine_kind}{which} in {region}, by ticket: {ticket}; {QUOTAS} says what counts"
    return row.hint
