"""EC2's market: zones that sell, spot's history, and questions without an answer, in AWS's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from moto import mock_aws

from provisioner.cli.main import run
from provisioner.common import extras
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.cost import Wanted, parallel_queries, regions
from provisioner.lifecycle.cost.document import document
from provisioner.lifecycle.cost.regions import market_of
from provisioner.machines.providers import actions
from provisioner.machines.providers.aws import market as ec2_market
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.market import Ec2
from provisioner.machines.providers.market import Unanswered, history
from provisioner.spec import schema
from tests.support.aws_answers import SLOW, UNREACHABLE, Answers, ec2_error, sts_error

P4D = "p4d.24xlarge"
NOW = datetime.now(UTC).replace(microsecond=0)


def change(zone: str, price: float, days_ago: float) -> dict[str, Any]:
    return {"AvailabilityZone": zone, "SpotPrice": f"{price:.6f}", "Timestamp": NOW - timedelta(days=days_ago)}


def answer(*changes: dict[str, Any]) -> tuple[int, bytes]:
    """EC2's own body."""
    items = "".join(
        f"<item><instanceType>{P4D}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{c['SpotPrice']}</spotPrice><timestamp>{c['Timestamp'].isoformat()}</timestamp>"
        f"<availabilityZone>{c['AvailabilityZone']}</availabilityZone></item>"
        for c in changes
    )
    return 200, (
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>x</requestId>'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/></DescribeSpotPriceHistoryResponse>"
    ).encode()


CHANGES = (
    change("us-east-1a", 8.0, 9), change("us-east-1a", 10.0, 6), change("us-east-1a", 12.0, 0.5),
    change("us-east-1b", 21.9576, 8),
)  # fmt: skip


ANSWERS = Answers()
HERE = ANSWERS.region("us-east-1")
"""For all tests: reading EC2's description takes longer than most of them."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        ANSWERS.rules.clear()
        ANSWERS.asked.clear()
        ANSWERS.rules["ec2.DescribeSpotPriceHistory"] = answer(*CHANGES)
        monkeypatch.setattr(ec2_market, "market", lambda: Ec2(HERE.in_region))
        yield ANSWERS


def plain(rows: Sequence[dict[str, Any]]) -> list[tuple[str, datetime, float]]:
    return [(row["AvailabilityZone"], row["Timestamp"], float(row["SpotPrice"])) for row in rows]


def test_a_price_weighs_as_long_as_it_held() -> None:
    a, b = history(plain(CHANGES), NOW - timedelta(days=7), NOW, "USD")
    assert (a.zone, a.now, a.low, a.median, a.high) == ("us-east-1a", 12.0, 8.0, 10.0, 12.0)
    assert (b.zone, b.now, b.low, b.median, b.high) == ("us-east-1b", 21.9576, 21.9576, 21.9576, 21.9576)


def test_a_price_that_ended_before_the_days_is_not_in_them() -> None:
    rows = [change("z", 1.0, 30), change("z", 5.0, 10), change("z", 6.0, 1)]
    (zone,) = history(plain(rows), NOW - timedelta(days=7), NOW, "USD")
    assert (zone.low, zone.high) == (5.0, 6.0)


def test_no_history_is_no_price() -> None:
    assert history([], NOW - timedelta(days=7), NOW, "USD") == []


def test_zones_and_spot_of_a_region(aws: Answers) -> None:
    ec2 = Ec2(HERE.in_region)
    assert ec2.zones("us-east-1", P4D) == ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d"]
    assert [price.zone for price in ec2.spot("us-east-1", P4D, 7)] == ["us-east-1a", "us-east-1b"]
    assert aws.asked.count("sts.GetCallerIdentity") == 1


def test_only_looking(aws: Answers) -> None:
    fleet = [Wanted(machine("p4d.24xlarge"))]
    regions.listen(fleet, regions.compare(fleet, ["us-east-1"]), spot=True)
    called_actions = {call.replace(".", ":") for call in aws.asked} - {"sts:GetCallerIdentity"}
    assert set(actions.load("aws").calls["cost"]) == called_actions


def machine(name: str) -> Any:
    from provisioner import catalog

    return catalog.load().machine(name)


REFUSALS: dict[str, tuple[str, Any, str, str]] = {
    "expired": ("sts.GetCallerIdentity", (403, sts_error("ExpiredToken", "The security token is expired")),
                "not signed in: they have expired", "aws sso login"),
    "denied": ("ec2.DescribeSpotPriceHistory", (403, ec2_error("UnauthorizedOperation", "You are not authorized.")),
               "not allowed to look", "allow ec2:DescribeSpotPriceHistory"),
    "throttled": ("ec2.DescribeSpotPriceHistory", (503, ec2_error("RequestLimitExceeded", "Request limit exceeded.")),
                  "asked too often", "run it again"),
    "silent": ("ec2.DescribeSpotPriceHistory", SLOW, "no answer in time", "run it again"),
    "a proxy's page": ("sts.GetCallerIdentity", (200, b"<p>sign in<br>"), "does not speak as AWS", "run it again"),
    "nothing at all": ("ec2.DescribeSpotPriceHistory", (200, b""), "does not speak as AWS", "run it again"),
    "no network": ("sts.GetCallerIdentity", UNREACHABLE, "no answer in time", "run it again"),
}  # fmt: skip


def once(name: str) -> Region:
    """A region whose questions are not asked again."""
    region = HERE.in_region(name)
    region.client("ec2").meta.config.retries["total_max_attempts"] = 1
    return region


@pytest.mark.parametrize("name", list(REFUSALS))
def test_what_was_not_answered_is_unknown_with_the_reason_and_no_price(aws: Answers, name: str) -> None:
    call, rule, reason, action = REFUSALS[name]
    aws.rules[call] = rule
    fleet = [Wanted(machine(P4D), "us-east-1", 4, ("spot", "on-demand"), "train", "virginia", ("us-east-1a",))]
    heard = regions.listen(fleet, [], spot=False, of=lambda _: Ec2(once))
    report = document(fleet, [], heard).to_json()
    spot, on_demand = report["groups"][0]["ways"]
    assert spot["each"] is None and spot["hour"] is None
    assert reason in spot["unknown"]
    assert action in spot["action"]
    assert report["groups"][0]["spot"]["zones"] is None
    assert on_demand["hour"] == 87.8304
    assert report["totals"]["wanted"] == {"sums": [], "unknown": ["train"]}


def test_credentials_of_one_partition_do_not_ask_another(aws: Answers) -> None:
    ec2 = Ec2(HERE.in_region)
    assert ec2.zones("us-east-1", P4D)
    with pytest.raises(Unanswered, match="us-gov-west-1 is in aws-us-gov, these credentials are of aws"):
        ec2.zones("us-gov-west-1", P4D)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    never = threading.Event()
    results = parallel_queries.answers({"slow": never.wait, "quick": lambda: True}, deadline_s=0.2)
    never.set()
    assert results["quick"] is True
    assert isinstance(results["slow"], Unanswered)
    assert "no answer in 0.2 s" in results["slow"].message


def test_a_missing_sdk_is_no_answer_and_says_how_to_go_on() -> None:
    def query() -> bool:
        raise GpuprovError("Tencent Cloud's SDK is not installed", hint=extras.install("tencent"))

    result = parallel_queries.answers({"spot": query})["spot"]
    assert isinstance(result, Unanswered)
    assert (result.message, result.action) == (
        "Tencent Cloud's SDK is not installed", "in gpuprov's checkout: pip install '.[tencent]', or give --offline",
    )  # fmt: skip


def test_a_defect_is_not_taken_for_silence() -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel_queries.answers({"broken": broken})


def test_who_sells_nothing_has_no_market() -> None:
    assert market_of("baremetal") is None
    assert isinstance(market_of("aws"), Ec2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: vision\nsites: {virginia: {provider: aws, region: us-east-1, zones: [us-east-1b, us-east-1a]}}\n"
        f"groups: {{train: {{machine: {P4D}, count: 4, capacity: {{kind: spot, fallback: [on-demand]}}}}}}\n"
    )
    return path


def test_cost_tells_spot_of_the_zone_that_is_tried_first_and_every_region(
    aws: Answers, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["--region", "us-east-1", "--region", "us-west-2", "--region", "us-gov-west-1"]
    assert run(["cost", str(file), "--json", *some]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema.schema("cost"))
    spot = report["groups"][0]["ways"][0]
    assert (spot["zone"], spot["each"], spot["hour"]) == ("us-east-1b", 21.9576, 87.8304)
    assert [zone["saving"] for zone in report["groups"][0]["spot"]["zones"]] == [0.4535, 0.0]
    machine_by_region = {region_report["region"]: region_report["machines"][0] for region_report in report["regions"]}
    assert machine_by_region["us-east-1"]["zones"] == ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d"]
    assert machine_by_region["us-gov-west-1"]["zones"] is None
    assert "these credentials are of aws" in machine_by_region["us-gov-west-1"]["unknown"]
    assert run(["cost", str(file), *some]) == 0
    text = capsys.readouterr().out
    assert "us-east-1a  12.00 USD   8.00 USD  10.00 USD  12.00 USD    45%" in text
    assert "the price in us-east-1b now" in text


def test_a_zone_that_had_no_spot_price_is_unknown(aws: Answers, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aws.rules["ec2.DescribeSpotPriceHistory"] = answer(change("us-east-1f", 8.0, 1))
    assert run(["cost", str(file), "--json", "--region", "us-east-1"]) == 0
    spot = json.loads(capsys.readouterr().out)["groups"][0]["ways"][0]
    assert spot["each"] is None
    assert spot["unknown"] == "us-east-1b, us-east-1a has had no spot price of it for 7 days"
