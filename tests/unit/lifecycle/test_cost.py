"""What machines cost, offline: list prices, sums, regions, and everything that is not known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner import catalog
from provisioner.catalog.models import Machine
from provisioner.cli.main import run
from provisioner.common.text import money
from provisioner.lifecycle import cost
from provisioner.lifecycle.cost import Wanted, offer, totals
from provisioner.lifecycle.cost.document import document
from provisioner.lifecycle.cost.regions import compare
from provisioner.spec import schema
from tests.support.sandbox_cluster import ROOT


def machine(name: str) -> Machine:
    return catalog.load().machine(name)


def cost_report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["cost", *arguments, "--offline", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema.schema("cost"))
    return report


WAYS = {
    "on demand": ("p4d.24xlarge", "us-east-1", "on-demand", 21.9576, ""),
    "a reservation is paid like on demand": ("p4d.24xlarge", "us-east-1", "reservation", 21.9576, ""),
    "spot moves": ("p4d.24xlarge", "us-east-1", "spot", None, "moves with the market"),
    "a block has its own": ("p5.48xlarge", "us-east-1", "block", None, "as a whole when it is bought"),
    "no such region": ("p4d.24xlarge", "sa-east-1", "on-demand", None, "no list price of p4d.24xlarge in sa-east-1"),
    "blocks only": ("p5e.48xlarge", "us-east-2", "on-demand", None, "sold by capacity blocks"),
    "one's own": ("dgx-h100", "", "on-demand", None, "gpuprov buys nothing"),
}


@pytest.mark.parametrize("name", list(WAYS))
def test_a_price_is_the_list_price_or_unknown_with_the_reason(name: str) -> None:
    which, region, kind, each, reason = WAYS[name]
    price = offer(machine(which), region, kind)
    assert price.each == each
    assert reason in price.unknown
    assert (price.date and price.source and price.currency) or each is None


def test_currencies_are_never_added_up() -> None:
    dollar_offer, yuan_offer = offer(machine("g5.xlarge"), "us-east-1"), offer(machine("g5.xlarge"), "cn-north-1")
    dollars, yuan = totals(
        [("a", 2, dollar_offer), ("b", 3, yuan_offer), ("c", 1, offer(machine("g5.xlarge"), "nowhere-1"))]
    )
    assert (dollars.currency, round(dollars.hour, 4), dollars.groups) == ("USD", 2.012, ("a",))
    assert (yuan.currency, round(yuan.hour, 4), yuan.groups) == ("CNY", 28.5417, ("b",))
    assert dollars.month == dollars.hour * 730


def test_regions_are_cheapest_first_and_only_where_all_machines_have_a_price() -> None:
    fleet = [Wanted(machine("p4d.24xlarge"), "us-east-1", 4), Wanted(machine("g6.xlarge"), "us-east-1", 1)]
    assert [region_cost.region for region_cost in compare(fleet)] == ["us-east-1", "us-gov-west-1"]
    hours = [region_cost.sums[0].hour for region_cost in compare([fleet[0]])]
    assert hours == sorted(hours) and len(hours) == 13


def test_a_region_that_is_asked_for_is_there_also_without_a_price() -> None:
    priced, without = compare([Wanted(machine("p4d.24xlarge"))], ["sa-east-1", "us-east-1"])
    assert (priced.region, without.region) == ("us-east-1", "sa-east-1")
    assert without.sums == () and without.missing == ("p4d.24xlarge",)
    report = document([Wanted(machine("p4d.24xlarge"))], [without], None).to_json()
    assert report["regions"][0]["hour"] is None
    assert report["regions"][0]["unknown"] == "no list price of p4d.24xlarge is known there"


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_has_a_price_or_says_why_not(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = cost_report(capsys, str(file))
    assert report["asked"] is False
    for group in report["groups"]:
        for option in group["ways"]:
            assert (option["each"] is None) == bool(option["unknown"])
            assert option["each"] != 0
    assert run(["cost", str(file), "--offline"]) == 0
    assert "0.00" not in capsys.readouterr().out


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    report = cost_report(capsys, str(ROOT / "examples" / "aws-p4d.yaml"))
    spot, fallback = report["groups"][0]["ways"]
    assert (spot["each"], spot["action"]) == (None, "`gpuprov cost` asks, without --offline")
    assert (fallback["each"], fallback["hour"], fallback["month"]) == (21.9576, 87.8304, 64116.19)
    assert fallback["date"] == "2026-07-20"
    assert report["totals"]["wanted"] == {"sums": [], "unknown": ["train"]}
    assert report["totals"]["on_demand"]["sums"][0]["hour"] == 87.8304
    assert "4 root volumes of 200 GB (train)" in report["not_included"]


def test_machines_of_ones_own_cost_nothing_here_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", str(ROOT / "examples" / "dgx-h100.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["lab: 2 × dgx-h100: your own machines cost nothing here: gpuprov buys nothing"]


def test_one_machine(capsys: pytest.CaptureFixture[str]) -> None:
    report = cost_report(capsys, "--machine", "p5.48xlarge", "--region", "us-west-2")
    assert report["groups"] == []
    assert [(p["region"], p["hour"], p["month"]) for p in report["regions"]] == [("us-west-2", 55.04, 40179.2)]
    assert run(["cost", "--machine", "p5e.48xlarge", "--offline"]) == 0
    assert "unknown: sold by capacity blocks" in capsys.readouterr().out


WRONG = {
    "neither": ([], "a cluster.yaml or --machine is needed"),
    "both": (["cluster.yaml", "--machine", "p4d.24xlarge"], "and not both"),
    "no such machine": (["--machine", "p4d.24xlarg"], "did you mean p4d.24xlarge"),
    "no such region": (["--machine", "p4d.24xlarge", "--region", "virginia"], "--region virginia"),
    "no such file": (["nowhere.yaml"], "nowhere.yaml"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_can_not_be_meant_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[name]
    assert run(["cost", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_offline_imports_no_cloud() -> None:
    code = (
        "import sys; from provisioner.cli.main import run; "
        "run(['cost', '--machine', 'p4d.24xlarge', '--offline']); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


def test_amounts_are_read_easily() -> None:
    assert money(0.526, "USD") == "0.5260 USD"
    assert money(64116.19, "USD") == "64,116 USD"
    assert cost.as_of(["2026-07-20", "2025-11..2026-08"]) == "2025-11 to 2026-08, 2026-07-20"
