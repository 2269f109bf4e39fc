"""What is said of a question that AWS did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.common.preflight import Finding
from provisioner.machines.providers import trouble as trouble_of
from provisioner.machines.providers.trouble import Trouble

CONSOLE = "https://{region}.console.aws.amazon.com"
SETTINGS = "correct AWS's settings on this machine; `aws configure list` shows what is in force"


def unknown(subject: str, error: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return trouble_of.unknown(subject, error, permission, cloud="AWS", settings=SETTINGS)


def credentials(error: Trouble) -> Finding:
    """Nobody knows who is asking."""
    hint = "set AWS_PROFILE or sign in (`aws sso login`, `aws configure`); gpuprov takes the AWS CLI's own credentials"
    if error.kind == "credentials":
        expired = "expired" in (error.code + error.message).lower()
        message = "they have expired" if expired else error.message
        return Finding("blocks", "credentials", message, "sign in again (`aws sso login`)" if expired else hint)
    if error.kind == "settings":
        return Finding("blocks", "credentials", error.message, SETTINGS)
    if error.kind == "denied":
        return Finding("blocks", "credentials", error.message, "these credentials may do nothing here")
    if error.kind == "silent":
        return Finding("blocks", "credentials", f"AWS was not reached: {error.message}", "look at network and proxy")
    return replace(unknown("credentials", error, "sts:GetCallerIdentity"), status="blocks")
