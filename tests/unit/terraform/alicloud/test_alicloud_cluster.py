"""A cluster.yaml on Alibaba Cloud through gpuprov's own commands and stages, with real Terraform over stand-ins for the
cloud and its API. Nobody logs in to these machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provisioner.cli.main import run
from provisioner.common.errors import ProviderError
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.terraform.binary import find
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import fleet
from provisioner.stack import lockfile
from tests.support.alicloud_api import Account, serving, stock
from tests.support.policies import Guard
from tests.support.schema_provider import Cloud
from tests.unit.stack.conftest import _served, keys, vendors  # noqa: F401 (fixtures)
from tests.unit.stack.test_lock import p4d  # noqa: F401

pytestmark = [pytest.mark.heavy, pytest.mark.heavy]
MACHINE, IMAGE = "ecs.gn7-c13g1.26xlarge", "ubuntu_24_04_x64_20G_alibase_20260916.vhd"
ZONES = {"cn-shanghai-b": "vsw-00000000b", "cn-shanghai-g": "vsw-00000000g"}
NO_STOCK = (
    "[ERROR] terraform-provider-alicloud/alicloud/resource_alicloud_instance.go:850: Resource alicloud_instance "
    "RunInstances Failed!!! [SDK alibaba-cloud-sdk-go ERROR]:\nSDKError:\n   StatusCode: 403\n   Code: "
    "OperationDenied.NoStock\n   Message: code: 403, The requested resource is sold out in the specified zone; try "
    "other types of resources or other regions and zones. request id: 4E64FFCB"
)
FORBIDDEN = (
    "Status Code: 403 Code: Forbidden.RiskControl Message: This operation is forbidden by Aliyun RiskControl system."
)
LATER = "SDKError: StatusCode: 503 Code: ServiceUnavailable Message: code: 503, The request has failed. request id: 1"


@pytest.fixture
def account() -> Account:
    return Account(
        {"DescribeImages": [{"ImageId": IMAGE}],
         "DescribeVSwitches": [
             {"VSwitchId": vswitch, "VpcId": "vpc-00000000", "ZoneId": zone, "AvailableIpAddressCount": 9}
             for zone, vswitch in ZONES.items()]},
        {"DescribeZones": {"Zones": {"Zone": [{"ZoneId": zone} for zone in ZONES]}},
         "DescribeAvailableResource": stock(MACHINE, cn_shanghai_b="WithStock", cn_shanghai_g="WithStock"),
         "ListProductQuotas": lambda request: {"Quotas": [
             {"QuotaActionCode": request["QuotaActionCode"], "TotalQuota": 64, "TotalUsage": 0}]}},
    )  # fmt: skip


@pytest.fixture
def cloud() -> Cloud:
    return Cloud("alicloud")


@pytest.fixture
def file(p4d: Path, account: Account, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """Two gn7 in a VPC that is there, locked."""
    document = yaml.safe_load(p4d.read_text())
    vpc = {"id": "vpc-00000000", "vswitches": ZONES}
    document["sites"] = {
        "shanghai": {"provider": "alicloud", "region": "cn-shanghai", "internet": "nat", "vpc": vpc}
    }  # fmt: skip
    document["groups"] = {"train": {"machine": MACHINE, "count": 2}}
    document["access"] = {"allow": ["203.0.113.0/24"]}
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    with serving(account) as answers, cloud.serving() as terraform:
        for name, value in (answers | terraform).items():
            monkeypatch.setenv(name, value)
        guard = Guard.over(cloud, "alicloud")
        yield p4d
    assert account.wrong == []
    assert guard.has_denied(own_calls(account)) == set(), "the documented policy is enough"


def own_calls(account: Account) -> set[str]:
    """What gpuprov has asked, as RAM names it. A removal is allowed by tag: test_policies.py."""
    names = {name for name, _ in account.calls if ":" in name} - {"sts:GetCallerIdentity"}
    return {name for name in names if ":Delete" not in name}


def opened(file: Path) -> tuple[Cluster, Plan]:
    assert run(["lock", str(file)]) == 0
    cluster = open_cluster(file, sandbox=False)
    return cluster, build_plan(cluster.spec, cluster.lock)


def test_an_image_is_locked_and_a_plan_makes_nothing(
    file: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lock", str(file)]) == 0
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None and lock.bases["shanghai"]["ubuntu-24.04"].id == IMAGE
    capsys.readouterr()
    assert run(["plan", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes"]["shanghai"]["add"] == 5  # two nodes, a security group with a rule, a key pair
    assert cloud.objects == {}
    for path in file.parent.rglob("*"):
        assert path.is_dir() or b"LTAI-test" not in path.read_bytes(), path


def test_machines_are_made_where_there_is_stock_and_stay_there(file: Path, cloud: Cloud) -> None:
    cluster, plan = opened(file)
    heard: list[str] = []
    cluster.events.subscribe(lambda event: heard.append(event.message))
    cloud.fail("alicloud_instance", NO_STOCK, match={"vswitch_id": ZONES["cn-shanghai-b"]})
    site = machines.of_site(cluster, "shanghai", find())
    nodes = site.apply(plan, site.plan(plan))
    assert {machine["vswitch_id"] for machine in cloud.of("alicloud_instance")} == {ZONES["cn-shanghai-g"]}
    assert any(
        "OperationDenied.NoStock for on-demand in cn-shanghai-b, now on-demand in" in message for message in heard
    )
    fleet.save(cluster.paths, nodes)
    site = machines.of_site(cluster, "shanghai", find())
    assert site.plan(plan).total == 0

    # No zone has more: those that stood still stand, and everything that was asked is told.
    wider = replace(plan, groups=tuple(replace(g, spec=g.spec.model_copy(update={"count": 3})) for g in plan.groups))
    cloud.fail("alicloud_instance", NO_STOCK)
    planned = site.plan(wider)
    with pytest.raises(ProviderError, match="cn-shanghai: no capacity for train") as caught:
        site.apply(wider, planned)
    error_text = str(caught.value)
    assert error_text.index("on-demand in cn-shanghai-g: OperationDenied.NoStock (shortage)") < error_text.index(
        "on-demand in cn-shanghai-b: OperationDenied.NoStock (shortage)"
    )
    assert sorted(node.id for node in nodes) == sorted(machine["id"] for machine in cloud.of("alicloud_instance"))


def test_what_another_zone_would_not_mend_stops_and_names_what_stands(file: Path, cloud: Cloud) -> None:
    cluster, plan = opened(file)
    cloud.fail("alicloud_instance", FORBIDDEN, match={"instance_name": "train-1$"})
    site = machines.of_site(cluster, "shanghai", find())
    planned = site.plan(plan)
    with pytest.raises(ProviderError, match=r"Forbidden.RiskControl \(terms\)") as caught:
        site.apply(plan, planned)
    assert "risk control" in str(caught.value.hint) + str(caught.value)
    assert [machine["tags"]["gpuprov-node"] for machine in cloud.of("alicloud_instance")] == ["train-0"]


def test_a_cloud_that_fails_once_is_asked_again(file: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioner.machines.providers.capacity.PAUSE_S", 0.01)
    cluster, plan = opened(file)
    cloud.fail("alicloud_instance", LATER, times=1)
    site = machines.of_site(cluster, "shanghai", find())
    assert len(site.apply(plan, site.plan(plan))) == 2
    assert {machine["vswitch_id"] for machine in cloud.of("alicloud_instance")} == {ZONES["cn-shanghai-b"]}


def test_without_credentials_nothing_is_made(
    file: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.machines.providers.test_alicloud_client import sources

    sources(monkeypatch, file.parent)
    assert run(["lock", str(file)]) == 0
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None and lock.bases["shanghai"]["ubuntu-24.04"].id is None
    capsys.readouterr()
    assert run(["up", str(file), "--yes"]) == 3
    error_text = capsys.readouterr().err
    assert "credentials" in error_text and "ALIBABA_CLOUD_ACCESS_KEY_ID" in error_text and "Traceback" not in error_text
    assert cloud.objects == {}
