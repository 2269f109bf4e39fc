"""Azure Resource Manager on loopback, as far as gpuprov asks it: paths, answers and errors of the REST reference.

https://learn.microsoft.com/rest/api/compute, …/rest/api/virtualnetwork, …/rest/api/resources, …/rest/api/authorization;
errors: https://github.com/microsoft/api-guidelines/blob/vNext/azure/Guidelines.md#handling-errors
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from provisioner.machines.providers.azure import client
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.site import AzureSite

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
REGION = "eastus"
SCOPE = f"/subscriptions/{SUBSCRIPTION}"
Answer = tuple[int, dict[str, Any]]


def error(code: str, message: str = "no", status: int = 400) -> Answer:
    return status, {"error": {"code": code, "message": message}}


def permission(method: str, path: str) -> str:
    """The action that a request to a path takes, as roles name it. A list of a location's machines is one of machines.
    https://learn.microsoft.com/azure/role-based-access-control/resource-provider-operations"""
    verb = {"GET": "read", "DELETE": "delete", "POST": "action"}.get(method, "write")
    head, _, tail = path.partition(SCOPE)[2].strip("/").partition("providers/")
    segments = tail.split("/")
    if not tail:
        below = ("", f"/{head}", "/resourceGroups", "/resourceGroups/resources")[len(head.split("/")) if head else 0]
        return f"Microsoft.Resources/subscriptions{below.replace('resourcegroups', 'resourceGroups')}/{verb}"
    if len(segments) == 1:
        return f"Microsoft.Resources/subscriptions/providers/{verb}"
    kinds = "/".join(segments[1::2]).replace("locations/virtualMachines", "virtualMachines")
    return f"{segments[0]}/{kinds}/{verb}"


def resource_document(
    group: str, kind: str, name: str, tags: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A resource. `kind`: Microsoft.Compute/virtualMachines."""
    number = f"{SCOPE}/resourceGroups/{group}/providers/{kind}/{name}"
    return {"id": number, "name": name, "type": kind, "location": REGION, "tags": tags or {}, **more}


def machine(group: str, name: str, number: str, tags: dict[str, str], state: str = "Succeeded") -> dict[str, Any]:
    properties = {"vmId": number, "provisioningState": state, "hardwareProfile": {"vmSize": "Standard_ND96asr_v4"}}
    return resource_document(group, "Microsoft.Compute/virtualMachines", name, tags, properties=properties)


def sku(name: str, family: str, vcpus: int, zones: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """A row of Resource SKUs. `more`: capabilities by name, and `restrictions`."""
    restrictions = more.pop("restrictions", [])
    capabilities = {"vCPUs": str(vcpus), "HyperVGenerations": "V1,V2", **more}
    return {
        "resourceType": "virtualMachines", "name": name, "family": family, "locations": [REGION],
        "locationInfo": [{"location": REGION, "zones": list(zones)}], "restrictions": restrictions,
        "capabilities": [{"name": key, "value": str(value)} for key, value in capabilities.items()],
    }  # fmt: skip


def usage(name: str, used: int, limit: int, title: str = "") -> dict[str, Any]:
    return {"name": {"value": name, "localizedValue": title or name}, "currentValue": used, "limit": limit}


@dataclass
class Api:
    """One subscription. `rules`: (method, pattern of a path) → what is answered in place of all else, the first that
    fits; `calls`: method and path of each request; `plain`: path → an answer that is not Resource Manager's, or what
    gives it."""

    skus: list[dict[str, Any]] = field(default_factory=list)
    compute: list[dict[str, Any]] = field(default_factory=list)
    network: list[dict[str, Any]] = field(default_factory=list)
    images: dict[str, list[str]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    permissions: list[dict[str, Any]] = field(default_factory=lambda: [{"actions": ["*"], "notActions": []}])
    registered: str = "Registered"
    state: str = "Enabled"
    features: dict[str, str] = field(default_factory=lambda: {"EncryptionAtHost": "Registered"})
    views: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: list[tuple[str, str, Answer]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    plain: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    url: str = ""

    def subscription(self, **site: Any) -> Subscription:
        site = {"provider": "azure", "region": REGION, "subscription": SUBSCRIPTION, **site}
        return Subscription(AzureSite.model_validate_json(json.dumps(site)), test_credential=Token())

    def answer(self, method: str, path: str, query: dict[str, list[str]]) -> Answer:
        for verb, pattern, rule_answer in self.rules:
            if verb == method and re.search(pattern, path, re.I):
                return rule_answer
        for (verb, pattern), make in _ROUTES.items():
            if verb == method and (fits := re.fullmatch(SCOPE + pattern, path, re.I)):
                answer: Answer = make(self, *fits.groups(), query=query)
                return answer
        return error("NotFound", f"{method} {path}", 404)

    def tagged(self, rows: list[dict[str, Any]], query: dict[str, list[str]]) -> Answer:
        tag_filter = re.fullmatch(r"tagName eq '(.*)'", query.get("$filter", [""])[0])
        return 200, {"value": [row for row in rows if tag_filter is None or tag_filter[1] in row.get("tags", {})]}

    def found(self, number: str) -> dict[str, Any] | None:
        return next((row for row in self.resources if row["id"].lower() == number.lower()), None)


def _get_resource(api: Api, group: str, path: str, query: Any) -> Answer:
    number = f"{SCOPE}/resourceGroups/{group}/providers/{path}"
    resource = api.found(number) or api.others.get(number)
    if resource is None:
        return error("ResourceNotFound", f"{number} was not found", 404)
    document = json.loads(json.dumps(resource))
    if resource.get("properties", {}).get("provisioningState") in (
        "Creating",
        "Updating",
    ):  # at the next look it is there
        resource["properties"]["provisioningState"] = "Succeeded"
    return 200, document


def _put(api: Api, group: str, path: str, query: Any) -> Answer:
    """What takes its time: a resource that is being made."""
    segments = path.split("/")
    holder = f"{SCOPE}/resourceGroups/{group}/providers/{'/'.join(segments[:-2])}"
    if not any(row["name"].lower() == group.lower() for row in api.groups):
        return error("ResourceGroupNotFound", f"Resource group '{group}' could not be found.", 404)
    if len(segments) > 3 and api.found(holder) is None:
        return error("ParentResourceNotFound", f"Failed to perform 'write' on resource: {holder} is not there.", 404)
    kind = "/".join([segments[0], *segments[1::2]])
    created = (
        resource_document(group, kind, segments[-1])
        | api.body
        | {"id": f"{SCOPE}/resourceGroups/{group}/providers/{path}"}
    )
    created["properties"] = {**created.get("properties", {}), "provisioningState": "Creating"}
    if (old := api.found(created["id"])) is not None:
        api.resources.remove(old)
    api.resources.append(created)
    return 201, created


def _patch(api: Api, group: str, path: str, query: Any) -> Answer:
    resource = api.found(f"{SCOPE}/resourceGroups/{group}/providers/{path}")
    if resource is None:
        return error("ResourceNotFound", "not found", 404)
    for key, value in api.body.get("properties", {}).items():
        resource["properties"][key] = {**resource["properties"].get(key, {}), **value}
    resource["properties"]["provisioningState"] = "Updating"
    return 200, resource


def _put_group(api: Api, name: str, query: Any) -> Answer:
    created = {"id": f"{SCOPE}/resourceGroups/{name}", "name": name, "properties": {"provisioningState": "Succeeded"}}
    api.groups = [row for row in api.groups if row["name"].lower() != name.lower()] + [{**created, **api.body}]
    return 201, api.groups[-1]


def _gallery_versions(api: Api, group: str, path: str, query: Any) -> Answer:
    begin = f"{SCOPE}/resourceGroups/{group}/providers/{path}/".lower()
    return 200, {"value": [row for row in api.resources if row["id"].lower().startswith(begin)]}


def _power(api: Api, group: str, name: str, operation: str, query: Any) -> Answer:
    if operation == "deallocate":
        api.views[name] = ["ProvisioningState/succeeded", "PowerState/deallocated"]
    elif "PowerState/deallocated" not in api.views.get(name, []):
        return error("OperationNotAllowed", "The VM is not stopped.", 409)
    return 202, {}


def _delete_resource(api: Api, group: str, path: str, query: Any) -> Answer:
    number = f"{SCOPE}/resourceGroups/{group}/providers/{path}"
    if (resource := api.found(number)) is None:
        return 204, {}
    if any(row["id"].lower().startswith(f"{number.lower()}/") for row in api.resources):
        return error("CannotDeleteResource", "it has nested resources", 409)
    api.resources.remove(resource)
    return 202, {}


def _group(api: Api, name: str, query: Any) -> Answer:
    matching_group = next((row for row in api.groups if row["name"].lower() == name.lower()), None)
    return (
        (200, matching_group)
        if matching_group
        else error("ResourceGroupNotFound", f"Resource group '{name}' could not be found.", 404)
    )


def _delete_group(api: Api, name: str, query: Any) -> Answer:
    api.groups = [row for row in api.groups if row["name"].lower() != name.lower()]
    api.resources = [row for row in api.resources if f"/resourcegroups/{name.lower()}/" not in row["id"].lower()]
    return 202, {}


def _within(api: Api, name: str, query: Any) -> Answer:
    inside = [row for row in api.resources if f"/resourcegroups/{name.lower()}/" in row["id"].lower()]
    return 200, {"value": inside}


def _machines(api: Api, query: Any) -> Answer:
    kind = "Microsoft.Compute/virtualMachines"
    return 200, {"value": [row for row in api.resources if row["type"] == kind]}


def _images(api: Api, publisher: str, offer: str, sku_: str, query: Any) -> tuple[int, Any]:
    versions = api.images.get(f"{publisher}:{offer}:{sku_}")
    if versions is None:
        return error("NotFound", "Artifact: VMImage was not found.", 404)
    return 200, [{"name": version, "location": REGION, "id": version} for version in versions]


_COMPUTE, _NETWORK = r"/providers/Microsoft\.Compute", r"/providers/Microsoft\.Network"
_VERSIONS = r"/locations/\w+/publishers/([^/]+)/artifacttypes/vmimage/offers/([^/]+)/skus/([^/]+)/versions"
_ROUTES: dict[tuple[str, str], Any] = {
    ("GET", ""): lambda api, query: (200, {"displayName": "Fleet", "state": api.state, "subscriptionId": SUBSCRIPTION}),
    ("GET", r"/providers/(Microsoft\.\w+)"): lambda api, name, query: (200, {"registrationState": api.registered}),
    ("GET", r"/providers/Microsoft\.Features/providers/Microsoft\.Compute/features/(\w+)"): lambda api, name, query: (
        (200, {"properties": {"state": api.features.get(name, "NotRegistered")}})
    ),
    ("GET", f"{_COMPUTE}/skus"): lambda api, query: (200, {"value": api.skus}),
    ("GET", rf"{_COMPUTE}/locations/\w+/usages"): lambda api, query: (200, {"value": api.compute}),
    ("GET", rf"{_NETWORK}/locations/\w+/usages"): lambda api, query: (200, {"value": api.network}),
    ("GET", rf"{_COMPUTE}/locations/\w+/virtualMachines"): _machines,
    ("GET", f"{_COMPUTE}{_VERSIONS}"): _images,
    ("GET", r"(?:/resourceGroups/[^/]+)?/providers/Microsoft\.Authorization/permissions"): lambda api, query: (
        200, {"value": api.permissions}
    ),
    ("GET", f"/resourceGroups/[^/]+{_COMPUTE}/virtualMachines/([^/]+)/instanceView"): lambda api, name, query: (
        200, {"statuses": [{"code": code} for code in api.views.get(name, [])]}
    ),
    ("GET", "/resources"): lambda api, query: api.tagged(api.resources, query),
    ("GET", "/resourcegroups"): lambda api, query: api.tagged(api.groups, query),
    ("GET", "/resourcegroups/([^/]+)/resources"): _within,
    ("GET", "/resourcegroups/([^/]+)"): _group,
    ("DELETE", "/resourcegroups/([^/]+)"): _delete_group,
    ("GET", "/resourcegroups/([^/]+)/providers/(.+/images/[^/]+)/versions"): _gallery_versions,
    ("GET", f"{_COMPUTE}/virtualMachines"): _machines,
    ("PUT", "/resourcegroups/([^/]+)"): _put_group,
    ("PUT", "/resourcegroups/([^/]+)/providers/(.+)"): _put,
    ("PATCH", "/resourcegroups/([^/]+)/providers/(.+)"): _patch,
    ("POST", f"/resourcegroups/([^/]+){_COMPUTE}/virtualMachines/([^/]+)/(deallocate|generalize)"): _power,
    ("GET", "/resourcegroups/([^/]+)/providers/(.+)"): _get_resource,
    ("POST", r"/resourcegroups/([^/]+)/providers/(.+)/retrieveBootDiagnosticsData"): lambda api, group, path, query: (
        200, {"serialConsoleLogBlobUri": f"{api.url}/console/{path.rpartition('/')[2]}?sig=SECRET"}
    ),
    ("DELETE", "/resourcegroups/([^/]+)/providers/(.+)"): _delete_resource,
}  # fmt: skip
"""Method and path below the subscription → the answer."""


class Token:
    """A credential whose token names somebody, as Entra ID's do."""

    def get_token(self, *scopes: str, **_: Any) -> Any:
        from azure.core.credentials import AccessToken

        claims = base64.urlsafe_b64encode(json.dumps({"upn": "ada@example.com"}).encode()).decode().rstrip("=")
        return AccessToken(f"h.{claims}.s", int(time.time()) + 3600)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API, and a client that asks it in place of Azure."""
    from azure.core.pipeline.policies import _authentication

    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(parts.path)
            api.calls.append((self.command, path))
            if path in api.plain:
                content = api.plain[path]
                content = content() if callable(content) else content
                return self._send(200, content.encode() if isinstance(content, str) else json.dumps(content).encode())
            api.body = json.loads(sent or b"{}")
            status, body = api.answer(self.command, path, parse_qs(parts.query))
            return self._send(status, json.dumps(body).encode() if status not in (202, 204) else b"")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_DELETE = do_POST = do_PUT = do_PATCH = do_HEAD = _answer

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(client.CLOUDS, "public", replace(client.CLOUDS["public"], arm=api.url))
    monkeypatch.setattr(client, "MOST_WAIT_S", 0)
    monkeypatch.setattr(_authentication, "_enforce_https", lambda request: None)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
