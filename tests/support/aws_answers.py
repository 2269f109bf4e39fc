"""AWS's own answers put in front of moto, for what moto does not know: shortage, quotas, refusals, throttling, silence.

A rule is for one call; its body is what the service itself sends (error codes of the EC2 API reference, JSON of Service
Quotas), so that botocore parses it as it would the real one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from botocore.model import OperationModel
from botocore.parsers import create_parser

from provisioner.machines.providers.aws.client import Region


def ec2_error(code: str, message: str) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>7c9c1a2e-0000-4000-8000-000000000000</RequestID></Response>"
    ).encode()


def sts_error(code: str, message: str) -> bytes:
    return (
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
        f"<Code>{code}</Code><Message>{message}</Message></Error><RequestId>x</RequestId></ErrorResponse>"
    ).encode()


def quota(value: float) -> bytes:
    return json.dumps({"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-0", "Value": value}}).encode()


@dataclass
class Answers:
    """Rules by "service.Call": (status, body), or an exception of the network. `asked` counts what came by."""

    rules: dict[str, tuple[int, bytes] | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def region(self, name: str = "us-east-1") -> Region:
        """A region whose every client goes through these rules first, and to moto where there is none."""
        return self._ruled(Region(name))

    def _ruled(self, region: Region) -> Region:
        plain, beside_region = region.client, region.in_region

        def client(service: str) -> Any:
            known = service in region._clients
            created = plain(service)
            if not known:
                created.meta.events.register_first("before-call", self._answer)
            return created

        region.client = client  # type: ignore[method-assign]
        region.in_region = lambda name: self._ruled(beside_region(name))  # type: ignore[method-assign]
        return region

    def _answer(self, model: OperationModel, **_: object) -> tuple[AWSResponse, dict[str, Any]] | None:
        """Runs in place of the request, so that moto does not see what it has a rule for."""
        call = f"{model.service_model.service_name}.{model.name}"
        self.asked.append(call)
        rule = self.rules.get(call)
        if rule is None:
            return None
        if isinstance(rule, Exception):
            raise rule
        status, body = rule
        response = {"status_code": status, "headers": {}, "body": body}
        parsed = create_parser(model.service_model.resolved_protocol).parse(response, model.output_shape)
        return AWSResponse("https://aws.test/", status, {}, None), parsed


UNREACHABLE = EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com/")
SLOW = ReadTimeoutError(endpoint_url="https://ec2.us-east-1.amazonaws.com/")
