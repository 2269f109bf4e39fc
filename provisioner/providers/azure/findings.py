"""What is said of a question that Azure did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.preflight import Finding
from provisioner.providers import trouble as trouble_kinds
from provisioner.providers.azure.client import Cloud
from provisioner.providers.trouble import Trouble

SIGN_IN = "`az login`, or ARM_CLIENT_ID, ARM_TENANT_ID and ARM_CLIENT_SECRET; gpuprov asks as Terraform's azurerm does"


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    settings = "correct it; `gpuprov docs azure` has the variables"
    return trouble_kinds.unknown(subject, trouble, permission, cloud="Azure", settings=settings)


def credentials(trouble: Trouble, cloud: Cloud) -> Finding:
    """Nobody knows who is asking."""
    if trouble.kind == "credentials":
        text = trouble.code + trouble.message
        other = "" if cloud.cli == "AzureCloud" else f"`az cloud set --name {cloud.cli}`, then "
        if "expired" in text.lower() or "AADSTS700082" in text or "AADSTS70043" in text:
            return Finding("blocks", "credentials", f"they have expired: {trouble.message}", f"{other}`az login`")
        return Finding("blocks", "credentials", trouble.message, f"{other}{SIGN_IN}")
    if trouble.kind == "settings":
        return Finding("blocks", "credentials", trouble.message, "`gpuprov docs azure` has the variables")
    if trouble.kind in ("denied", "absent"):
        return Finding(
            "blocks", "credentials", trouble.message, "sites.*.subscription, or these credentials may do nothing here"
        )
    if trouble.kind == "silent":
        return Finding(
            "blocks", "credentials", f"Azure was not reached: {trouble.message}", "look at network and proxy"
        )
    return replace(unknown("credentials", trouble, "Microsoft.Resources/subscriptions/read"), status="blocks")
