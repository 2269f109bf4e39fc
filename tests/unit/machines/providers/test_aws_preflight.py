"""Preflight on AWS: what it finds, what it cannot know, and that neither is ever a traceback or a pass."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ReadTimeoutError
from moto import mock_aws
from moto.core.models import botocore_stubber

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers import actions
from provisioner.machines.providers.aws import image, permissions, probe, reservations, storage
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.preflight import preflight
from provisioner.machines.providers.aws.quotas import of_machine, quotas
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Way
from provisioner.plan.models import PlannedGroup
from provisioner.spec.groups import Group
from tests.support import plans
from tests.support.aws_answers import SLOW, UNREACHABLE, Answers, ec2_error, quota, sts_error
from tests.support.plans import planned_group

P4D = "p4d.24xlarge"
RESERVATION = """<DescribeCapacityReservationsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<requestId>x</requestId><capacityReservationSet><item><capacityReservationId>cr-0abc</capacityReservationId>
<instanceType>{type}</instanceType><availabilityZone>{zone}</availabilityZone><totalInstanceCount>{total}</totalInstanceCount>
<availableInstanceCount>{total}</availableInstanceCount><state>{state}</state><reservationType>{kind}</reservationType>
<startDate>2026-12-01T11:30:00.000Z</startDate>{more}</item></capacityReservationSet></DescribeCapacityReservationsResponse>"""

ROLE = "arn:aws:sts::123456789012:assumed-role/Operator/me"
IDENTITY = """<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>{arn}</Arn><UserId>x</UserId><Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"""
GET_ROLE = b"""<GetRoleResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><GetRoleResult><Role><Path>/team/</Path>
<RoleName>Operator</RoleName><RoleId>x</RoleId><Arn>arn:aws:iam::123456789012:role/team/Operator</Arn>
<CreateDate>2026-01-01T00:00:00Z</CreateDate></Role></GetRoleResult></GetRoleResponse>"""


def decided(refused: dict[str, str]) -> bytes:
    """The simulator's answer: everything that `up` and `down` call is allowed, but for these."""
    names = sorted(actions.load("aws").policy("up"))
    rows = "".join(
        f"<member><EvalActionName>{name}</EvalActionName><EvalResourceName>*</EvalResourceName>"
        f"<EvalDecision>{refused.get(name, 'allowed')}</EvalDecision></member>"
        for name in names
    )
    return (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        f"<SimulatePrincipalPolicyResult><IsTruncated>false</IsTruncated><EvaluationResults>{rows}</EvaluationResults>"
        "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
    ).encode()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """An account with room for 1,000 vCPUs of each kind."""
    for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        quotas_ = {"service-quotas.GetServiceQuota": (200, quota(1000))}
        yield Answers({**quotas_, "service-quotas.ListServiceQuotas": (200, b'{"Quotas": []}')})


def group(machine: str = P4D, count: int = 2, **keys: object) -> PlannedGroup:
    spec = Group.model_validate({"machine": machine, "count": count, **keys})
    return replace(planned_group(machine), spec=spec)


def look(
    region: Region, *groups: PlannedGroup, zones: tuple[str, ...] = (), existing: Collection[str] = (),
    internet: str = "none",
) -> list[Finding]:  # fmt: skip
    return preflight(region, groups or (group(),), zones, own_vpc=True, internet=internet, existing_nodes=existing)


def messages_with_status(findings: list[Finding], status: str) -> str:
    return "\n".join(f"{f.subject}: {f.message} -> {f.action}" for f in findings if f.status == status)


def test_an_account_with_everything_is_fine_and_says_who_it_is(aws: Answers) -> None:
    findings = look(aws.region(), zones=("us-east-1a", "us-east-1b"))
    assert {finding.status for finding in findings} == {"ok"}
    messages = messages_with_status(findings, "ok")
    assert "account 123456789012" in messages
    assert "p4d.24xlarge is sold in us-east-1a, us-east-1b" in messages
    assert "1000 vCPUs, 0 in use, 192 wanted" in messages


def test_nothing_is_changed_by_looking(aws: Answers) -> None:
    look(aws.region())
    assert {call.split(".")[1][:8] for call in aws.asked} <= {"Describe", "GetCalle", "GetServi", "ListServ"}


@pytest.mark.parametrize("machine", [m.name for m in catalog.load().machines("aws") if not m.retired])
def test_every_machine_has_a_quota(machine: str) -> None:
    assert of_machine(machine, "on-demand") is not None


def test_without_credentials_nothing_else_is_asked(aws: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    findings = look(aws.region())
    assert [f.status for f in findings] == ["blocks"]
    assert "aws sso login" in findings[0].action


REFUSALS = {
    "expired": (403, sts_error("ExpiredToken", "The security token included in the request is expired"), "expired"),
    "wrong": (403, sts_error("InvalidClientTokenId", "The security token is invalid."), "invalid"),
    "may nothing": (
        403,
        sts_error("AccessDenied", "User is not authorized to perform sts:GetCallerIdentity"),
        "authorized",
    ),
}


@pytest.mark.parametrize("name", list(REFUSALS))
def test_credentials_that_do_not_work_block(aws: Answers, name: str) -> None:
    status, body, text = REFUSALS[name]
    aws.rules["sts.GetCallerIdentity"] = (status, body)
    findings = look(aws.region())
    assert [f.status for f in findings] == ["blocks"]
    assert text in findings[0].message


def test_a_profile_that_is_not_there(aws: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    findings = look(aws.region())
    assert [f.status for f in findings] == ["blocks"]
    assert "no-such-profile" in findings[0].message


def test_aws_out_of_reach(aws: Answers) -> None:
    aws.rules["sts.GetCallerIdentity"] = UNREACHABLE
    assert "network" in messages_with_status(look(aws.region()), "blocks")


CALLS = ("ec2.DescribeAvailabilityZones", "ec2.DescribeInstanceTypes", "ec2.DescribeInstanceTypeOfferings",
         "ec2.DescribeInstances", "ec2.DescribeVpcs")  # fmt: skip


@pytest.mark.parametrize("call", [*CALLS, "service-quotas.GetServiceQuota"])
@pytest.mark.parametrize("how", ["denied", "throttled", "silent"])
def test_a_question_without_an_answer_is_unknown_and_never_a_pass(aws: Answers, call: str, how: str) -> None:
    body = {
        "denied": (403, ec2_error("UnauthorizedOperation", "You are not authorized to perform this operation.")),
        "throttled": (503, ec2_error("RequestLimitExceeded", "Request limit exceeded.")),
        "silent": SLOW,
    }[how]
    if call.startswith("service") and isinstance(body, tuple):
        code = "AccessDeniedException" if how == "denied" else "TooManyRequestsException"
        body = (400, f'{{"__type": "{code}", "Message": "no"}}'.encode())
    aws.rules[call] = body
    region = aws.region()
    region.client(call.split(".", maxsplit=1)[0]).meta.config.retries["total_max_attempts"] = 1
    findings = look(region)
    assert "blocks" not in {f.status for f in findings}
    messages = messages_with_status(findings, "unknown")
    assert messages
    assert {"denied": "allow ", "throttled": "too often", "silent": "no answer in time"}[how] in messages


def test_a_quota_of_nothing_blocks_with_the_page_where_it_is_raised(aws: Answers) -> None:
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(0))
    messages = messages_with_status(look(aws.region()), "blocks")
    assert "quota Running On-Demand P instances: 0 vCPUs, 0 in use, 192 wanted -> ask for 192 vCPUs" in messages
    assert "servicequotas/home/services/ec2/quotas/L-417A185B" in messages


def test_machines_that_run_are_not_counted_twice(aws: Answers) -> None:
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(192))
    region = aws.region()
    ami = region.ask("ec2", "describe_images")["Images"][0]["ImageId"]
    region.ask("ec2", "run_instances", ImageId=ami, InstanceType=P4D, MinCount=2, MaxCount=2,
               CpuOptions={"CoreCount": 48, "ThreadsPerCore": 2})  # fmt: skip
    used = look(region)
    assert "192 vCPUs, 192 in use, 192 wanted" in messages_with_status(used, "blocks")
    assert messages_with_status(look(region, existing=("train-0", "train-1")), "blocks") == ""


def test_machines_without_gpus_share_their_quota_with_all_standard_families(aws: Answers) -> None:
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(5))
    region = aws.region()
    ami = region.ask("ec2", "describe_images")["Images"][0]["ImageId"]
    for running in ("c5.large", "inf1.xlarge"):  # the second has a quota of its own
        region.ask("ec2", "run_instances", ImageId=ami, InstanceType=running, MinCount=1, MaxCount=1)
    messages = messages_with_status(look(region, group("m6i.xlarge", 1)), "blocks")
    standard = "Standard (A, C, D, H, I, M, R, T, Z)"
    assert f"quota Running On-Demand {standard} instances: 5 vCPUs, 2 in use, 4 wanted" in messages
    assert "servicequotas/home/services/ec2/quotas/L-1216C47A" in messages
    spot = look(region, group("m7i.large", 1, capacity={"kind": "spot"}))
    assert f"quota All {standard} Spot Instance Requests: 5 vCPUs, 0 in use" in messages_with_status(spot, "ok")


def test_a_fleet_that_grows_asks_for_what_is_still_to_be_made(aws: Answers) -> None:
    """Two of three stand: one more needs 96 of the 50 that are left."""
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(50))
    messages = messages_with_status(
        look(aws.region(), group(count=3), existing=("train-0", "train-1", "other-0")), "blocks"
    )
    assert "50 vCPUs, 0 in use, 96 wanted" in messages


@pytest.mark.parametrize(
    ("kinds", "status"),
    [(("spot", "on-demand"), "warning"), (("on-demand", "spot"), "warning"), (("spot",), "blocks"), (("block",), "")],
)
def test_every_way_has_its_quota_and_only_the_last_one_blocks(
    aws: Answers, kinds: tuple[str, ...], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first way has no room, its fallback has."""
    first = of_machine(P4D, kinds[0])
    assert first is not None
    monkeypatch.setattr(
        "provisioner.machines.providers.aws.quotas.allowed", lambda _, aws_quota: 10.0 if aws_quota == first else 1000.0
    )
    reserved = {"id": "cr-0abc"} if kinds[0] == "block" else {}
    values = {"type": P4D, "zone": "us-east-1a", "total": 2, "state": "active", "kind": "capacity-block", "more": ""}
    aws.rules["ec2.DescribeCapacityReservations"] = (200, RESERVATION.format(**values).encode())
    findings = look(aws.region(), group(capacity={"kind": kinds[0], "fallback": kinds[1:], **reserved}))
    own_findings = [f for f in findings if f.subject == f"quota {first.name}"]
    assert [f.status for f in own_findings] == [status or "warning"]
    assert "10 vCPUs, 0 in use, 192 wanted" in own_findings[0].message
    assert ("does not say" in own_findings[0].message) == (kinds[0] == "block")
    assert len([f for f in findings if f.subject.startswith("quota")]) == len(kinds)


def test_all_ways_without_room_block(aws: Answers) -> None:
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(0))
    findings = look(aws.region(), group(capacity={"kind": "spot", "fallback": ("on-demand",)}))
    assert messages_with_status(findings, "blocks").count("quota ") == 2


def listed(code: str, name: str) -> tuple[int, bytes]:
    return 200, json.dumps({"Quotas": [{"QuotaCode": code, "QuotaName": name, "Value": 1}]}).encode()


def test_codes_of_quotas_are_compared_with_the_accounts_own_list(aws: Answers) -> None:
    p_quota = of_machine(P4D, "on-demand")
    assert p_quota is not None
    aws.rules["service-quotas.ListServiceQuotas"] = listed(p_quota.code, p_quota.name)
    assert messages_with_status(look(aws.region()), "warning") == ""
    aws.rules["service-quotas.ListServiceQuotas"] = listed(p_quota.code, "Something else")
    assert f"{p_quota.code} should be {p_quota.name}; the account calls it Something else" in messages_with_status(
        look(aws.region()), "warning"
    )
    aws.rules["service-quotas.ListServiceQuotas"] = listed("L-1", "x")
    assert "the account has no such one" in messages_with_status(look(aws.region()), "warning")
    aws.rules["service-quotas.ListServiceQuotas"] = (400, b'{"__type": "AccessDeniedException"}')
    assert {f.status for f in look(aws.region())} == {"ok"}


def test_quotas_have_codes_of_their_own() -> None:
    assert len({row.code for row in quotas()}) == len(quotas())


def test_a_nat_gateway_needs_an_address(aws: Answers) -> None:
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(0))
    messages = messages_with_status(look(aws.region(), internet="nat"), "blocks")
    assert "elastic IP addresses: limit 0, 0 in use, 1 required" in messages
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(1000))
    assert "elastic IP" not in messages_with_status(look(aws.region(), internet="nat", existing=("train-0",)), "ok")


def test_spot_has_a_quota_of_its_own(aws: Answers) -> None:
    findings = look(aws.region(), group(capacity={"kind": "spot"}))
    assert "Spot Instance Requests" in messages_with_status(findings, "ok")


def test_a_type_that_the_zones_do_not_sell(aws: Answers) -> None:
    messages = messages_with_status(look(aws.region(), group("p6-b200.48xlarge"), zones=("us-east-1a",)), "blocks")
    assert "p6-b200.48xlarge is sold in us-east-1c, not in us-east-1a" in messages
    assert "sites.*.zones: [us-east-1c]" in messages


def test_a_type_that_the_region_does_not_sell(aws: Answers) -> None:
    messages = messages_with_status(look(aws.region("eu-north-1"), group("p6e-gb200.36xlarge", count=1)), "blocks")
    assert "is not sold in eu-north-1" in messages


def test_a_zone_that_is_not_there(aws: Answers) -> None:
    messages = messages_with_status(look(aws.region(), zones=("us-east-1z",)), "blocks")
    assert "us-east-1z cannot be used; us-east-1 has us-east-1a" in messages


def test_no_room_for_a_vpc(aws: Answers) -> None:
    region = aws.region()
    for i in range(5):
        region.ask("ec2", "create_vpc", CidrBlock=f"10.{i}.0.0/16")
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(5))
    assert "6 of 5 are there" in messages_with_status(look(region), "blocks")


RESERVED = {
    "fits": ({}, "ok", "cr-0abc is active, 2 of 2 machines free"),
    "another type": ({"type": "p5.48xlarge"}, "blocks", "is for p5.48xlarge, not p4d.24xlarge"),
    "another zone": ({"zone": "us-east-1f"}, "blocks", "is in us-east-1f, not in us-east-1a"),
    "too small": ({"total": 1}, "blocks", "is for 1 machine, 2 required"),
    "not yet": ({"state": "scheduled"}, "blocks", "is scheduled, it begins 2026-12-01 11:30 UTC"),
    "over": ({"state": "expired"}, "blocks", "is expired"),
    "a block": ({"kind": "capacity-block"}, "blocks", "is a capacity block"),
}


@pytest.mark.parametrize("name", list(RESERVED))
def test_a_reservation_is_looked_at(aws: Answers, name: str) -> None:
    values, status, text = RESERVED[name]
    values_with_defaults = {
        "type": P4D,
        "zone": "us-east-1a",
        "total": 2,
        "state": "active",
        "kind": "default",
        "more": "",
        **values,
    }
    aws.rules["ec2.DescribeCapacityReservations"] = (200, RESERVATION.format(**values_with_defaults).encode())
    reserving_group = group(capacity={"kind": "reservation", "id": "cr-0abc"})
    findings = look(aws.region(), reserving_group, zones=("us-east-1a",))
    assert text in messages_with_status(findings, status)


def reserved(aws: Answers, kind: str, more: str = "") -> None:
    template_values = {"type": P4D, "zone": "us-east-1a", "total": 2, "state": "active", "kind": kind, "more": more}
    aws.rules["ec2.DescribeCapacityReservations"] = (200, RESERVATION.format(**template_values).encode())


@pytest.mark.parametrize(("minutes", "status"), [(180, "ok"), (100, "warning"), (10, "warning")])
def test_a_block_ends_and_its_machines_before_it(aws: Answers, minutes: int, status: str) -> None:
    ends = datetime.now(UTC) + timedelta(minutes=minutes)
    reserved(aws, "capacity-block", f"<endDate>{ends:%Y-%m-%dT%H:%M:%S.000Z}</endDate>")
    block = group(capacity={"kind": "block", "id": "cr-0abc"})
    messages = messages_with_status(look(aws.region(), block), status)
    assert f"its capacity block ends {ends:%Y-%m-%d %H:%M} UTC" in messages
    assert ("in " in messages.partition("on, ")[2]) == (status == "warning")
    end = reservations.end(aws.region(), block)
    assert end is not None and abs(end - ends) < timedelta(seconds=2)
    assert reservations.end(aws.region(), group(capacity={"kind": "reservation", "id": "cr-0abc"})) is None


def test_a_reservation_brings_its_own_placement_group_or_none(aws: Answers) -> None:
    reserving_group = group(capacity={"kind": "reservation", "id": "cr-0abc"}, placement="cluster")
    reserved(aws, "default")
    assert reservations.placement_group(aws.region(), reserving_group) is None
    assert "has no placement group" in messages_with_status(look(aws.region(), reserving_group), "warning")
    arn = "arn:aws:ec2:us-east-1:123456789012:placement-group/theirs"
    reserved(aws, "default", f"<placementGroupArn>{arn}</placementGroupArn>")
    assert reservations.placement_group(aws.region(), reserving_group) == "theirs"
    assert "placement group" not in messages_with_status(look(aws.region(), reserving_group), "warning")
    aws.rules["ec2.DescribeCapacityReservations"] = (403, ec2_error("UnauthorizedOperation", "no"))
    assert reservations.placement_group(aws.region(), reserving_group) is None


PLACE = Place("vision", "here", plans.cluster_spec(P4D).sites["here"], Path("/nonexistent/sites/here"))
MADE = b"""<CreateCapacityReservationResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><capacityReservation>
<capacityReservationId>cr-0abc</capacityReservationId></capacityReservation></CreateCapacityReservationResponse>"""
RELEASED = b"""<CancelCapacityReservationResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><return>true</return>
</CancelCapacityReservationResponse>"""
ZONES = ("us-east-1a", "us-east-1b")


def asked_for(aws: Answers, probed_group: PlannedGroup, count: int = 2) -> tuple[Way | None, list[Finding]]:
    return probe.ask(aws.region(), probed_group, count, ZONES, PLACE)


def test_capacity_is_reserved_and_released_at_once(aws: Answers) -> None:
    aws.rules["ec2.CreateCapacityReservation"] = (200, MADE)
    aws.rules["ec2.CancelCapacityReservation"] = (200, RELEASED)
    option, (finding,) = asked_for(aws, group())
    assert (option, finding.status) == (Way("on-demand", "us-east-1a"), "ok")
    assert "EC2 has 2 × p4d.24xlarge in us-east-1a at this moment" in finding.message
    assert aws.asked == ["ec2.CreateCapacityReservation", "ec2.CancelCapacityReservation"]
    calls = {call.replace(".", ":") for call in aws.asked}
    tagged = {"ec2:CreateTags", "ec2:DescribeCapacityReservations", "sts:DecodeAuthorizationMessage"}
    assert set(actions.load("aws").calls["probe"]) == calls | tagged


def test_a_reservation_that_is_not_released_is_told_with_its_id(aws: Answers) -> None:
    aws.rules["ec2.CreateCapacityReservation"] = (200, MADE)
    aws.rules["ec2.CancelCapacityReservation"] = (403, ec2_error("UnauthorizedOperation", "no"))
    option, findings = asked_for(aws, group())
    assert option is not None
    assert "the reservation cr-0abc could not be released and costs" in messages_with_status(findings, "warning")
    assert "--capacity-reservation-id cr-0abc" in findings[0].action


@pytest.mark.parametrize("answer", [(200, b"<html>502 of a proxy"), (500, ec2_error("InternalError", "try again"))])
def test_a_reservation_without_an_answer_is_looked_for_by_its_request_and_released(
    aws: Answers, answer: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 has made it; it costs, and may keep the very machines from the fleet."""
    aws.rules["ec2.CreateCapacityReservation"] = answer
    aws.rules["ec2.CancelCapacityReservation"] = (200, RELEASED)
    reserved(aws, "default")
    region, sent = aws.region(), list[dict[str, Any]]()
    region.client("ec2").meta.config.retries["total_max_attempts"] = 1
    ask, every = region.ask, region.all

    def noting(service: str, call: str, *key: str, **arguments: Any) -> Any:
        sent.append(arguments)
        return every(service, call, *key, **arguments) if key else ask(service, call, **arguments)

    monkeypatch.setattr(region, "ask", noting)
    monkeypatch.setattr(region, "all", noting)
    option, findings = probe.ask(region, group(), 2, ZONES, PLACE)
    assert (option, [finding.status for finding in findings]) == (None, ["unknown"])
    created, looked, cancelled = sent
    token = created["ClientToken"]
    assert {"Key": probe.REQUEST, "Value": token} in created["TagSpecifications"][0]["Tags"]
    assert looked["Filters"][0] == {"Name": f"tag:{probe.REQUEST}", "Values": [token]}
    assert cancelled == {"CapacityReservationId": "cr-0abc"}


def test_a_reservation_that_may_exist_and_is_not_listed_is_told_with_the_way_to_it(aws: Answers) -> None:
    aws.rules["ec2.CreateCapacityReservation"] = (200, b"<html>502 of a proxy")
    aws.rules["ec2.DescribeCapacityReservations"] = (403, ec2_error("UnauthorizedOperation", "no"))
    option, findings = asked_for(aws, group())
    assert (option, [finding.status for finding in findings]) == (None, ["unknown", "warning"])
    assert "EC2 may have reserved them without answering" in findings[-1].message
    assert f"--filters Name=tag:{probe.REQUEST},Values=" in findings[-1].action


def test_a_request_that_is_repeated_makes_one_reservation(aws: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore repeats one whose answer is lost, by itself; EC2 tells it by its token."""
    monkeypatch.setattr(botocore_stubber, "enabled", False)  # it knows no reservations
    aws.rules["ec2.CancelCapacityReservation"] = (200, RELEASED)
    tokens = list[str]()

    def send(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        tokens.append(parse_qs(request.body)["ClientToken"][0])
        if len(tokens) == 1:
            raise ReadTimeoutError(endpoint_url=request.url)
        answer = AWSResponse(request.url, 200, {}, None)
        answer._content = MADE
        return answer

    region = aws.region()
    region.client("ec2").meta.events.register("before-send.ec2.CreateCapacityReservation", send)
    assert probe.ask(region, group(), 2, ZONES, PLACE)[0] == Way("on-demand", "us-east-1a")
    first, second = tokens
    assert first == second
    probe.ask(region, group(), 2, ZONES, PLACE)
    assert tokens[2] != first, "another request is another reservation"


def test_capacity_that_is_in_no_zone_blocks_where_there_is_no_other_way(aws: Answers) -> None:
    none = ec2_error("InsufficientInstanceCapacity", "We currently do not have sufficient p4d.24xlarge capacity.")
    aws.rules["ec2.CreateCapacityReservation"] = (500, none)
    region = aws.region()
    region.client("ec2").meta.config.retries["total_max_attempts"] = 1
    option, findings = probe.ask(region, group(), 2, ZONES, PLACE)
    assert option is None and [f.status for f in findings] == ["warning", "warning", "blocks"]
    assert "EC2 has not 2 × p4d.24xlarge on demand in us-east-1a, us-east-1b now" in findings[-1].message
    wider = group(capacity={"kind": "on-demand", "fallback": ("spot",)})
    assert [f.status for f in probe.ask(region, wider, 2, ZONES, PLACE)[1]] == ["warning"] * 3


def test_who_may_not_reserve_learns_nothing_and_is_not_blocked(aws: Answers) -> None:
    aws.rules["ec2.CreateCapacityReservation"] = (403, ec2_error("UnauthorizedOperation", "You are not authorized."))
    assert [f.status for f in asked_for(aws, group())[1]] == ["unknown"]
    assert [f.status for f in asked_for(aws, group(capacity={"kind": "spot"}))[1]] == ["unknown"]


def test_a_group_of_reservations_is_not_asked_for_as_one(aws: Answers) -> None:
    arn = "arn:aws:resource-groups:us-east-1:123456789012:group/mine"
    aws.asked.clear()
    messages = messages_with_status(look(aws.region(), group(capacity={"kind": "reservation", "id": arn})), "unknown")
    assert "is a group of reservations" in messages and "there is no" not in messages
    assert "ec2.DescribeCapacityReservations" not in aws.asked


def test_a_reservation_that_is_not_there(aws: Answers) -> None:
    code = "InvalidCapacityReservationId.NotFound"
    aws.rules["ec2.DescribeCapacityReservations"] = (400, ec2_error(code, "The Capacity Reservation does not exist."))
    messages = messages_with_status(
        look(aws.region(), group(capacity={"kind": "reservation", "id": "cr-0abc"})), "blocks"
    )
    assert "there is no reservation cr-0abc in us-east-1" in messages


@pytest.mark.parametrize(("limit", "status"), [(2, "ok"), (1, "blocks")])
def test_public_nodes_with_several_cards_need_an_address_each(aws: Answers, limit: int, status: str) -> None:
    region = aws.region()
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(1000))
    assert "elastic IP" not in messages_with_status(look(region, group("g5.xlarge"), internet="public"), "ok")
    aws.rules["service-quotas.GetServiceQuota"] = (200, quota(limit))
    messages = messages_with_status(look(region, internet="public"), status)
    assert f"elastic IP addresses: limit {limit}, 0 in use, 2 required" in messages


def test_the_policy_in_the_docs_allows_what_is_asked_and_no_more(aws: Answers) -> None:
    template_values = {"type": P4D, "zone": "us-east-1a", "total": 2, "state": "active", "kind": "default", "more": ""}
    aws.rules["ec2.DescribeCapacityReservations"] = (200, RESERVATION.format(**template_values).encode())
    region = aws.region()
    look(region, group(capacity={"kind": "reservation", "id": "cr-0abc"}), internet="public")
    with suppress(GpuprovError):
        image.base_image(region, "ubuntu-24.04")
    aws.rules["sts.GetCallerIdentity"] = (200, IDENTITY.format(arn=ROLE).encode())
    aws.rules["iam.GetRole"] = (200, GET_ROLE)
    aws.rules["iam.SimulatePrincipalPolicy"] = (200, decided({}))
    permissions.simulated(region, "vision", ["ec2:RunInstances"])
    list(permissions.tried(region, [group()], {"train": "ami-0"}, None))
    called_actions = {call.replace("service-quotas.", "servicequotas.").replace(".", ":") for call in aws.asked}
    assert set(actions.load("aws").calls["preflight"]) == called_actions - {
        "sts:GetCallerIdentity"
    }  # which needs no permission


def test_what_the_simulator_refuses_is_a_warning_that_names_it(aws: Answers) -> None:
    aws.rules["sts.GetCallerIdentity"] = (200, IDENTITY.format(arn=ROLE).encode())
    aws.rules["iam.GetRole"] = (200, GET_ROLE)
    aws.rules["iam.SimulatePrincipalPolicy"] = (200, decided({}))
    names = permissions.required(AwsSite(provider="aws", region="us-east-1", internet="public"))
    assert [f.status for f in permissions.simulated(aws.region(), "vision", names)] == ["ok"]
    no = {"ec2:RunInstances": "explicitDeny", "ec2:TerminateInstances": "implicitDeny"}
    aws.rules["iam.SimulatePrincipalPolicy"] = (200, decided(no))
    (finding,) = permissions.simulated(aws.region(), "vision", names)
    assert finding.status == "warning"
    assert "may not ec2:RunInstances, ec2:TerminateInstances" in finding.message
    assert "gpuprov docs aws permissions" in finding.action


def test_an_action_that_the_simulator_says_nothing_of_is_not_allowed(aws: Answers) -> None:
    aws.rules["iam.SimulatePrincipalPolicy"] = (200, decided({}))
    (finding,) = permissions.simulated(aws.region(), "vision", ["ec2:NeverHeardOf"])
    assert finding.status == "warning" and "ec2:NeverHeardOf" in finding.message


def test_whoever_may_not_ask_the_simulator_learns_what_to_allow(aws: Answers) -> None:
    body = sts_error("AccessDenied", "User is not authorized to perform: iam:SimulatePrincipalPolicy")
    aws.rules["iam.SimulatePrincipalPolicy"] = (403, body)
    (finding,) = permissions.simulated(aws.region(), "vision", ["ec2:RunInstances"])
    assert finding.status == "unknown" and "iam:SimulatePrincipalPolicy" in finding.action


def test_no_policy_binds_the_root_of_an_account(aws: Answers) -> None:
    root = IDENTITY.format(arn="arn:aws:iam::123456789012:root").encode()
    aws.rules["sts.GetCallerIdentity"] = (200, root)
    assert permissions.simulated(aws.region(), "vision", ["ec2:RunInstances"]) == []


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("DryRunOperation", "ok", "EC2 would start a machine"),
        ("UnauthorizedOperation", "blocks", "EC2 would start no machine"),
        ("InvalidAMIID.NotFound", "blocks", "is not available"),
        ("VPCIdNotSpecified", "unknown", "no default VPC"),
        ("PendingVerification", "blocks", "ask AWS support"),
        ("RequestLimitExceeded", "unknown", "too often"),
        ("SomethingNew", "unknown", "SomethingNew"),
    ],
)
def test_a_dry_run_of_each_group(aws: Answers, code: str, status: str, text: str) -> None:
    aws.rules["ec2.RunInstances"] = (412 if code == "DryRunOperation" else 400, ec2_error(code, "words of EC2"))
    (finding,) = permissions.tried(aws.region(), [group()], {"train": "ami-0"}, None)
    assert finding.status == status
    assert text in f"{finding.message} {finding.action}"


@pytest.mark.parametrize(
    ("code", "message", "text", "hint"),
    [
        (
            "AuthFailure",
            "Not authorized for images: [ami-0]",
            "image ami-0 is not available",
            "`gpuprov lock --upgrade`",
        ),
        (
            "UnauthorizedOperation",
            "You are not authorized to perform this operation with an explicit deny in a service control policy",
            "EC2 would start no machine",
            "ask who runs the organisation",
        ),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
            "EC2 would start no spot machine",
            "aws iam create-service-linked-role",
        ),
    ],
)
def test_a_dry_run_says_what_can_help(aws: Answers, code: str, message: str, text: str, hint: str) -> None:
    aws.rules["ec2.RunInstances"] = (403, ec2_error(code, message))
    (finding,) = permissions.tried(aws.region(), [group(capacity={"kind": "spot"})], {"train": "ami-0"}, None)
    assert (finding.status, text in finding.message, hint in finding.action) == ("blocks", True, True)
    wider = group(capacity={"kind": "spot", "fallback": ("on-demand",)})
    (finding,) = permissions.tried(aws.region(), [wider], {"train": "ami-0"}, None)
    assert finding.status == ("warning" if "Spot" in message else "blocks")


def test_without_an_image_nothing_is_tried(aws: Answers) -> None:
    assert list(permissions.tried(aws.region(), [group()], {"train": None}, None)) == []


def asked_bucket(region: Region, name: str = "my-data") -> Finding:
    storage_ = {"s3": ({"bucket": name, "path": "/data"}, {"bucket": name, "prefix": "more/", "path": "/more"})}
    site = AwsSite.model_validate({"provider": "aws", "region": "us-east-1", "storage": storage_})
    (finding,) = storage.buckets(region, site)  # a bucket of two mounts is asked for once
    return finding


def test_a_bucket_that_is_there_and_one_that_is_not(aws: Answers) -> None:
    region = aws.region()
    region.client("s3").create_bucket(Bucket="my-data")  # type: ignore[attr-defined]
    assert asked_bucket(region).status == "ok"
    missing_bucket = asked_bucket(region, "my-date")
    assert (missing_bucket.status, missing_bucket.subject, missing_bucket.message) == (
        "blocks",
        "bucket my-date",
        "there is no such bucket",
    )


def test_a_bucket_far_away_is_said(aws: Answers) -> None:
    region = aws.region()
    configuration = {"LocationConstraint": "eu-west-1"}
    region.client("s3").create_bucket(Bucket="my-data", CreateBucketConfiguration=configuration)  # type: ignore[attr-defined]
    finding = asked_bucket(region)
    assert finding.status == "warning" and "it is in eu-west-1, and the nodes are in us-east-1" in finding.message


@pytest.mark.parametrize(("status", "text"), [(403, "not allowed to look"), (503, "503"), (400, "400")])
def test_a_bucket_that_nobody_may_ask_for_is_unknown(aws: Answers, status: int, text: str) -> None:
    aws.rules["s3.HeadBucket"] = (status, b"")
    finding = asked_bucket(aws.region())
    assert (finding.status, text in finding.message) == ("unknown", True)


def test_what_is_asked_of_the_simulator_is_what_the_site_makes() -> None:
    """All that the policy of `up` allows without a limit by name, for a site that has everything."""
    table = actions.load("aws")
    site = {"provider": "aws", "region": "us-east-1", "storage": {"efs": {}, "fsx": {"capacity_gib": 1200}}}
    public = permissions.required(AwsSite.model_validate(site))
    nat = permissions.required(AwsSite.model_validate({**site, "internet": "nat", "connect": "instance-connect"}))
    limited_actions = {name for row in table.statements if row.resource != ("*",) for name in row.actions}
    asked_first = {"iam:GetRole"}
    assert public | nat == table.of_resources(table.resources) - limited_actions - asked_first
    site_in_own_vpc = AwsSite.model_validate(
        {**site, "vpc": {"id": "vpc-00000000", "subnets": ("subnet-00000000",)}, "internet": "nat", "storage": {}}
    )
    assert not [
        name
        for name in permissions.required(site_in_own_vpc)
        if re.search("Vpc$|NatGateway|Address|fsx|elasticfile", name)
    ]
