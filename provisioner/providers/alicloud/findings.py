"""What is said of a question that Alibaba Cloud did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.preflight import Finding
from provisioner.providers import trouble as shared
from provisioner.providers.alicloud.client import SIGN_IN
from provisioner.providers.trouble import Trouble


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return shared.unknown(subject, trouble, permission, cloud="Alibaba Cloud", settings="correct it")


def credentials(trouble: Trouble) -> Finding:
    """Nobody knows who is asking."""
    if trouble.kind == "credentials":
        expired = "expired" in (trouble.code + trouble.message).lower()
        said = "they have expired" if expired else trouble.message
        return Finding("blocks", "credentials", said, "sign in again (`aliyun configure`)" if expired else SIGN_IN)
    if trouble.kind in ("settings", "denied"):
        action = "correct it" if trouble.kind == "settings" else "these credentials may do nothing here"
        return Finding("blocks", "credentials", trouble.message, action)
    if trouble.kind == "silent":
        said = f"Alibaba Cloud was not reached: {trouble.message}"
        return Finding("blocks", "credentials", said, "look at network and proxy")
    return replace(unknown("credentials", trouble, "sts:GetCallerIdentity"), status="blocks")
