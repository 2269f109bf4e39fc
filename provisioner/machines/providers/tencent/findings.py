"""What is said of a question that Tencent Cloud did not answer, and where a person looks."""

from __future__ import annotations

from dataclasses import replace

from provisioner.common.preflight import Finding
from provisioner.machines.providers import trouble as trouble_of
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.trouble import Trouble

SIGN_IN = "`tccli auth login`, or TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY, as for Terraform's provider"
SETTINGS = "correct it; `gpuprov docs tencent` says where credentials are looked for"
CLOCK = "AuthFailure.SignatureExpire"


def console(region: Region | None = None, *, international: bool = False) -> str:
    """The console of the account's site."""
    abroad = region.international if region else international
    return "https://console.tencentcloud.com" if abroad else "https://console.cloud.tencent.com"


def unknown(subject: str, error: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return trouble_of.unknown(subject, error, permission, cloud="Tencent Cloud", settings=SETTINGS)


def credentials(error: Trouble) -> Finding:
    """Nobody knows who is asking."""
    if error.code.startswith(CLOCK):
        return Finding("blocks", "credentials", error.message, "the clock of this machine is wrong (timedatectl)")
    if error.kind == "credentials":
        expired = "TokenFailure" in error.code or "expired" in error.message.lower()
        message = "they have expired" if expired else error.message
        return Finding(
            "blocks", "credentials", message, f"sign in again: {SIGN_IN}" if expired else f"sign in: {SIGN_IN}"
        )
    if error.kind == "settings":
        return Finding("blocks", "credentials", error.message, SETTINGS)
    if error.kind == "denied":
        return Finding("blocks", "credentials", error.message, "these credentials may do nothing here")
    if error.kind == "silent":
        return Finding(
            "blocks", "credentials", f"Tencent Cloud was not reached: {error.message}", "look at network and proxy"
        )
    return replace(unknown("credentials", error, "sts:GetCallerIdentity"), status="blocks")
