"""AWS's errors as Terraform's provider, its SDKs and botocore write them: code and text → class and hint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from provisioner.errors import Diagnostic
from provisioner.plan import PlannedGroup
from provisioner.providers.aws.client import Region, Trouble
from provisioner.providers.aws.quotas import of_machine, page, quota
from provisioner.providers.capacity import Way
from provisioner.providers.cloud_errors import AFTER, CloudError, Row, row_of, table

FORMS = (
    r"api error (?P<code>[\w.-]+): ?(?P<text>.*)",  # SDK for Go v2: the provider since 5.0
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
    found: Diagnostic, region: str, group: PlannedGroup | None = None, way: Way | None = None,
    decode: Decode = lambda _: "",
) -> CloudError:  # fmt: skip
    """A diagnostic as an error of AWS. `group`, `way`: whose machine was asked for, and how. `decode`: what an encoded
    refusal says, empty where nobody may know."""
    whole = found.text
    code, text = parts(whole)
    text, encoded = _ENCODED.sub("", text), _ENCODED.search(whole)
    context = f"{found.address} {whole}"
    row = row_of(table("aws"), _same(code), context)
    kind = row.kind if row else "unknown"
    text = _NOISE.sub("", text).strip() or whole
    hint = _hint(row, code, region, group, way) if row else ""
    if encoded and kind == "denied":
        decoded = decode(encoded[1])
        text += f" ({decoded})" if decoded else ""
        hint += "" if decoded else "; `aws sts decode-authorization-message` says which, given the message of the log"
    then = (row.then or AFTER.get(kind, "stop")) if row else "stop"
    return CloudError(kind, code, text, found.address, hint, zones=_named(text), then=then)


def parts(said: str) -> tuple[str, str]:
    """The code and the message of an error's text; no code where it has none."""
    flat = " ".join(said.split())
    for form in FORMS:
        if found := re.search(form, flat):
            return found["code"], found["text"]
    rows = [row for row in table("aws") if row.codes]
    for found in _CODE.finditer(flat):
        if any(row.fits(one, flat) for one in _same(found[1]) for row in rows):
            return found[1], flat[found.end() :].lstrip(":,\"') -").strip()
    if found := _OLD.search(flat):
        return found["code"], found["text"]
    return "", flat


def _same(code: str) -> list[str]:
    """A code as it is, and without whose fault it is."""
    plain = re.sub(r"^(Server|Client)\.", "", code)
    return [code] if plain == code else [code, plain]


def _named(message: str) -> tuple[str, ...]:
    """Zones that the message offers: those after "choosing"."""
    _, offered, rest = message.partition("choosing ")
    return tuple(dict.fromkeys(_ZONE.findall(rest))) if offered else ()


def _hint(row: Row, code: str, region: str, group: PlannedGroup | None, way: Way | None) -> str:
    if row.kind == "reservation-full" and group is not None and group.spec.capacity.id:
        said = f"{group.spec.capacity.id} has no room for {group.name}: more machines in it, or groups.*.capacity."
        return f"{said}fallback; https://{region}.console.aws.amazon.com/ec2/home?region={region}#CapacityReservations:"
    if not row.quota:
        return row.hint
    if row.quota == "machines":
        bought = way.kind if way else "spot" if "Spot" in code else "on-demand"
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
            said: dict[str, Any] = json.loads(unquote(answer["DecodedMessage"]))
        except (Trouble, ValueError, KeyError):
            return ""
        context = said.get("context", {})
        what = " on ".join(str(context[key]) for key in ("action", "resource") if context.get(key))
        why = "by an explicit deny" if said.get("explicitDeny") else "no policy allows it"
        who = context.get("principal", {}).get("arn", "")
        return f"{what}: {why}" + (f", for {who}" if who else "") if what else ""

    return decode
