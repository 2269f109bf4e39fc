"""AWS's errors as Terraform's provider, its SDKs and botocore write them: code and text → class and hint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.quotas import of_machine, page, quota
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, Row, Then, row_of, table
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

FORMS = (
    r"api error (?P<code>\w(?:[\w.-]*\w)?)(?::|(?=[\s,;)]|$)) ?(?P<text>.*)",  # SDK for Go v2: the provider since 5.0
    r"An error occurred \((?P<code>[\w.-]+)\) when calling the \w+ operation(?: \([^)]*\))?: ?(?P<text>.*)",  # botocore
    r"(?:last error|[Rr]eason|StateReason):? (?P<code>(?:Server|Client)\.[\w.]+): ?(?P<text>.*)",  # ended after launch
    r"last error: (?P<code>[A-Z][A-Za-z]+(?:\.[\w.]+)?): ?(?P<text>.*)",  # a NAT gateway's failure code
    r"EC2 Error Code: (?P<code>\w+)\. EC2 Error Message: (?P<text>.*)",
    r"<Code>(?P<code>[\w.]+)</Code>\s*<Message>(?P<text>.*?)</Message>",  # the answer itself
)
"""How an error is written, the surest first.
github.com/aws/smithy-go errors.go, github.com/hashicorp/terraform-provider-aws internal/retry, botocore"""
_OLD = re.compile(r"(?:^|: )(?P<code>[A-Z]\w+(?:\.[A-Z]\w+)*): (?P<text>(?:(?!: [A-Z]\w+: ).)*?)\s*status code: \d+")
"""SDK for Go v1."""
_CODE = re.compile(r"\b((?:(?:Server|Client)\.)?[A-Z][A-Za-z0-9]+(?:\.[A-Z][A-Za-z0-9]+)*)\b[\"')]*(?=:| -|, )")
_NOISE = re.compile(r"\s*(?:status code: \d+, )?request id: [\w-]+(?:, host id: \S+)?|^\s*\[?RequestID: [\w-]+\]?,?\s*")
_ENCODED = re.compile(r"\s*Encoded authorization failure message: ?([\w+/=-]*)(?:\.\.\.)?")
_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")
Decode = Callable[[str], str]


def read(
    diagnostic: Diagnostic, region: str, group: PlannedGroup | None = None, option: Way | None = None,
    decode: Decode = lambda _: "",
) -> CloudError:  # fmt: skip
    """A diagnostic as an error of AWS; of several in one, that which needs most: to stop, then another kind, then
    another zone. `group`, `option`: whose machine was asked for, and how. `decode`: what an encoded refusal says, empty
    where nobody may know."""
    full_text = diagnostic.text
    candidates = [
        (code, text, row_of(table("aws"), _same(code), f"{diagnostic.address} {part}"))
        for code, text, part in parts(full_text)
    ]
    code, text, row = min(candidates, key=lambda candidate: _WORST.index(_then(candidate[2])))
    if len(candidates) > 1:
        text = full_text
    text, encoded = _ENCODED.sub("", text), _ENCODED.search(full_text)
    kind = row.kind if row else "unknown"
    text = _NOISE.sub("", text).strip() or full_text
    hint = _hint(row, code, region, group, option) if row else ""
    if encoded and kind == "denied":
        decoded = decode(encoded[1])
        text += f" ({decoded})" if decoded else ""
        hint += "" if decoded else "; `aws sts decode-authorization-message` says which, given the message of the log"
    return CloudError(kind, code, text, diagnostic.address, hint, zones=_offered_zones(text), then=_then(row))


_WORST: tuple[Then, ...] = ("stop", "kind", "zone", "again")


def _then(row: Row | None) -> Then:
    return (row.then or AFTER.get(row.kind, "stop")) if row else "stop"


def parts(error_text: str) -> list[tuple[str, str, str]]:
    """Every code in an error's text with its message and the part of the text that both are in, those that are written
    as codes surely are first; one without a code where there is none."""
    flat = " ".join(error_text.split())
    spans = {
        match.start("code"): (match["code"], *match.span("text"))
        for form in reversed(FORMS)
        for match in _each(form, flat)
    }
    sure, rows = set(spans), [row for row in table("aws") if row.codes]
    for match in _CODE.finditer(flat):
        if any(row.fits(name, flat) for name in _same(match[1]) for row in rows):
            spans.setdefault(match.start(), (match[1], match.end(), len(flat)))
    if not spans and (old := _OLD.search(flat)):
        return [(old["code"], old["text"], flat)]
    results, starts = [], sorted(spans)
    for start in sorted(spans, key=lambda position: (position not in sure, position)):
        code, begin, end = spans[start]
        following = next((position for position in starts if position > start), len(flat))
        text = flat[begin : min(end, following)].lstrip(":,\"') -").strip()
        results.append((code, text, flat[0 if start == starts[0] else start : following]))
    return results or [("", flat, flat)]


def _each(form: str, flat: str) -> Iterator[re.Match[str]]:
    """Every place where a form is, though its message is all that follows."""
    pattern, start = re.compile(form), 0
    while match := pattern.search(flat, start):
        yield match
        start = match.start("text")


def _same(code: str) -> list[str]:
    """A code as it is, and without whose fault it is."""
    plain = re.sub(r"^(Server|Client)\.", "", code)
    return [code] if plain == code else [code, plain]


def _offered_zones(message: str) -> tuple[str, ...]:
    """Zones that the message offers: those after "choosing"."""
    _, offered, zone_text = message.partition("choosing ")
    return tuple(dict.fromkeys(_ZONE.findall(zone_text))) if offered else ()


def _hint(row: Row, code: str, region: str, group: PlannedGroup | None, option: Way | None) -> str:
    if row.kind == "reservation-full" and group is not None and group.spec.capacity.id:
        message = f"{group.spec.capacity.id} has no room for {group.name}: more machines in it, or groups.*.capacity."
        return (
            f"{message}fallback; https://{region}.console.aws.amazon.com/ec2/home?region={region}#CapacityReservations:"
        )
    if not row.quota:
        return row.hint
    if row.quota == "machines":
        bought = option.kind if option else "spot" if "Spot" in code else "on-demand"
        counted = of_machine(group.machine.name, bought) if group else None
        if counted is None:
            return f"which quota it is, Service Quotas says: https://{region}.console.aws.amazon.com/servicequotas/home"
    else:
        counted = quota(row.quota)
    return f"ask for more of the quota {counted.name}: {page(region, counted)}"


def decoder(region: Region) -> Decode:
    """Asks AWS what an encoded refusal says, where these credentials may (sts:DecodeAuthorizationMessage)."""

    def decode(message: str) -> str:
        try:
            answer = region.ask("sts", "decode_authorization_message", EncodedMessage=message)
            decoded: dict[str, Any] = json.loads(unquote(answer["DecodedMessage"]))
        except (Trouble, ValueError, KeyError):
            return ""
        context = decoded.get("context", {})
        denied_action = " on ".join(str(context[key]) for key in ("action", "resource") if context.get(key))
        reason = "by an explicit deny" if decoded.get("explicitDeny") else "no policy allows it"
        principal = context.get("principal", {}).get("arn", "")
        return f"{denied_action}: {reason}" + (f", for {principal}" if principal else "") if denied_action else ""

    return decode
