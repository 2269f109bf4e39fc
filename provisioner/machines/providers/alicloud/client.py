"""Questions to Alibaba Cloud: every one has a deadline, and an answer that did not come is told apart from a no.

The SDK's own clients sign and know each service's endpoint; calls go through their generic call (`call_api`), by the
names that the API's documentation has. https://www.alibabacloud.com/help/en/sdk/developer-reference/generalized-call-python
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from provisioner.common import extras
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.cloud_errors import row_of, table
from provisioner.machines.providers.trouble import Kind, Trouble

CONNECT_MS, READ_MS, ATTEMPTS, PAUSE_S = 5_000, 15_000, 4, 1.0
"""One call: milliseconds to connect and to answer, how often it is tried, and the first pause, doubled each time."""
PAGE = 50
"""Rows of a page, the most that every call takes (DescribeVpcs, DescribeKeyPairs)."""
MOST_PAGES = 100
SERVICES: Mapping[str, tuple[str, str]] = {
    "ecs": ("2014-05-26", "alibabacloud_ecs20140526"), "vpc": ("2016-04-28", "alibabacloud_vpc20160428"),
    "sts": ("2015-04-01", "alibabacloud_sts20150401"), "quotas": ("2020-05-10", "alibabacloud_quotas20200510"),
    "nas": ("2017-06-26", "nas.{region}.aliyuncs.com"), "ram": ("2015-05-01", "ram.aliyuncs.com"),
}  # fmt: skip
"""Service → version of its API, and the SDK that knows its endpoint, or the endpoint itself.
https://api.alibabacloud.com/product/NAS, …/product/Ram"""
ENDPOINT = "GPUPROV_ALICLOUD_ENDPOINT"
"""Where tests have a stand-in for every service: http://127.0.0.1:PORT, and nowhere else."""
TERRAFORM = ("ALICLOUD_ACCESS_KEY", "ALICLOUD_SECRET_KEY", "ALICLOUD_SECURITY_TOKEN")
"""https://registry.terraform.io/providers/aliyun/alicloud/latest/docs#environment-variables"""
SIGN_IN = (
    "set ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET, or run `aliyun configure`; "
    "ALIBABA_CLOUD_PROFILE names another profile"
)
INSTALL = extras.install("alicloud")


def installed() -> None:
    """Raises GpuprovError where the SDK is not there."""
    try:
        import_module("alibabacloud_tea_openapi.client")
        import_module("alibabacloud_credentials.client")
    except ImportError:
        raise GpuprovError("Alibaba Cloud's SDK is not installed", hint=INSTALL) from None


class Region:
    """One region, asked with the user's own credential chain (environment, OIDC, ~/.aliyun/config.json, RAM role)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._clients: dict[str, Any] = {}
        self._credential: Any = None

    def in_region(self, name: str) -> Region:
        """Another region with the same credentials."""
        other = Region(name)
        other._credential = self._credential
        return other

    def ask(self, service: str, action: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one call; lists and objects among the arguments become `Tag.1.Key` and the like. Asked again
        where the service was throttled, failed, or did not answer. Raises Trouble, GpuprovError without the SDK."""
        pause = PAUSE_S
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return self._once(service, action, arguments)
            except Trouble as error:
                if not attempts_left or error.kind not in ("throttled", "silent"):
                    raise
            time.sleep(pause)
            pause *= 2
        raise AssertionError("an attempt answers or raises")

    def all(self, service: str, action: str, *path: str, **arguments: Any) -> list[dict[str, Any]]:
        """The rows of every page of a call; `path`: where they lie in an answer. Raises Trouble."""
        rows: list[dict[str, Any]] = []
        for answer in self._pages(service, action, arguments):
            items: Any = answer
            for key in path:
                items = (items or {}).get(key)
            rows += items or []
            token, total = answer.get("NextToken"), int(answer.get("TotalCount") or 0)
            if not items or (len(rows) >= total and (total or not token)):
                break
        return rows

    def _pages(self, service: str, action: str, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """By token where an answer has one, else by number."""
        token: str | None = None
        for number in range(1, MOST_PAGES + 1):
            position = {"NextToken": token} if token else {"PageNumber": number}
            answer = self.ask(service, action, **arguments, **position, PageSize=PAGE)
            token = answer.get("NextToken") or None
            yield answer
        raise Trouble("refused", f"{action} has more than {MOST_PAGES} pages")

    def _once(self, service: str, action: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        client = self._client(service)
        from alibabacloud_tea_openapi.utils import Utils
        from alibabacloud_tea_openapi.utils_models import OpenApiRequest, Params
        from darabonba.runtime import RuntimeOptions

        version = SERVICES[service][0]
        params = Params(
            action=action, version=version, protocol=None, pathname="/", method="POST", auth_type="AK", style="RPC",
            req_body_type="formData", body_type="json",
        )  # fmt: skip
        query = {
            "RegionId": self.name,
            **{key: _spelt(value) for key, value in arguments.items() if value is not None},
        }
        request = OpenApiRequest(query=Utils.query(query))
        runtime = RuntimeOptions(autoretry=False, connect_timeout=CONNECT_MS, read_timeout=READ_MS)
        answer: dict[str, Any] = answered(lambda: client.call_api(params, request, runtime))["body"]
        return answer

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            installed()
            from alibabacloud_tea_openapi.client import Client as Plain
            from alibabacloud_tea_openapi.utils_models import Config

            if self._credential is None:
                self._credential = credential()
            config = Config(credential=self._credential, region_id=self.name, protocol="https")
            endpoint = SERVICES[service][1]
            if stand_in := os.environ.get(ENDPOINT):
                config.protocol, config.endpoint = "http", loopback(stand_in)
            elif "." in endpoint:
                config.endpoint = endpoint.format(region=self.name)
            plain = bool(config.endpoint)
            self._clients[service] = (Plain if plain else import_module(f"{endpoint}.client").Client)(config)
        return self._clients[service]


def credential() -> Any:
    """The SDK's own chain (environment, OIDC, ~/.aliyun/config.json, RAM role), asked when a call is signed; before it
    a key as Terraform's provider names it. Raises Trouble."""
    from alibabacloud_credentials.client import Client
    from alibabacloud_credentials.models import Config

    # Of every source that has none it logs a traceback to the terminal; what is wrong is in the exception too.
    logging.getLogger("credentials").disabled = True
    key, secret, token = (os.environ.get(name, "") for name in TERRAFORM)
    if key and secret and not os.environ.get("ALIBABA_CLOUD_ACCESS_KEY_ID"):
        kind = {"type": "sts", "security_token": token} if token else {"type": "access_key"}
        return answered(lambda: Client(Config(access_key_id=key, access_key_secret=secret, **kind)))
    return answered(Client)


def environment() -> dict[str, str]:
    """The credentials for Terraform's provider and for its backend `oss`, whose own chain knows less: a key, or what a
    session has. Raises GpuprovError where there are none."""
    installed()
    try:
        keys = answered(credential().get_credential)
    except Trouble as error:
        raise GpuprovError(f"no credentials for Alibaba Cloud: {error}", hint=SIGN_IN) from None
    values = (keys.access_key_id, keys.access_key_secret, keys.security_token)
    return {name: value for name, value in zip(TERRAFORM, values, strict=True) if value}


def _spelt(value: Any) -> Any:
    """As the API spells it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else value


def loopback(url: str) -> str:
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost") or parts.port is None:
        raise Trouble("settings", f"{ENDPOINT} is for tests: http://127.0.0.1:PORT, not {url}")
    return f"{parts.hostname}:{parts.port}"


def answered(call: Any) -> Any:
    """The call's value; every exception of the SDK as Trouble."""
    from alibabacloud_credentials.exceptions import CredentialException
    from darabonba.exceptions import DaraException
    from requests.exceptions import RequestException
    from Tea.exceptions import TeaException

    try:
        return call()
    except CredentialException as error:
        raise Trouble("credentials", _chain(str(error.message))) from None
    except (DaraException, TeaException) as error:
        inner = getattr(error, "inner_exception", None)  # of the SDK's last attempt
        if isinstance(inner, CredentialException):
            raise Trouble("credentials", _chain(str(inner.message))) from None
        code, message = str(error.code or ""), str(error.message or error)
        message = message.partition(" request id: ")[0]
        if message.startswith("code: "):  # the SDK puts the status before it
            message = message.partition(", ")[2]
        status = str(getattr(error, "status_code", "") or "")
        raise Trouble(kind_of(code, message, status), message, "" if code == "None" else code) from None
    except (OSError, RequestException) as error:
        raise Trouble("silent", str(error)) from None
    except ValueError:  # a proxy's page, or half an answer: no JSON
        raise Trouble("silent", "what answered does not speak as Alibaba Cloud does; look at the proxy") from None
    except Exception as error:
        # darabonba's RetryError (no answer) and UnretryableException have Exception alone as their base
        if type(error).__name__ not in ("RetryError", "UnretryableException", "AttributeError"):
            raise
        text = getattr(error, "message", None) or str(error)
        raise Trouble("silent", text if isinstance(text, str) else str(text)) from None


def _chain(message: str) -> str:
    """The chain's whole story is a list of every source with its reason; one sentence is enough."""
    if "unable to load credentials from any" in message:
        return "no credentials: not in the environment, in ~/.aliyun/config.json or ~/.alibabacloud, and no RAM role"
    return message


CLASSES: Mapping[str, Kind] = {
    "credentials": "credentials", "denied": "denied", "throttled": "throttled", "transient": "silent",
    "terms": "denied",
}  # fmt: skip


def kind_of(code: str, message: str, status: str = "") -> Kind:
    """What an error of the API means for whoever asked: by the class that errors.yaml gives it."""
    row = row_of(table("alicloud"), [code], message)
    kind = CLASSES.get(row.kind) if row is not None else None
    if kind not in ("credentials", "denied") and any(marker in code for marker in ("NotFound", "NotExist", "NoSuch")):
        return "absent"  # for a machine that is being made it would be transient
    return kind or ("silent" if status.startswith("5") else "refused")
