"""One file, three clouds: Alibaba Cloud, Azure and Tencent Cloud side by side, each imitated behind its own SDK and
Terraform provider, their machines sandbox nodes. One of them refuses; the others are served all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.stack import lockfile
from tests.sandbox.test_tencent import TYPE as GN10
from tests.sandbox.test_tencent import ZONES, account
from tests.support import alicloud_sandbox, azure_api, azure_machines, tencent_api
from tests.support.alicloud_api import Account, stock
from tests.support.alicloud_api import serving as serving_alicloud
from tests.support.aws_machines import Machines
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs
from tests.support.schema_provider import Cloud
from tests.support.schema_provider.server import serving
from tests.support.tencent_sandbox import MACHINE, boot, end

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
GN7, NC = "ecs.gn7-c13g1.26xlarge", "Standard_NC24ads_A100_v4"
FILE: dict[str, Any] = {
    "sites": {
        "shanghai": {"provider": "alicloud", "region": "cn-shanghai"},
        "east": {"provider": "azure", "region": "eastus", "subscription": azure_api.SUBSCRIPTION},
        "guangzhou": {"provider": "tencent", "region": "ap-guangzhou", "zones": list(ZONES)},
    },
    "groups": {
        "alpha": {"site": "shanghai", "machine": GN7},
        "beta": {"site": "east", "machine": NC},
        "gamma": {"site": "guangzhou", "machine": GN10},
    },
    "access": {"allow": ["203.0.113.0/24"]},
    "monitoring": {"health_check": None},
}


@dataclass
class World:
    fleet: SandboxCluster
    clouds: dict[str, Cloud]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The file, locked; nothing is made yet."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    name = f"t-three-{os.getpid()}"
    document = {"name": name, **FILE, "access": FILE["access"] | {"ssh_key": str(tmp_path / "key")}}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    sandbox_cluster = SandboxCluster(file, name, gpuprov=[sys.executable, "-m", "tests.support.three_clouds_sandbox"])
    clouds = {name: Cloud(name) for name in ("alicloud", "azurerm", "tencentcloud")}
    alicloud, tencent = _alicloud(), account()
    with ExitStack() as open_, pytest.MonkeyPatch.context() as patch:
        azure = open_.enter_context(azure_api.serving(patch))
        azure.skus = [azure_api.sku(NC, "standardNCADSA100v4Family", 24)]
        azure.compute = [azure_api.usage("cores", 0, 500), azure_api.usage("standardNCADSA100v4Family", 0, 200)]
        azure.network = [azure_api.usage("StandardSkuPublicIpAddresses", 0, 20)]
        azure.images["Canonical:ubuntu-24_04-lts:server"] = ["1.0.202511100"]
        environment = open_.enter_context(serving(*clouds.values())) | open_.enter_context(serving_alicloud(alicloud))
        environment |= open_.enter_context(tencent_api.serving(tencent))
        # the sandbox's images are kept at home
        for key, value in (environment | {"ARM": azure.url, "HOME": os.environ["HOME"]}).items():
            patch.setenv(key, value)
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        machines = {}
        for provider in clouds:
            (tmp_path / provider).mkdir()
            machines[provider] = Machines(tmp_path / provider, f"{name}-{provider[:2]}", lock)
            open_.callback(machines[provider].close)
        open_.enter_context(alicloud_sandbox.attached(clouds["alicloud"], alicloud, machines["alicloud"]))
        azure_machines.attach(clouds["azurerm"], azure, machines["azurerm"])
        clouds["tencentcloud"].on_created = partial(boot, machines["tencentcloud"], tencent)
        clouds["tencentcloud"].on_deleted = partial(end, machines["tencentcloud"], tencent)
        yield World(sandbox_cluster, clouds)
        sandbox_cluster.run("down", sandbox_cluster.file, "--yes")


def _alicloud() -> Account:
    return Account(
        {"DescribeImages": [{"ImageId": f"ubuntu_{release}_x64_20G_alibase_20260916.vhd"}
                            for release in ("22_04", "24_04")]},
        {"DescribeAvailableResource": stock(GN7, cn_shanghai_b="WithStock"),
         "DescribeZones": {"Zones": {"Zone": [{"ZoneId": "cn-shanghai-b"}]}},
         "ListProductQuotas": lambda request: {"Quotas": [
             {"QuotaActionCode": request["QuotaActionCode"], "TotalQuota": 8, "TotalUsage": 0}]}},
    )  # fmt: skip


def test_a_cloud_that_refuses_takes_no_other_down(world: World) -> None:
    fleet, clouds = world.fleet, world.clouds
    error_text = "Code=LimitExceeded.InstanceQuota, Message=Specified instance quota is exceeded., RequestId=1"
    clouds["tencentcloud"].fail(MACHINE, f"[TencentCloudSDKError] {error_text}")
    up = fleet.run("up", fleet.file, "--yes", "--json")
    assert up.status == 3, up.stderr
    assert up.json["failed"].keys() == {"guangzhou"}
    assert "LimitExceeded.InstanceQuota" in str(up.json["failed"]["guangzhou"])
    assert {n["name"] for n in up.json["nodes"]} == {"alpha-0", "beta-0"}
    assert failing(up.json) == {}, wrongs(up)
    assert len(clouds["alicloud"].of("alicloud_instance")) == len(clouds["azurerm"].of(azure_machines.VM)) == 1

    down = fleet.run("down", fleet.file, "--yes", "--json")
    assert down.status == 0, down.stderr
    assert {name: cloud.objects for name, cloud in clouds.items()} == {name: {} for name in clouds}
