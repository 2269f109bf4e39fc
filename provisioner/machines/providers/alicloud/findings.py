"""What is said of a question that Alibaba Cloud did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.common.preflight import Finding
from provisioner.machines.providers import trouble as shared
from provisioner.machines.providers.alicloud.client import SIGN_IN
from provisioner.machines.providers.trouble import Trouble


def unknown(subject: str, error: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return shared.unknown(subject, error, permission, cloud="Alibaba Cloud", settings="correct it")


def credentials(error: Trouble) -> Finding:
    """Nobody knows who is asking."""
    if error.kind == "credentials":
        expired = "expired" in (error.code + error.message).lower()
        message = "they have expired" if expired else error.message
        return Finding("blocks", "credentials", message, "sign in again (`aliyun configure`)" if expired else SIGN_IN)
    if error.kind in ("settings", "denied"):
        action = "correct it" if error.kind == "settings" else "these credentials may do nothing here"
        return Finding("blocks", "credentials", error.message, action)
    if error.kind == "silent":
        message = f"Alibaba Cloud was not reached: {error.message}"
        return Finding("blocks", "credentials", message, "look at network and proxy")
    return replace(unknown("credentials", error, "sts:GetCallerIdentity"), status="blocks")
