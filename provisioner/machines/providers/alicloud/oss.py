"""Calls to OSS by its own SDK: every one has a deadline and bounded retries, and its errors are Trouble."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from provisioner.machines.providers.alicloud import client
from provisioner.machines.providers.alicloud.client import (
    ATTEMPTS,
    CONNECT_MS,
    ENDPOINT,
    READ_MS,
    Region,
    credential,
    installed,
    kind_of,
)
from provisioner.machines.providers.trouble import Trouble

T = TypeVar("T")


class Oss:
    """OSS in one region."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._client: Any = None

    def account(self) -> str:
        """The number of the account. Raises Trouble."""
        return str(Region(self.region).ask("sts", "GetCallerIdentity")["AccountId"])

    def ask(self, call: str, request: str, **arguments: Any) -> Any:
        """The answer to one call, put_object and PutObjectRequest for example. Raises Trouble, GpuprovError without
        the SDK."""
        oss_client = self._open_client()
        import alibabacloud_oss_v2 as sdk

        return answered(lambda: getattr(oss_client, call)(getattr(sdk, request)(**arguments)))

    def _open_client(self) -> Any:
        if self._client is None:
            installed()
            import alibabacloud_oss_v2 as sdk
            from alibabacloud_oss_v2.credentials import CredentialsProviderFunc

            chain = credential()

            def signed() -> Any:
                keys = client.answered(chain.get_credential)
                return sdk.credentials.Credentials(
                    keys.access_key_id, keys.access_key_secret, keys.security_token or None
                )

            stand_in = f"http://{client.loopback(url)}" if (url := os.environ.get(ENDPOINT)) else ""
            config = sdk.config.Config(
                region=self.region, credentials_provider=CredentialsProviderFunc(signed), retry_max_attempts=ATTEMPTS,
                connect_timeout=CONNECT_MS / 1000, readwrite_timeout=READ_MS / 1000,
                **({"endpoint": stand_in, "use_path_style": True, "disable_ssl": True} if stand_in else {}),
            )  # fmt: skip
            self._client = sdk.Client(config)
        return self._client


def answered(call: Callable[[], T]) -> T:
    """The call's value; every exception of OSS's SDK as Trouble."""
    from alibabacloud_oss_v2 import exceptions
    from requests.exceptions import RequestException

    try:
        return call()
    except exceptions.OperationError as error:
        cause = error.unwrap()
        if isinstance(cause, exceptions.ServiceError):
            code, status = str(cause.code or ""), str(cause.status_code or "")
            raise Trouble(kind_of(code, str(cause.message), status), str(cause.message), code or status) from None
        if isinstance(cause, Trouble):
            raise cause from None
        if isinstance(cause, exceptions.CredentialsBaseError):
            raise Trouble("credentials", str(cause)) from None
        raise Trouble("silent", str(cause)) from None
    except exceptions.BaseError as error:
        raise Trouble("silent", str(error)) from None
    except (OSError, RequestException) as error:
        raise Trouble("silent", str(error)) from None
