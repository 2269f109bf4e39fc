"""What is said of a question that Tencent Cloud did not answer, and where a person looks."""

from __future__ import annotations

from dataclasses import replace

from provisioner.preflight import Finding
from provisioner.providers import trouble as trouble_of
from provisioner.providers.tencent.client import Region
from provisioner.providers.trouble import Trouble

SIGN_IN = "`tccli auth login`, or TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY, as for Terraform's provider"
SETTINGS = "correct it; `gpuprov docs tencent` says where credentials are looked for"
CLOCK = "AuthFailure.SignatureExpire"


def console(region: Region | None = None, *, international: bool = False) -> str:
    """The console of the account's site."""
    abroad = region.international if region else international
    return "https://console.tencentcloud.com" if abroad else "https://console.cloud.tencent.com"


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return trouble_of.unknown(subject, trouble, permission, cloud="Tencent Cloud", settings=SETTINGS)


def credentials(trouble: Trouble) -> Finding:
    """Nobody knows who is asking."""
    if trouble.code.startswith(CLOCK):
        return Finding("blocks", "credentials", trouble.message, "the clock of this machine is wrong (timedatectl)")
    if trouble.kind == "credentials":
        expired = "TokenFailure" in trouble.code or "expired" in trouble.message.lower()
        said = "they have expired" if expired else trouble.message
        return Finding("blocks", "credentials", said, f"sign in again: {SIGN_IN}" if expired else f"sign in: {SIGN_IN}")
    if trouble.kind == "settings":
        return Finding("blocks", "credentials", trouble.message, SETTINGS)
    if trouble.kind == "denied":
        return Finding("blocks", "credentials", trouble.message, "these credentials may do nothing here")
    if trouble.kind == "silent":
        return Finding(
            "blocks", "credentials", f"Tencent Cloud was not reached: {trouble.message}", "look at network and proxy"
        )
    return replace(unknown("credentials", trouble, "sts:GetCallerIdentity"), status="blocks")
