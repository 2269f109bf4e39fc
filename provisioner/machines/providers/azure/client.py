"""Questions to Azure: every one has a deadline, and an answer that did not come is told apart from a no.

Who asks is who Terraform's azurerm asks as: the service principal, token or managed identity of ARM_* variables, or
whoever signed in with `az login`.
https://registry.terraform.io/providers/hashicorp/azurerm/latest/docs#authenticating-to-azure
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from provisioner.common import extras
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.azure.settings import GUID, Environment
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.trouble import Kind, Trouble

T = TypeVar("T")

CONNECT_S, READ_S, RETRIES, MOST_WAIT_S = 5, 20, 3, 10
"""One call: seconds to connect and to answer, how often it is tried again, and for how long Azure may have us wait."""
MOST_PAGES = 500
"""Of one list: far beyond what a subscription has."""
CLI_S = 20
INSTALL = extras.install("azure")
NAME = "gpuprov"


@dataclass(frozen=True, slots=True)
class Cloud:
    """One of the Azures. `authority`: who signs people in; `arm`: Azure Resource Manager; `blob`: suffix of storage
    accounts; `terraform`: azurerm's name of it; `cli`: that of `az cloud set`; `portal`: where a person looks."""

    authority: str
    arm: str
    blob: str
    terraform: str
    cli: str
    portal: str

    @property
    def scope(self) -> str:
        return f"{self.arm}/.default"


CLOUDS: dict[Environment, Cloud] = {
    "public": Cloud(
        "login.microsoftonline.com", "https://management.azure.com", "blob.core.windows.net", "public", "AzureCloud",
        "https://portal.azure.com",
    ),
    "usgovernment": Cloud(
        "login.microsoftonline.us", "https://management.usgovcloudapi.net", "blob.core.usgovcloudapi.net",
        "usgovernment", "AzureUSGovernment", "https://portal.azure.us",
    ),
    "china": Cloud(
        "login.chinacloudapi.cn", "https://management.chinacloudapi.cn", "blob.core.chinacloudapi.cn", "china",
        "AzureChinaCloud", "https://portal.azure.cn",
    ),
}  # fmt: skip
"""azure-cli, src/azure-cli-core/azure/cli/core/cloud.py; azurerm's `environment`."""


CLIENTS = {
    "compute": ("azure.mgmt.compute", "ComputeManagementClient"),
    "network": ("azure.mgmt.network", "NetworkManagementClient"),
    "resources": ("azure.mgmt.resource.resources", "ResourceManagementClient"),
}


class Subscription:
    """A subscription of one of the Azures, asked with Terraform's credentials. `test_credential`: that of tests."""

    def __init__(self, site: AzureSite, test_credential: Any = None) -> None:
        self.site, self.region, self.cloud = site, site.region, CLOUDS[site.environment]
        self._test_credential, self._clients, self._making = test_credential, dict[str, Any](), threading.Lock()

    @cached_property
    def id(self) -> str:
        """Raises Trouble where nothing says which it is."""
        return self.site.subscription or subscription_id(self.site.environment)

    @property
    def scope(self) -> str:
        return f"/subscriptions/{self.id}"

    @cached_property
    def credential(self) -> Any:
        return self._test_credential or credential_of(self.cloud)

    @cached_property
    def _plain(self) -> Any:
        from azure.mgmt.core import ARMPipelineClient

        pipeline = policies(self.credential, self.cloud.scope)
        return ARMPipelineClient(base_url=self.cloud.arm, policies=pipeline, **deadlines())

    def client(self, name: Literal["compute", "network", "resources"]) -> Any:
        """The SDK's client of a service, made once. Raises Trouble."""
        require()
        with self._making:
            if name not in self._clients:
                self._clients[name] = answered(lambda: self._open_client(name))
        return self._clients[name]

    def _open_client(self, name: str) -> Any:
        module, of = CLIENTS[name]
        return getattr(import_module(module), of)(
            self.credential, self.id, self.cloud.arm, credential_scopes=[self.cloud.scope],
            policies=policies(self.credential, self.cloud.scope), **deadlines(),
        )  # fmt: skip

    def ask(self, call: Callable[[], T]) -> T:
        """The answer to one call of a client. Raises Trouble."""
        return answered(call)

    def all(self, call: Callable[[], Iterable[T]]) -> list[T]:
        """The items of every page of a call. Raises Trouble, also for more than MOST_PAGES."""
        return answered(lambda: _bounded(call()))

    def get(self, path: str, version: str, **query: str) -> dict[str, Any]:
        """Azure Resource Manager's answer for a path that no client here has. Raises Trouble."""
        return self.send("GET", path, version, None, **query)

    def send(
        self, method: str, path: str, version: str, body: Mapping[str, Any] | None = None, **query: str
    ) -> dict[str, Any]:
        """The answer to any request of Azure Resource Manager; {} where it has none. What takes its time has begun
        then. Raises Trouble."""
        require()
        from azure.core.rest import HttpRequest

        content: dict[str, Any] = {"json": dict(body)} if body is not None else {}
        request = HttpRequest(method, f"{self.cloud.arm}{path}", params={"api-version": version, **query}, **content)

        def call() -> dict[str, Any]:
            from azure.core.exceptions import HttpResponseError

            response = self._plain.send_request(request)
            if response.status_code >= 400:
                raise HttpResponseError(response=response)
            document: dict[str, Any] = response.json() if response.content else {}
            return document

        return answered(call)


def _bounded(answer: Iterable[T]) -> list[T]:
    """What is in an answer of the SDK, page after page."""
    items: list[T] = []
    for number, page in enumerate(answer.by_page() if hasattr(answer, "by_page") else [answer]):
        if number == MOST_PAGES:
            raise Trouble("refused", f"the answer has more than {MOST_PAGES} pages")
        items += page
    return items


def require() -> None:
    """Raises GpuprovError where the SDK is not installed."""
    if find_spec("azure") is None or find_spec("azure.identity") is None or find_spec("azure.mgmt.compute") is None:
        raise GpuprovError("provider azure needs Azure's SDK, which is not installed", hint=INSTALL)


def deadlines() -> dict[str, Any]:
    """Of every client."""
    return {"connection_timeout": CONNECT_S, "read_timeout": READ_S}


def policies(credential: Any, scope: str) -> list[Any]:
    """What a request goes through: bounded retries, and no registration of resource providers behind anybody's back."""
    from azure.core.pipeline import policies as core
    from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy, ARMHttpLoggingPolicy

    return [
        core.RequestIdPolicy(), core.HeadersPolicy(), core.UserAgentPolicy(NAME), core.ProxyPolicy(),
        core.ContentDecodePolicy(), core.RedirectPolicy(), bounded_retries(),
        ARMChallengeAuthenticationPolicy(credential, scope), core.CustomHookPolicy(), ARMHttpLoggingPolicy(),
    ]  # fmt: skip


def bounded_retries() -> Any:
    """Azure's Retry-After can be minutes: then it is told as throttled."""
    from azure.core.pipeline.policies import RetryPolicy

    class Bounded(RetryPolicy[Any, Any]):
        def get_retry_after(self, response: Any) -> float | None:
            delay = super().get_retry_after(response)
            return None if delay is None else min(float(delay), MOST_WAIT_S)

    return Bounded(retry_total=RETRIES, retry_backoff_max=MOST_WAIT_S)


def subscription_id(environment: Environment) -> str:
    """That of the environment, or of `az account show`, read from its file. Raises Trouble."""
    if number := os.environ.get("ARM_SUBSCRIPTION_ID"):
        return number
    file = Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure") / "azureProfile.json"
    try:
        rows = json.loads(file.read_text(encoding="utf-8-sig")).get("subscriptions", [])
    except (OSError, ValueError, AttributeError):
        rows = []
    cloud = CLOUDS[environment].cli
    default_rows = [row for row in rows if row.get("isDefault") and row.get("environmentName", cloud) == cloud]
    if not default_rows or not re.fullmatch(GUID, str(default_rows[0].get("id"))):
        raise Trouble("credentials", "no subscription is known: not signed in, and sites.*.subscription is not set")
    return str(default_rows[0]["id"])


def credential_of(cloud: Cloud) -> Any:
    """Who Terraform's azurerm signs in as. Raises Trouble for variables that say half of it."""
    require()
    from azure import identity

    at = {"authority": cloud.authority, "connection_timeout": CONNECT_S, "read_timeout": READ_S, "retry_total": 1}
    env = os.environ
    tenant, client = env.get("ARM_TENANT_ID", ""), _either("ARM_CLIENT_ID")
    if _true("ARM_USE_MSI"):
        return identity.ManagedIdentityCredential(client_id=client or None)
    token_file = env.get("ARM_OIDC_TOKEN_FILE_PATH") or (
        env.get("AZURE_FEDERATED_TOKEN_FILE") if _true("ARM_USE_AKS_WORKLOAD_IDENTITY") else ""
    )
    secret, certificate = _either("ARM_CLIENT_SECRET"), env.get("ARM_CLIENT_CERTIFICATE_PATH")
    token = env.get("ARM_OIDC_TOKEN")
    if not client:
        return identity.AzureCliCredential(process_timeout=CLI_S, tenant_id=tenant)
    if not tenant:
        raise Trouble("settings", "ARM_CLIENT_ID is set, and ARM_TENANT_ID is not")
    if secret:
        return identity.ClientSecretCredential(tenant, client, secret, **at)
    if certificate:
        password = env.get("ARM_CLIENT_CERTIFICATE_PASSWORD") or None
        return answered(lambda: identity.CertificateCredential(tenant, client, certificate, password=password, **at))
    if token or token_file:
        return identity.ClientAssertionCredential(
            tenant, client, lambda: token or Path(token_file or "").read_text(encoding="utf-8"), **at
        )
    return identity.AzureCliCredential(process_timeout=CLI_S, tenant_id=tenant)


def _either(name: str) -> str:
    """A variable's value, or that of the file which <name>_FILE_PATH names."""
    if value := os.environ.get(name):
        return value
    file = os.environ.get(f"{name}_FILE_PATH")
    try:
        return Path(file).read_text(encoding="utf-8").strip() if file else ""
    except OSError as error:
        raise Trouble("settings", f"{name}_FILE_PATH: {error.strerror}: {file}") from None


def _true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "t")


def answered(call: Callable[[], T]) -> T:
    """The call's value; every exception of the SDK as Trouble."""
    from azure.core import exceptions

    try:
        return call()
    except exceptions.ClientAuthenticationError as error:
        message, code = _error_text(error)
        raise Trouble("denied" if _status(error) == 403 else "credentials", message, code) from None
    except exceptions.HttpResponseError as error:
        message, code = _error_text(error)
        raise Trouble(kind_of(_status(error), code), message, code) from None
    except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
        raise Trouble("silent", str(error)) from None
    except exceptions.DecodeError:  # a proxy's page, or half an answer
        raise Trouble("silent", "what answered does not speak as Azure does; look at the proxy") from None
    except exceptions.AzureError as error:
        raise Trouble("refused", str(error)) from None
    except (subprocess.SubprocessError, OSError) as error:
        raise Trouble("silent", str(error)) from None
    except ValueError as error:  # a certificate that can't be read, a tenant that is none, JSON of nobody
        raise Trouble("settings", str(error)) from None


def _status(error: Any) -> int:
    return int(getattr(error, "status_code", None) or 0)


def _error_text(error: Any) -> tuple[str, str]:
    """Message and code of an answer, in one line; the code is the innermost, which says more."""
    body: Mapping[str, Any] = {}
    try:
        body = error.response.json() if error.response is not None else {}
    except Exception:  # no JSON, or a stream that is closed
        body = {}
    details = body.get("error", body) if isinstance(body, Mapping) else {}
    if not isinstance(details, Mapping) or not details.get("code"):
        code = enum_text(getattr(error, "error_code", "")) or (str(_status(error)) if _status(error) == 304 else "")
        return " ".join(str(getattr(error, "message", "") or error).split())[:2000], code
    while details.get("details") and isinstance(details["details"], list) and details["details"][0].get("code"):
        details = details["details"][0]
    return " ".join(str(details.get("message") or details["code"]).split())[:2000], str(details["code"])


def kind_of(status: int, code: str) -> Kind:
    """What an answer's status and code mean for whoever asked."""
    if status == 401 or code in ("ExpiredAuthenticationToken", "InvalidAuthenticationToken", "AuthenticationFailed"):
        return "credentials"
    if status == 403:
        return "denied"
    if status == 404 or code.endswith("NotFound"):
        return "absent"
    if status == 429 or "TooManyRequests" in code or code == "OperationNotAllowedThrottled":
        return "throttled"
    return "silent" if status >= 500 else "refused"


def parts(resource: str) -> Mapping[str, str]:
    """An id of Azure's, /subscriptions/S/resourceGroups/G/providers/…/T/N, as its names by their kind, in lower
    case: Azure writes neither kinds nor groups always the same."""
    segments = resource.strip("/").split("/")
    return {kind.lower(): name for kind, name in zip(segments[::2], segments[1::2], strict=False)}


def enum_text(value: Any) -> str:
    """A value of the SDK's enumerations as Azure writes it."""
    return str(getattr(value, "value", value) or "")
