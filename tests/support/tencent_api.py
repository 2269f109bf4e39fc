"""Tencent Cloud's API on loopback, as an HTTP proxy in front of its own names: small, with one account's things in it.

It speaks the documented form (https://cloud.tencent.com/document/api/213/30654: one POST for each action, X-TC-Action,
TC3-HMAC-SHA256; https://cloud.tencent.com/document/api/213/30435: errors with status 200) and holds every request to
the SDK's own models: an action or parameter that they do not have is refused as the service refuses it. What is in the
account, and what is refused, tests say.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from tests.support.tencent_cos import Cos

SECRET_ID, SECRET_KEY = "AKIDtest", "secret-of-the-tests"
VERSIONS = {"cvm": "2017-03-12", "vpc": "2017-03-12", "sts": "2018-08-13", "tag": "2018-08-13", "cam": "2019-01-16",
            "cfs": "2019-07-19"}  # fmt: skip
ACCOUNT = "100000000001"
Answer = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Refused(Exception):
    """An error of the API."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code)
        self.code, self.message = code, message or code


@dataclass(frozen=True, slots=True)
class Listed:
    """How things of a kind are listed and deleted. `blocks`: lists whose things keep it, by the key that names it."""

    describe: str
    key: str
    number: str
    delete: str
    argument: str
    blocks: tuple[tuple[str, str], ...] = ()


KINDS = {
    "instance": Listed("DescribeInstances", "InstanceSet", "InstanceId", "TerminateInstances", "InstanceIds"),
    "nat": Listed("DescribeNatGateways", "NatGatewaySet", "NatGatewayId", "DeleteNatGateway", "NatGatewayId"),
    "address": Listed("DescribeAddresses", "AddressSet", "AddressId", "ReleaseAddresses", "AddressIds",
                      (("nat", "_address"),)),
    "spread": Listed("DescribeDisasterRecoverGroups", "DisasterRecoverGroupSet", "DisasterRecoverGroupId",
                     "DeleteDisasterRecoverGroups", "DisasterRecoverGroupIds", (("instance", "_spread"),)),
    "key": Listed("DescribeKeyPairs", "KeyPairSet", "KeyId", "DeleteKeyPairs", "KeyIds", (("instance", "_key"),)),
    "group": Listed("DescribeSecurityGroups", "SecurityGroupSet", "SecurityGroupId", "DeleteSecurityGroup",
                    "SecurityGroupId", (("instance", "_group"),)),
    "subnet": Listed("DescribeSubnets", "SubnetSet", "SubnetId", "DeleteSubnet", "SubnetId",
                     (("instance", "_subnet"),)),
    "vpc": Listed("DescribeVpcs", "VpcSet", "VpcId", "DeleteVpc", "VpcId", (("subnet", "VpcId"), ("nat", "VpcId"))),
    "cfs": Listed("DescribeCfsFileSystems", "FileSystems", "FileSystemId", "DeleteCfsFileSystem", "FileSystemId"),
}  # fmt: skip


@dataclass
class TencentApi:
    """One account in one region. `things`: kind → rows as the API has them; `answers`: action → what it answers in
    place of what is here; `calls`: (service, action, parameters)."""

    things: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    region: str = ""
    """Of the call that is answered."""
    slow: int = 0
    """How many times a terminated instance is still listed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def actions(self) -> set[str]:
        """service:Action of every call, as a CAM policy has them (https://cloud.tencent.com/document/product/598/10604:
        VPC's addresses are CVM's there)."""
        return {f"{'cvm' if 'Address' in action else service}:{action}" for service, action, _ in self.calls}

    def refuse(self, action: str, code: str, message: str = "") -> None:
        def refused(_: Mapping[str, Any]) -> Mapping[str, Any]:
            raise Refused(code, message)

        self.answers[action] = refused

    def answer(self, service: str, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            self.calls.append((service, action, arguments))
            if action in self.answers:
                answer = self.answers[action]
                return answer(arguments) if callable(answer) else answer
            if action in ("DescribeRoleList", "ListPolicies"):
                return {"List": [], "TotalNum": 0}
            if action == "GetCallerIdentity":
                return {"Arn": f"qcs::cam::uin/{ACCOUNT}:uin/{ACCOUNT}", "AccountId": ACCOUNT, "UserId": ACCOUNT,
                        "PrincipalId": ACCOUNT, "Type": "CAMUser"}  # fmt: skip
            for kind, listed in KINDS.items():
                if action == listed.describe:
                    return self._described(kind, listed, arguments)
                if action == listed.delete:
                    return self._deleted(kind, listed, arguments)
        raise Refused("InvalidAction", f"the stand-in has no {action}")

    def _described(self, kind: str, listed: Listed, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = [
            row
            for row in self.things[kind]
            if all(_fits(row, tag_filter) for tag_filter in arguments.get("Filters") or ())
        ]
        if ids := arguments.get(f"{listed.number}s"):
            if missing := set(ids) - {row[listed.number] for row in rows}:
                raise Refused("ResourceNotFound", f"{missing} not found")
            rows = [row for row in rows if row[listed.number] in ids]
        first = int(arguments.get("Offset") or 0)
        page = rows[first : first + int(arguments.get("Limit") or 20)]
        for row in [row for row in self.things[kind] if "_left" in row]:
            row["_left"] -= 1
            if row["_left"] < 0:
                self.things[kind].remove(row)
        public_rows = [{name: value for name, value in row.items() if not name.startswith("_")} for row in page]
        return {listed.key: public_rows, "TotalCount": len(rows)}

    def _deleted(self, kind: str, listed: Listed, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        ids = arguments[listed.argument]
        for number in ids if isinstance(ids, list) else [ids]:
            row = next((candidate for candidate in self.things[kind] if candidate[listed.number] == number), None)
            if row is None:
                raise Refused("ResourceNotFound", f"{number} not found")
            if row.get("DisableApiTermination"):
                raise Refused(
                    "UnsupportedOperation.InvalidInstanceNotSupportedProtectedInstance", f"{number} is protected"
                )
            for other, key in listed.blocks:
                if any(candidate.get(key) == number for candidate in self.things[other]):
                    raise Refused("ResourceInUse", f"The specified resource `{number}` is already in use.")
            if kind == "instance":
                row |= {"InstanceState": "TERMINATING", "_left": self.slow}
            else:
                self.things[kind].remove(row)
        return {}


def _fits(row: Mapping[str, Any], tag_filter: Mapping[str, Any]) -> bool:
    tags = {tag.get("Key", tag.get("TagKey")): tag.get("Value", tag.get("TagValue"))
            for tag in row.get("Tags") or row.get("TagSet") or ()}  # fmt: skip
    name, values = tag_filter["Name"], tag_filter["Values"]
    if name == "tag-key":
        return any(value in tags for value in values)
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    return True


def tags(kind: str, **values: str) -> dict[str, Any]:
    """The tags of a row: VPC's API calls them otherwise."""
    pairs = [{"Key": key.replace("_", "-"), "Value": value} for key, value in values.items()]
    return {"TagSet" if kind in ("vpc", "subnet", "group", "nat", "address") else "Tags": pairs}


def _held_to_the_sdk(service: str, version: str, action: str, arguments: Mapping[str, Any]) -> None:
    name = f"tencentcloud.{service}.v{version.replace('-', '')}.models"
    if find_spec(f"tencentcloud.{service}") is None:  # CFS: its SDK is not installed for one call
        return
    model = getattr(import_module(name), f"{action}Request", None)
    if model is None:
        raise Refused("InvalidAction", f"{service} has no {action}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model()._deserialize(json.loads(json.dumps(arguments)))
    if caught:
        raise Refused("UnknownParameter", str(caught[0].message))


def _signed(handler: BaseHTTPRequestHandler, service: str, body: bytes) -> None:
    """As TC3-HMAC-SHA256 has it: https://cloud.tencent.com/document/api/213/30654"""
    form = re.compile(r"TC3-HMAC-SHA256 Credential=(\S+)/(\d{4}-\d\d-\d\d)/(\w+)/tc3_request, "
                      r"SignedHeaders=content-type;host, Signature=([0-9a-f]{64})")  # fmt: skip
    authorization = form.fullmatch(handler.headers["Authorization"])
    if authorization is None or authorization[3] != service:
        raise Refused("AuthFailure.InvalidAuthorization")
    if authorization[1] != SECRET_ID:
        raise Refused(
            "AuthFailure.SecretIdNotFound", "The SecretId is not found, please ensure that your SecretId is correct."
        )
    head = f"content-type:{handler.headers['Content-Type']}\nhost:{handler.headers['Host']}\n"
    canonical_request = f"POST\n/\n\n{head}\ncontent-type;host\n{hashlib.sha256(body).hexdigest()}"
    string_to_sign = f"TC3-HMAC-SHA256\n{handler.headers['X-TC-Timestamp']}\n{authorization[2]}/{service}/tc3_request\n"
    string_to_sign += hashlib.sha256(canonical_request.encode()).hexdigest()
    key = f"TC3{SECRET_KEY}".encode()
    for part in (authorization[2], service, "tc3_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    if hmac.new(key, string_to_sign.encode(), hashlib.sha256).hexdigest() != authorization[4]:
        raise Refused("AuthFailure.SignatureFailure")


@contextmanager
def serving(api: TencentApi, cos: Cos | None = None) -> Iterator[dict[str, str]]:
    """What the environment has while the account answers. `cos`: its buckets."""

    class Handler(BaseHTTPRequestHandler):
        def _cos(self) -> None:
            assert cos is not None
            status, body, headers = cos.answer(self)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = _cos

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service = (urlsplit(self.path).hostname or "").partition(".")[0]
            action, version = self.headers["X-TC-Action"], self.headers["X-TC-Version"]
            try:
                _signed(self, service, body)
                if VERSIONS.get(service) != version:
                    raise Refused("NoSuchVersion", f"{service} {version}")
                arguments = json.loads(body)
                _held_to_the_sdk(service, version, action, arguments)
                api.region = self.headers["X-TC-Region"] or ""
                answer: Mapping[str, Any] = api.answer(service, action, arguments)
            except Refused as refused:
                answer = {"Error": {"Code": refused.code, "Message": refused.message}}
            page = json.dumps({"Response": {**answer, "RequestId": "00000000-1111"}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield {
            "TENCENTCLOUD_SECRET_ID": SECRET_ID, "TENCENTCLOUD_SECRET_KEY": SECRET_KEY,
            "TENCENTCLOUD_PROTOCOL": "http", "http_proxy": f"http://127.0.0.1:{server.server_port}",
            "no_proxy": "127.0.0.1", "HOME": "/nonexistent",
        }  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
