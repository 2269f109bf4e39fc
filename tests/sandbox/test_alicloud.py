"""A fleet on Alibaba Cloud from nothing to nothing, as its users meet it: gpuprov's own command line, real Terraform
over the provider's real schema, real Ansible and ssh. The cloud is imitated, and its instance is a sandbox node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioner.stack import lockfile
from tests.support.alicloud_api import Account, serving, stock
from tests.support.alicloud_sandbox import attached
from tests.support.aws_machines import Machines
from tests.support.policies import Guard
from tests.support.sandbox_cluster import Done, SandboxCluster, failing, unknown, wrongs
from tests.support.schema_provider import Cloud

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
MACHINE = "ecs.gn7-c13g1.26xlarge"


class OnAlicloud(SandboxCluster):
    """A cluster.yaml that is not sandbox: its machines are ECS's, and those are sandbox nodes."""

    @property
    def root(self) -> Path:
        return self.file.parent / ".gpuprov" / self.name

    def up(self, *arguments: object) -> Done:
        return self.run("up", self.file, "--yes", "--json", *arguments)

    def down(self) -> Done:
        return self.run("down", self.file, "--yes", "--json")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[OnAlicloud, Cloud, Account]]:
    """The example alicloud-gn7, locked; its machine is not made yet."""
    cloud, account = Cloud("alicloud"), Account(
        {"DescribeImages": [{"ImageId": f"ubuntu_{release}_x64_20G_alibase_20260916.vhd"}
                            for release in ("22_04", "24_04")]},
        {"DescribeAvailableResource": stock(MACHINE, cn_shanghai_b="WithStock"),
         "DescribeZones": {"Zones": {"Zone": [{"ZoneId": "cn-shanghai-b"}]}},
         "ListProductQuotas": lambda request: {"Quotas": [
             {"QuotaActionCode": request["QuotaActionCode"], "TotalQuota": 8, "TotalUsage": 0}]}},
    )  # fmt: skip
    sandbox_cluster = OnAlicloud.of_example("alicloud-gn7", tmp_path)
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.alicloud_sandbox"]
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    document["access"] |= {"ssh_key": str(key), "allow": ["203.0.113.0/24"]}
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch, serving(account) as answers, cloud.serving() as terraform:
        for name, value in (answers | terraform).items():
            patch.setenv(name, value)
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        with attached(cloud, account, Machines(tmp_path, sandbox_cluster.name, lock)):
            guard = Guard.over(cloud, "alicloud")
            yield sandbox_cluster, cloud, account
            sandbox_cluster.down()
            own_actions = {name for name, _ in account.calls if ":" in name and ":Delete" not in name}
            assert guard.has_denied(own_actions - {"sts:GetCallerIdentity"}) == set(), "the documented policy is enough"


def test_a_fleet_from_nothing_to_nothing(fleet: tuple[OnAlicloud, Cloud, Account]) -> None:
    sandbox_cluster, cloud, account = fleet
    first = sandbox_cluster.up()
    assert first.status == 0, "\n".join([first.stderr, *wrongs(first)])
    assert first.json["ok"] and failing(first.json) == {} and unknown(first.json) == {}
    (node,) = cloud.of("alicloud_instance")
    assert (node["spot_strategy"], node["tags"]["gpuprov-node"]) == ("SpotAsPriceGo", "train-0")
    event_log = (max((sandbox_cluster.root / "runs").iterdir()) / "events.jsonl").read_text()
    assert any("host key pinned" in event["message"] and "as its console says" in event["message"]
               for event in map(json.loads, event_log.splitlines()))  # fmt: skip

    second = sandbox_cluster.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}

    assert sandbox_cluster.down().status == 0
    assert cloud.objects == {} and account.wrong == []
    secret = [path for path in sandbox_cluster.root.rglob("*") if path.is_file() and b"LTAI-test" in path.read_bytes()]
    assert secret == []
