"""What is said of a question that AWS did not answer."""

from __future__ import annotations

from dataclasses import replace

from provisioner.preflight import Finding
from provisioner.providers import trouble as trouble_of
from provisioner.providers.trouble import Trouble

CONSOLE = "https://{region}.console.aws.amazon.com"
SETTINGS = "correct AWS's settings on this machine; `aws configure list` shows what is in force"


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    return trouble_of.unknown(subject, trouble, permission, cloud="AWS", settings=SETTINGS)


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
