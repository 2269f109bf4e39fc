"""Azure's errors as Terraform's provider, its SDKs and its command line write them: code and text → class and hint.

Azure wraps errors: a deployment's has the resource's inside, that the cause. Of those that are known the worst counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.common.errors import Diagnostic
from provisioner.machines.providers.azure.client import CLOUDS
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, Row, Then, row_of, table
from provisioner.plan.models import PlannedGroup

_NAME = r"[A-Z]\w*(?:\.\w+)*"
FORMS = (
    rf"with error: (?P<code>{_NAME}): (?P<text>.*)",  # azurerm since 3.50: go-azure-sdk
    rf"unexpected status \d+ (?:\([^()]*\) )?with (?P<code>{_NAME}): (?P<text>.*)",  # go-azure-sdk, of storage
    rf"(?i:azure_error_code):(?P<code>{_NAME}),\s*(?i:azure_error_message):(?P<text>.*)",
    rf'Status: "(?P<code>{_NAME})"\s+Code: ""\s+Message: "(?P<text>[^"]*)',  # go-azure-sdk, of a long operation
    rf'Code: "(?P<code>{_NAME})"\s+Message: "(?P<text>[^"]*)',
    rf'\bCode="(?P<code>{_NAME})"\s+Message="(?P<text>.*)',  # autorest
    rf'"code"\s*:\s*"(?P<code>{_NAME})"(?:\s*,\s*"target"\s*:\s*"[^"]*")?\s*,\s*"message"\s*:\s*"(?P<text>.*)',  # JSON
    rf"\((?P<code>(?!Minimum\b){_NAME})\) (?P<text>.*)",  # azure-core for Python, the CLI
    rf"\bERROR CODE: (?P<code>{_NAME})(?P<text>.*)",  # azcore for Go
    rf"\b(?:[Ee]rror)?[Cc]ode: (?P<code>{_NAME})(?P<text>.*)",
    r"\b(?P<code>AADSTS\d+): (?P<text>.*)",  # Entra ID
)
"""How an error is written. github.com/hashicorp/go-azure-sdk sdk/client/client.go and resourcemanager/errors.go,
github.com/Azure/go-autorest, github.com/Azure/azure-sdk-for-python sdk/core/azure-core/azure/core/exceptions.py"""
WRAPPERS = {
    "InvalidTemplateDeployment", "DeploymentFailed", "ResourceDeploymentFailure", "DeploymentFailedCleanUp",
    "VMExtensionProvisioningError", "BadRequest", "Conflict", "OperationNotAllowed", "RetryableError",
    "Failed", "Unspecified", "Unknown",
}  # fmt: skip
"""Codes that say only that there is another one inside."""
_WORST: tuple[Then, ...] = ("stop", "kind", "zone", "again")
_KNOWN = re.compile(rf"\b({_NAME})\b[\"')]*\s?(?=:| -|, |\.\s|$)")
_QUOTA = re.compile(
    r"approved (?P<name>[\w .-]+?) (?:Cores )?quota\b.*?Current Limit: (?P<limit>\d+).*?"
    r"(?:\(Minimum\) )?New Limit Required: (?P<needed>\d+)", re.S,
)  # fmt: skip
_NOISE = re.compile(
    r"\s*(?:Correlation ID|Activity I[dD]|Trace ID|Timestamp|RequestID|Request ID)[:=]?\s*\"?[\w:. -]*\"?"
)
_COMPUTE = re.compile(r"\bCompute\.(?=[A-Z])")
"""What classic deployments and their descendants put before a code."""
_SECRET = re.compile(r"([?&](?:sig|se|sp|sv|sr|skoid|sktid)=)[^&\s\"']+")


def read(
    diagnostic: Diagnostic, site: AzureSite, group: PlannedGroup | None = None, option: Way | None = None
) -> CloudError:
    """A diagnostic as an error of Azure; of several in one, that which needs most: to stop, then another kind, then
    another zone; of equals the innermost that the table knows. `group`, `option`: whose
    machine was asked for, and how."""
    full_text = _COMPUTE.sub(
        "",
        _SECRET.sub(
            r"\1…", " ".join(diagnostic.text.replace('\\"', '"').replace("\\r", " ").replace("\\n", " ").split())
        ),
    )
    rows = table("azure")
    candidates = [(code, text, row_of(rows, [code], f"{diagnostic.address} {text}")) for code, text in parts(full_text)]
    known_errors = [
        candidate
        for candidate in candidates
        if candidate[2] is not None and (candidate[0] not in WRAPPERS or candidate[2].text)
    ]
    # Backwards: of those that need the same the innermost counts.
    last = reversed(
        known_errors or [candidate for candidate in candidates if candidate[0] not in WRAPPERS] or candidates
    )
    code, text, row = min(last, key=lambda candidate: _WORST.index(_then(candidate[2])))
    if row is None or not known_errors:
        row = row_of(rows, [], f"{diagnostic.address} {full_text}") or row
    text = _NOISE.sub("", text).strip(" \"'{}[],;") or full_text
    kind = row.kind if row else "unknown"
    return CloudError(kind, code, text, diagnostic.address, _hint(row, full_text, site, group, option), then=_then(row))


def _then(row: Row | None) -> Then:
    return (row.then or AFTER.get(row.kind, "stop")) if row else "stop"


def parts(flat: str) -> list[tuple[str, str]]:
    """Every code in an error's text with its message, as they stand; one without a code where there is none."""
    spans: dict[int, tuple[str, int, int]] = {}
    for form in reversed(FORMS):
        for match in _each(form, flat):
            spans[match.start("code")] = (match["code"], *match.span("text"))
    rows = [row for row in table("azure") if row.codes]
    for match in _KNOWN.finditer(flat):
        if match.start(1) not in spans and any(row.fits(match[1], flat) for row in rows):
            spans[match.start(1)] = (match[1], match.end(), len(flat))
    starts = sorted(spans)
    results = []
    for start in starts:
        code, begin, end = spans[start]
        following = next((position for position in starts if position > start), len(flat))
        # What stands before the next code of another name is this one's; a repetition adds nothing.
        results.append((code, flat[begin : min(end, max(following, begin))].lstrip(":,\"') -").strip()))
    return results or [("", flat)]


def _each(form: str, flat: str) -> Iterator[re.Match[str]]:
    """Every place where a form is, though its message is all that follows."""
    pattern, start = re.compile(form), 0
    while match := pattern.search(flat, start):
        yield match
        start = max(match.start("text"), match.end("code"))


def _hint(row: Row | None, text: str, site: AzureSite, group: PlannedGroup | None, option: Way | None) -> str:
    if row is None:
        return ""
    if row.kind == "reservation-full" and group is not None and group.spec.capacity.id:
        name = group.spec.capacity.id.rpartition("/")[2]
        return f"{name} has no room for {group.name}: a larger reservation, or groups.*.capacity.fallback"
    if remaining := re.findall(r"\* `[^`]*?/([^/`]+/[^/`]+)`", text):
        return f"left in it: {', '.join(remaining)}. {row.hint}"
    if row.kind == "quota":
        return _quota(row, text, site, group, option)
    return row.hint


def _quota(row: Row, text: str, site: AzureSite, group: PlannedGroup | None, option: Way | None) -> str:
    page = f"{CLOUDS[site.environment].portal}/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"
    if match := _QUOTA.search(text):
        name = " ".join(match["name"].split())
        ask = f"ask for {match['needed']} of the quota {name} in {site.region} (it is {match['limit']})"
        return f"{ask}: {page}"
    if row.quota == "machines" and group is not None:
        bought = "of spot vCPUs" if option and option.kind == "spot" else f"of {group.machine.name}'s family"
        return f"ask for more of the quota {bought} in {site.region}: {page}"
    return f"{row.hint}: {page}" if row.hint else f"ask for more of that quota in {site.region}: {page}"
