"""What spot costs and has cost on Alibaba Cloud, and which zones sell a machine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.machines.providers.alicloud import client
from provisioner.machines.providers.alicloud.market import Ecs
from provisioner.machines.providers.market import Unanswered
from tests.support.alicloud_api import Account, Refusal, serving, stock

MACHINE = "ecs.gn7-c13g1.26xlarge"


def change(zone: str, price: float, days: float) -> dict[str, Any]:
    when = datetime.now(UTC) - timedelta(days=days)
    return {"ZoneId": zone, "InstanceType": MACHINE, "Timestamp": f"{when:%Y-%m-%dT%H:%M:%SZ}", "SpotPrice": price,
            "OriginPrice": 252.66, "NetworkType": "vpc", "IoOptimized": "optimized"}  # fmt: skip


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    served_account = Account()
    with serving(served_account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "PAUSE_S", 0.01)
        yield served_account
    assert served_account.wrong == []


def test_prices_of_every_page_in_the_accounts_currency(account: Account) -> None:
    pages = [[change("cn-shanghai-b", 25.3, 6), change("cn-shanghai-g", 252.66, 5)], [change("cn-shanghai-b", 30.0, 1)]]

    def answer(request: dict[str, str]) -> dict[str, Any]:
        first = request["Offset"] == "0"
        return {"Currency": "CNY", "NextOffset": 2 if first else 3, "SpotPrices": {
            "SpotPriceType": pages[0] if first else pages[1] if request["Offset"] == "2" else []}}  # fmt: skip

    account.answers["DescribeSpotPriceHistory"] = answer
    b, g = Ecs().spot("cn-shanghai", MACHINE, 7)
    assert (b.zone, b.now, b.low, b.median, b.high, b.currency) == ("cn-shanghai-b", 30.0, 25.3, 25.3, 30.0, "CNY")
    assert (g.zone, g.now) == ("cn-shanghai-g", 252.66)
    requests = account.asked("DescribeSpotPriceHistory")
    assert [request["Offset"] for request in requests] == ["0", "2", "3"] and requests[0]["NetworkType"] == "vpc"


def test_zones_that_sell_it_and_who_asks_is_asked_once(account: Account) -> None:
    account.answers["DescribeAvailableResource"] = stock(
        MACHINE, cn_shanghai_g="WithStock", cn_shanghai_b="WithoutStock"
    )
    market = Ecs()
    assert market.zones("cn-shanghai", MACHINE) == ["cn-shanghai-b", "cn-shanghai-g"]
    assert market.zones("us-east-1", MACHINE) and account.counted()["GetCallerIdentity"] == 1


@pytest.mark.parametrize(
    ("action", "refusal", "message"),
    [
        ("GetCallerIdentity", Refusal("InvalidAccessKeyId.NotFound", "It is not found.", 404), "not signed in"),
        ("DescribeSpotPriceHistory", Refusal("Forbidden.RAM", "User not authorized."), "not allowed to look"),
        ("DescribeSpotPriceHistory", Refusal("Throttling", "Slow down.", 400), "asked too often"),
    ],
)
def test_a_question_without_an_answer_says_why(account: Account, action: str, refusal: Refusal, message: str) -> None:
    account.answers[action] = refusal
    with pytest.raises(Unanswered, match=message) as caught:
        Ecs().spot("cn-shanghai", MACHINE, 7)
    assert caught.value.action
