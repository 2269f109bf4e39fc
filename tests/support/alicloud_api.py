"""Alibaba Cloud's API on loopback, as far as gpuprov asks it: signed RPC calls over HTTP, JSON answers and errors.

The wire format is the SDK's own: action and version in headers, arguments in the query, lists as `Tag.1.Key`
(https://www.alibabacloud.com/help/en/sdk/product-overview/v3-request-structure-and-signature). Names of arguments are
held to the SDK's request models, so that a call with one that does not exist fails here too. What a cloud would refuse
is not known: tests say which answers it gives.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from provisioner.machines.providers.alicloud.client import ENDPOINT

SDKS = {
    "2014-05-26": "alibabacloud_ecs20140526", "2016-04-28": "alibabacloud_vpc20160428",
    "2015-04-01": "alibabacloud_sts20150401", "2020-05-10": "alibabacloud_quotas20200510",
}  # fmt: skip
SERVICES = {
    "2014-05-26": "ecs",
    "2016-04-28": "vpc",
    "2015-04-01": "sts",
    "2020-05-10": "quotas",
    "2017-06-26": "nas",
    "2015-05-01": "ram",
}
COMMON = {"RegionId"}
LISTS = {
    "DescribeInstances": ("Instances", "Instance", "InstanceId"), "DescribeDisks": ("Disks", "Disk", "DiskId"),
    "DescribeNatGateways": ("NatGateways", "NatGateway", "NatGatewayId"),
    "DescribeEipAddresses": ("EipAddresses", "EipAddress", "AllocationId"),
    "DescribeKeyPairs": ("KeyPairs", "KeyPair", "KeyPairName"),
    "DescribeDeploymentSets": ("DeploymentSets", "DeploymentSet", "DeploymentSetId"),
    "DescribeSecurityGroups": ("SecurityGroups", "SecurityGroup", "SecurityGroupId"),
    "DescribeVSwitches": ("VSwitches", "VSwitch", "VSwitchId"), "DescribeVpcs": ("Vpcs", "Vpc", "VpcId"),
    "DescribeFileSystems": ("FileSystems", "FileSystem", "FileSystemId"),
    "DescribeImages": ("Images", "Image", "ImageId"),
}  # fmt: skip
"""Call → where its rows lie, and the key of their id."""
DELETES = {
    "DeleteInstance": ("DescribeInstances", "InstanceId"), "DeleteDisk": ("DescribeDisks", "DiskId"),
    "DeleteNatGateway": ("DescribeNatGateways", "NatGatewayId"),
    "ReleaseEipAddress": ("DescribeEipAddresses", "AllocationId"),
    "DeleteKeyPairs": ("DescribeKeyPairs", "KeyPairNames"),
    "DeleteDeploymentSet": ("DescribeDeploymentSets", "DeploymentSetId"),
    "DeleteSecurityGroup": ("DescribeSecurityGroups", "SecurityGroupId"),
    "DeleteVSwitch": ("DescribeVSwitches", "VSwitchId"), "DeleteVpc": ("DescribeVpcs", "VpcId"),
}  # fmt: skip
Answer = dict[str, Any]


@dataclass(frozen=True)
class Refusal:
    """An error answer. https://www.alibabacloud.com/help/en/sdk/product-overview/common-error-codes"""

    code: str
    message: str
    status: int = 403


@dataclass
class Account:
    """What stands, what is answered and what was asked. `answers`: action → an answer, a Refusal, or what gives one of
    the arguments; `once`: the same, each used up by one call, in order."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    once: dict[str, list[Any]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        caller_identity = {
            "Arn": "acs:ram::1234567890123456:user/tester",
            "AccountId": "1234567890123456",
            "UserId": "1",
        }
        self.answers = {
            "GetCallerIdentity": caller_identity, "ListRoles": {"Roles": {"Role": []}, "IsTruncated": False},
            "RunInstances": Refusal("DryRunOperation", "Request validation has been passed."),
            **self.answers,
        }  # fmt: skip

    def asked(self, action: str) -> list[dict[str, str]]:
        return [arguments for name, arguments in self.calls if name == action]

    def counted(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls)

    def answer(self, action: str, arguments: dict[str, str]) -> Answer | Refusal:
        if self.once.get(action):
            return _resolve(self.once[action].pop(0), arguments)
        if action in self.answers:
            return _resolve(self.answers[action], arguments)
        if action in DELETES:
            return self._deleted(*DELETES[action], arguments)
        if action in LISTS:
            return self._listed(action, *LISTS[action], arguments)
        return Refusal("InvalidAction.NotFound", f"Specified api is not found: {action}", 404)

    def _listed(self, action: str, outer: str, inner: str, key: str, arguments: Mapping[str, str]) -> Answer:
        """A page of the rows that fit: by tag, and by an argument of a row's own name."""
        rows = [row for row in self.rows.get(action, []) if _fits(row, key, arguments)]
        number, size = int(arguments.get("PageNumber", 1)), int(arguments.get("PageSize", 10))
        page = rows[(number - 1) * size : number * size]
        return {outer: {inner: page}, "TotalCount": len(rows), "PageNumber": number, "PageSize": size}

    def _deleted(self, listed: str, argument: str, arguments: Mapping[str, str]) -> Answer | Refusal:
        rows, key = self.rows.get(listed, []), LISTS[listed][2]
        ids_text = arguments[argument]
        names = json.loads(ids_text) if ids_text.startswith("[") else [ids_text]
        remaining = [row for row in rows if row[key] not in names]
        if len(remaining) == len(rows):
            return Refusal(f"Invalid{key}.NotFound", f"The specified {key} does not exist.", 404)
        self.rows[listed] = remaining
        return {}


def _resolve(answer: Any, arguments: dict[str, str]) -> Answer | Refusal:
    resolved: Answer | Refusal = answer(arguments) if callable(answer) else answer
    return resolved


def _fits(row: Mapping[str, Any], key: str, arguments: Mapping[str, str]) -> bool:
    tags = {(tag.get("TagKey") or tag.get("Key")): tag.get("TagValue", tag.get("Value")) for tag in _tags(row)}
    for number in range(1, 21):
        name = arguments.get(f"Tag.{number}.Key")
        if name and (name not in tags or arguments.get(f"Tag.{number}.Value", tags[name]) != tags[name]):
            return False
    return arguments.get(key, row[key]) == row[key]


def _tags(row: Mapping[str, Any]) -> list[dict[str, str]]:
    tags = row.get("Tags") or {}
    return list(tags.get("Tag", ()) if isinstance(tags, Mapping) else tags)


def tagged(**tags: str) -> dict[str, Any]:
    """A row's tags as ECS writes them: tagged(cluster="vision") has gpuprov-cluster."""
    return {"Tags": {"Tag": [{"TagKey": f"gpuprov-{key}", "TagValue": value} for key, value in tags.items()]}}


def stock(machine: str, **zones: str) -> Answer:
    """DescribeAvailableResource: zone (with _ for -) → StatusCategory."""
    return {
        "AvailableZones": {
            "AvailableZone": [
                {"ZoneId": zone.replace("_", "-"), "Status": "Available", "AvailableResources": {"AvailableResource": [
                    {"Type": "InstanceType", "SupportedResources": {"SupportedResource": [
                        {"Value": machine, "Status": "Available", "StatusCategory": category}
                    ]}}
                ]}}
                for zone, category in zones.items()
            ]
        }
    }  # fmt: skip


@cache
def arguments_of(version: str, action: str) -> frozenset[str] | None:
    """The names of a call's arguments as the SDK's request model has them; None for a service without an SDK here."""
    if version not in SDKS:
        return None
    models = import_module(f"{SDKS[version]}.models")
    request_model = getattr(models, f"{action}Request", None)
    if request_model is None:  # it takes none
        return frozenset()
    return frozenset(re.findall(r"m\.get\('([\w.]+)'\)", inspect.getsource(request_model.from_map)))


def _handler(account: Account) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length).decode()
            arguments = dict(parse_qsl(urlsplit(self.path).query) + parse_qsl(body))
            action, version = self.headers["x-acs-action"], self.headers["x-acs-version"]
            account.calls.append((f"{SERVICES[version]}:{action}", arguments))
            account.calls.append((action, arguments))
            if not str(self.headers.get("Authorization")).startswith("ACS3-HMAC-SHA256 Credential="):
                account.wrong.append(f"{action} is not signed")
            known = arguments_of(version, action)
            argument_names = {re.sub(r"\.\d+(\..*)?$", "", name) for name in arguments} - COMMON
            if known is not None and not {name.partition(".")[0] for name in argument_names} <= {
                name.partition(".")[0] for name in known
            }:
                account.wrong.append(f"{action} has no argument {argument_names - known}")
            self._send(account.answer(action, arguments))

        def _send(self, answer: Answer | Refusal) -> None:
            status, document = 200, {"RequestId": "R-1", **(answer if isinstance(answer, dict) else {})}
            if isinstance(answer, Refusal):
                status = answer.status
                document |= {"Code": answer.code, "Message": answer.message, "HostId": "127.0.0.1", "Recommend": "none"}
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json;charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Whoever asked did not wait for the answer."""


@contextmanager
def serving(account: Account) -> Iterator[dict[str, str]]:
    """What the environment has while the account answers: the stand-in, a key, and no other source of credentials."""
    server = Server(("127.0.0.1", 0), _handler(account))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield {
            ENDPOINT: f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "127.0.0.1",
            # The SDK reads its own variables once, when it is imported.
            "ALICLOUD_ACCESS_KEY": "LTAI-test", "ALICLOUD_SECRET_KEY": "test",
        }  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
