"""A machine on Tencent Cloud from nothing to nothing, as its users meet it: gpuprov's own command line, real Terraform
with the provider's schema, real Ansible and ssh. Its instance is a sandbox node; the account is on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from provisioner.stack import lockfile
from tests.support.aws_machines import Machines
from tests.support.policies import Guard
from tests.support.sandbox_cluster import SandboxCluster, wrongs
from tests.support.schema_provider import Cloud
from tests.support.tencent_api import TencentApi, serving
from tests.support.tencent_sandbox import MACHINE, boot, end

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TYPE = "GN10Xp.20XLARGE320"
ZONES = ("ap-guangzhou-3", "ap-guangzhou-4")


def account() -> TencentApi:
    """One that sells the machine in two zones, and has its image."""
    sold = [{"Zone": zone, "InstanceType": TYPE, "Status": "SELL", "StatusCategory": "EnoughStock"} for zone in ZONES]
    names = {"img-487zeit5": "Ubuntu Server 22.04 LTS 64bit", "img-mmytdhbn": "Ubuntu Server 24.04 LTS 64bit"}
    images = [{"ImageId": number, "ImageName": name, "Architecture": "x86_64"} for number, name in names.items()]
    return TencentApi(answers={
        "DescribeZones": {"ZoneSet": [{"Zone": zone, "ZoneState": "AVAILABLE"} for zone in ZONES]},
        "DescribeZoneInstanceConfigInfos": {"InstanceTypeQuotaSet": sold},
        "DescribeAccountQuota": {"AccountQuotaOverview": {"AccountQuota": {
            "PostPaidQuotaSet": [{"Zone": ZONES[0], "RemainingQuota": 500}]}}},
        "DescribeVpcLimits": {"VpcLimitSet": [{"LimitType": "appid-max-vpcs", "LimitValue": 20}]},
        "RunInstances": {"InstanceIdSet": []}, "DescribeImages": {"TotalCount": 2, "ImageSet": images},
    })  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[SandboxCluster, Cloud, TencentApi]]:
    """The example, locked; its machine is not made yet."""
    sandbox_cluster = SandboxCluster.of_example("tencent-gn10xp", tmp_path, count=1)
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.tencent_sandbox"]
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    document["access"] = {"allow": ["203.0.113.0/24"]}
    document["sites"]["guangzhou"]["zones"] = list(ZONES)
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    cloud, api = Cloud("tencentcloud"), account()
    with pytest.MonkeyPatch.context() as patch, serving(api) as api_environment, cloud.serving() as terraform:
        home = {"HOME": os.environ["HOME"]}  # the sandbox's images are kept there
        for name, value in (api_environment | terraform | home).items():
            patch.setenv(name, value)
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        machines = Machines(tmp_path, sandbox_cluster.name, lock)
        cloud.on_created, cloud.on_deleted = partial(boot, machines, api), partial(end, machines, api)
        guard = Guard.over(cloud, "tencent")
        try:
            yield sandbox_cluster, cloud, api
            assert guard.has_denied(api.actions()) == set(), "the documented policy is enough"
        finally:
            sandbox_cluster.run("down", sandbox_cluster.file, "--yes")
            machines.close()


def test_a_fleet_is_made_proven_and_removed(fleet: tuple[SandboxCluster, Cloud, TencentApi]) -> None:
    sandbox_cluster, cloud, api = fleet
    error_text = "Code=ResourcesSoldOut.SpecifiedInstanceType, Message=指定的实例类型已售罄。, RequestId=1"
    cloud.fail(MACHINE, f"[TencentCloudSDKError] {error_text}", match={"availability_zone": "ap-guangzhou-3"})
    planned = sandbox_cluster.run("plan", sandbox_cluster.file)
    assert planned.status == 0, planned.stderr
    assert cloud.calls == [], "a plan makes nothing"
    up = sandbox_cluster.run("up", sandbox_cluster.file, "--yes", "--json")
    assert up.status == 0, up.stderr
    assert wrongs(up) == []
    assert {machine["availability_zone"] for machine in cloud.of(MACHINE)} == {"ap-guangzhou-4"}, (
        "the next zone had them"
    )
    call_count = len(cloud.calls)
    second = sandbox_cluster.run("up", sandbox_cluster.file, "--yes", "--json")
    assert second.status == 0, second.stderr
    assert len(cloud.calls) == call_count, "a second up changes nothing"
    down = sandbox_cluster.run("down", sandbox_cluster.file, "--yes", "--json")
    assert down.status == 0, down.stderr
    assert cloud.objects == {} and api.things["instance"] == []
