"""What is said of a question that Azure did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.common.preflight import Finding
from provisioner.machines.providers import trouble as trouble_kinds
from provisioner.machines.providers.azure.client import Cloud
from provisioner.machines.providers.trouble import Trouble

SIGN_IN = "`az login`, or ARM_CLIENT_ID, ARM_TENANT_ID and ARM_CLIENT_SECRET; gpuprov asks as Terraform's azurerm does"


def unknown(subject: str, error: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    settings = "correct it; `gpuprov docs azure` has the variables"
    return trouble_kinds.unknown(subject, error, permission, cloud="Azure", settings=settings)


def credentials(error: Trouble, cloud: Cloud) -> Finding:
    """Nobody knows who is asking."""
    if error.kind == "credentials":
        text = error.code + error.message
        other = "" if cloud.cli == "AzureCloud" else f"`az cloud set --name {cloud.cli}`, then "
        if "expired" in text.lower() or "AADSTS700082" in text or "AADSTS70043" in text:
            return Finding("blocks", "credentials", f"they have expired: {error.message}", f"{other}`az login`")
        return Finding("blocks", "credentials", error.message, f"{other}{SIGN_IN}")
    if error.kind == "settings":
        return Finding("blocks", "credentials", error.message, "`gpuprov docs azure` has the variables")
    if error.kind in ("denied", "absent"):
        return Finding(
            "blocks", "credentials", error.message, "sites.*.subscription, or these credentials may do nothing here"
        )
    if error.kind == "silent":
        return Finding("blocks", "credentials", f"Azure was not reached: {error.message}", "look at network and proxy")
    return replace(unknown("credentials", error, "Microsoft.Resources/subscriptions/read"), status="blocks")
