"""What is said of a question that AWS did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.preflight import Finding
from provisioner.providers.aws.client import Trouble

CONSOLE = "https://{region}.console.aws.amazon.com"
SETTINGS = "correct AWS's settings on this machine; `aws configure list` shows what is in force"


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    if trouble.kind == "denied":
        return Finding("unknown", subject, f"not allowed to look: {trouble.message}", f"allow {permission}")
    if trouble.kind == "settings":
        return Finding("unknown", subject, trouble.message, SETTINGS)
    words = {"throttled": "AWS is asked too often just now", "silent": "no answer in time"}
    said = words.get(trouble.kind, trouble.code or "refused")
    return Finding("unknown", subject, f"{said}: {trouble.message}", "run it again")


def credentials(trouble: Trouble) -> Finding:
    """Nobody knows who is asking."""
    hint = "set AWS_PROFILE or sign in (`aws sso login`, `aws configure`); gpuprov takes the AWS CLI's own credentials"
    if trouble.kind == "credentials":
        expired = "expired" in (trouble.code + trouble.message).lower()
        said = "they have expired" if expired else trouble.message
        return Finding("blocks", "credentials", said, "sign in again (`aws sso login`)" if expired else hint)
    if trouble.kind == "settings":
        return Finding("blocks", "credentials", trouble.message, SETTINGS)
    if trouble.kind == "denied":
        return Finding("blocks", "credentials", trouble.message, "these credentials may do nothing here")
    if trouble.kind == "silent":
        return Finding("blocks", "credentials", f"AWS was not reached: {trouble.message}", "look at network and proxy")
    return replace(unknown("credentials", trouble, "sts:GetCallerIdentity"), status="blocks")
