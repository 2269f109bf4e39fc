"""Who asks Tencent Cloud: found where Terraform's provider finds it, so that both are the same person.

In this order: TENCENTCLOUD_SECRET_ID, _SECRET_KEY and _SECURITY_TOKEN; the profile of Tencent Cloud's command line
(~/.tccli, `tccli auth login` or `tccli configure`); the role of the machine that this runs on
(TENCENTCLOUD_CAM_ROLE_NAME).
TENCENTCLOUD_ASSUME_ROLE_ARN and _SESSION_NAME, or the profile's role-arn, are then taken with them.
github.com/tencentcloudstack/terraform-provider-tencentcloud, tencentcloud/provider.go, providerConfigure
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.fetch import ask

ROLE = "http://metadata.tencentyun.com/latest/meta-data/cam/security-credentials/"
"""https://cloud.tencent.com/document/product/213/4934"""
ROLE_S = 5.0
OTHER_WAYS = (
    "TENCENTCLOUD_ASSUME_ROLE_SAML_ASSERTION", "TENCENTCLOUD_ASSUME_ROLE_WEB_IDENTITY_TOKEN",
    "TENCENTCLOUD_MFA_CERTIFICATION_TOKEN_CODE",
)  # fmt: skip
"""Ways to sign in that Terraform's provider knows and gpuprov does not."""


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """A secret id with its key; `token` where they are good for a while only."""

    secret_id: str
    secret_key: str
    token: str = ""


@dataclass(frozen=True, slots=True)
class Role:
    """A role to be taken with the keys; `external_id` where the role asks for one."""

    arn: str
    session: str
    external_id: str = ""


def load_keys() -> tuple[Keys, Role | None]:
    """The keys, and the role that is to be taken with them. Raises Trouble."""
    for name in OTHER_WAYS:
        if os.environ.get(name):
            message = f"{name} is set, and gpuprov signs in with keys, a profile or a role alone"
            raise Trouble("settings", message)
    keys, profile = _environment(), _profile()
    if keys is None and profile.get("secretId") and profile.get("secretKey"):
        keys = Keys(profile["secretId"], profile["secretKey"], profile.get("token", ""))
    if role := os.environ.get("TENCENTCLOUD_CAM_ROLE_NAME"):
        keys = _machine(role)
    if keys is None:
        raise Trouble("credentials", "there are no credentials of Tencent Cloud on this machine")
    arn = os.environ.get("TENCENTCLOUD_ASSUME_ROLE_ARN")
    session = os.environ.get("TENCENTCLOUD_ASSUME_ROLE_SESSION_NAME")
    if arn and session:
        return keys, Role(arn, session, os.environ.get("TENCENTCLOUD_ASSUME_ROLE_EXTERNAL_ID", ""))
    if profile.get("role-arn") and profile.get("role-session-name"):
        return keys, Role(profile["role-arn"], profile["role-session-name"])
    return keys, None


def _environment() -> Keys | None:
    number, key = os.environ.get("TENCENTCLOUD_SECRET_ID", ""), os.environ.get("TENCENTCLOUD_SECRET_KEY", "")
    if bool(number) != bool(key):
        missing = "TENCENTCLOUD_SECRET_KEY" if number else "TENCENTCLOUD_SECRET_ID"
        raise Trouble("credentials", f"{missing} is not set, and the other half is")
    return Keys(number, key, os.environ.get("TENCENTCLOUD_SECURITY_TOKEN", "")) if number else None


def _profile() -> Mapping[str, str]:
    """What the command line's profile has; {} where there is none."""
    folder = Path(os.environ.get("TENCENTCLOUD_SHARED_CREDENTIALS_DIR") or "~/.tccli").expanduser()
    file = folder / f"{os.environ.get('TENCENTCLOUD_PROFILE') or 'default'}.credential"
    try:
        read: Any = json.loads(file.read_text(encoding="utf-8"))
        return {key: value.strip() for key, value in read.items() if isinstance(value, str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise Trouble("settings", f"{file} cannot be read: {type(error).__name__}") from None


def _machine(role: str) -> Keys:
    """The keys of the role of this machine."""
    try:
        role_credentials = stored.loads(ask(ROLE + quote(role), who="metadata", limit=65536, deadline_s=ROLE_S).body)
        return Keys(role_credentials["TmpSecretId"], role_credentials["TmpSecretKey"], role_credentials["Token"])
    except (GpuprovError, ValueError, KeyError, TypeError):
        role_credentials = (
            f"the machine's metadata gives no credentials for the role {role} (TENCENTCLOUD_CAM_ROLE_NAME)"
        )
        raise Trouble("credentials", role_credentials) from None
