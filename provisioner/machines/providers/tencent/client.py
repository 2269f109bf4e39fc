"""Questions to Tencent Cloud: every one has a deadline, and an answer that did not come is told apart from a no.

The SDK signs and carries; calls go through its generic client, by the names that the API's documentation has.
https://github.com/TencentCloud/tencentcloud-sdk-python/tree/master/examples/common_client
"""

from __future__ import annotations

import os
import threading
import time
from importlib.util import find_spec
from typing import Any

from provisioner.common import extras
from provisioner.common.errors import GpuprovError
from provisioner.common.text import counted
from provisioner.machines.providers.tencent import credentials
from provisioner.machines.providers.tencent.credentials import Keys
from provisioner.machines.providers.trouble import Kind, Trouble

SERVICES = {
    "cam": "2019-01-16", "cbs": "2017-03-12", "cfs": "2019-07-19", "cvm": "2017-03-12", "sts": "2018-08-13",
    "tag": "2018-08-13", "vpc": "2017-03-12",
}  # fmt: skip
"""Service → version of its API."""
CHINA, INTERNATIONAL = "tencentcloudapi.com", "intl.tencentcloudapi.com"
"""Where the API of each of the two sites answers. https://www.tencentcloud.com/document/product/213/33224"""
ANSWER_S, ATTEMPTS, PAUSE_S = 15, 4, 1.0
"""One call: seconds until it has to be answered, how often it is tried, and the first pause, doubled each time."""
PAGE, MOST_PAGES = 100, 100
INSTALL = extras.install("tencent")

CREDENTIALS = ("AuthFailure", "UnauthorizedOperation.InvalidToken", "UnauthorizedOperation.MFA", "InvalidCredential")
DENIED = (
    "AuthFailure.UnauthorizedOperation",
    "UnauthorizedOperation",
    "OperationDenied",
    "AuthFailure.InvalidAuthorization",
)
THROTTLED = ("RequestLimitExceeded",)
NETWORK = ("ClientNetworkError", "ServerNetworkError")
"""The SDK's own: common/http/request.py, common/abstract_client.py."""
SLOW = ("InternalError", "InternalServerError", "ServiceUnavailable")


class Region:
    """One region, asked with the credentials that Terraform's provider takes too. `international`: the account is one
    of tencentcloud.com, not of cloud.tencent.com."""

    def __init__(self, name: str, *, international: bool = False) -> None:
        self.name = name
        self._domain = INTERNATIONAL if international else os.environ.get("TENCENTCLOUD_DOMAIN") or CHINA
        self.international = self._domain.startswith("intl.")
        self._keys: Keys | None = None
        self._clients: dict[str, Any] = {}
        self._making = threading.RLock()

    def in_region(self, name: str) -> Region:
        """Another region with the same credentials."""
        other = Region(name, international=self.international)
        other._keys = self._keys
        return other

    def keys(self) -> Keys:
        """Who asks, with the role taken. Raises Trouble."""
        with self._making:
            if self._keys is None:
                keys, role = credentials.load_keys()
                if role is not None:
                    self._keys = keys
                    try:
                        keys = self._taken(role)
                    finally:
                        self._keys = None
                        self._clients.clear()
                self._keys = keys
            return self._keys

    def _taken(self, role: credentials.Role) -> Keys:
        more = {"ExternalId": role.external_id} if role.external_id else {}
        role_credentials = self.ask("sts", "AssumeRole", RoleArn=role.arn, RoleSessionName=role.session, **more)[
            "Credentials"
        ]
        return Keys(role_credentials["TmpSecretId"], role_credentials["TmpSecretKey"], role_credentials["Token"])

    def ask(self, service: str, action: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one call. It is tried again where the account asks too often, the service fails or nothing
        answers. Raises Trouble, and GpuprovError without the SDK."""
        pause = PAUSE_S
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return self._once(service, action, arguments)
            except Trouble as error:
                if not attempts_left or not _is_retryable(action, error):
                    raise
            time.sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def all(self, service: str, action: str, key: str, *, number: type = int, **arguments: Any) -> list[dict[str, Any]]:
        """The items of every page of a call. `number`: the VPC's API wants offset and limit as text. Raises Trouble."""
        items: list[dict[str, Any]] = []
        for _ in range(MOST_PAGES):
            page = self.ask(service, action, Offset=number(len(items)), Limit=number(PAGE), **arguments)
            rows = page.get(key) or []
            items += rows
            if not rows or len(items) >= int(page.get("TotalCount") or 0):
                return items
        raise Trouble("refused", f"{service}:{action} has more than {counted(MOST_PAGES * PAGE, 'row')}")

    def _once(self, service: str, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        installed()
        from tencentcloud.common.exception.tencent_cloud_sdk_exception import TencentCloudSDKException

        client = self._client(service)
        try:
            answer = client.call_json(action, arguments)["Response"]
        except TencentCloudSDKException as error:
            code = str(error.code or "")
            raise Trouble(kind_of(code), _text(error.message) or code, code) from None
        except (OSError, ValueError, KeyError, TypeError) as error:  # a proxy's page, or half an answer
            raise Trouble("silent", f"what answered does not speak as Tencent Cloud does: {error}") from None
        if not isinstance(answer, dict):
            raise Trouble("silent", "what answered does not speak as Tencent Cloud does; look at the proxy")
        return answer

    def _client(self, service: str) -> Any:
        installed()
        from tencentcloud.common.common_client import CommonClient
        from tencentcloud.common.credential import Credential
        from tencentcloud.common.profile.client_profile import ClientProfile
        from tencentcloud.common.profile.http_profile import HttpProfile

        keys = self._keys or self.keys()
        with self._making:
            if service not in self._clients:
                protocol = os.environ.get("TENCENTCLOUD_PROTOCOL", "https").lower()
                http = HttpProfile(protocol=protocol, rootDomain=self._domain, reqTimeout=ANSWER_S)
                profile = ClientProfile(httpProfile=http, language="en-US")
                credential = Credential(keys.secret_id, keys.secret_key, keys.token or None)
                self._clients[service] = CommonClient(service, SERVICES[service], credential, self.name, profile)
            return self._clients[service]


def installed() -> None:
    """Raises GpuprovError where the SDK is not there."""
    if find_spec("tencentcloud") is None:
        raise GpuprovError("Tencent Cloud's SDK is not installed", hint=INSTALL)


def _text(message: object) -> str:
    """An error's message: of a proxy's page, which comes as bytes, its beginning."""
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message or "")
    return " ".join(text.split())[:500]


def kind_of(code: str) -> Kind:
    """What an error code of the API means for whoever asked: the families are of
    https://cloud.tencent.com/document/api/213/30435 (common error codes)."""
    if code.startswith(DENIED) and not code.startswith(CREDENTIALS[1:3]):
        return "denied"
    if code.startswith(CREDENTIALS):
        return "credentials"
    if code.startswith(THROTTLED):
        return "throttled"
    if code.startswith(NETWORK):
        return "silent"
    return "absent" if "NotFound" in code or code.endswith("NotExist") else "refused"


def _is_retryable(action: str, error: Trouble) -> bool:
    """Whether a call is made again: one that makes something only where it was refused for asking too often."""
    if error.kind == "throttled":
        return True
    looks = action.startswith(("AssumeRole", "Describe", "Get", "Inquiry", "List"))
    return looks and (error.kind == "silent" or error.code.startswith(SLOW))
