"""A fleet at Azure from nothing to nothing, as its users meet it: gpuprov's own command line, real Terraform against
azurerm's real schema, real Ansible and ssh. Azure Resource Manager is on loopback, its machines are sandbox nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioner.stack import lockfile
from tests.support import azure_api
from tests.support.aws_machines import Machines
from tests.support.azure_api import SUBSCRIPTION, Api, sku, usage
from tests.support.azure_machines import VM, attach
from tests.support.policies import Guard
from tests.support.sandbox_cluster import Done, SandboxCluster, failing, unknown, wrongs
from tests.support.schema_provider import Cloud

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
ND = "Standard_ND96asr_v4"
HPC = "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026072901"


class OnAzure(SandboxCluster):
    """A cluster.yaml that is not sandbox: its machines are Azure's, and those are sandbox nodes."""

    @property
    def root(self) -> Path:
        return self.file.parent / ".gpuprov" / self.name

    def up(self, *arguments: object) -> Done:
        return self.run("up", self.file, "--yes", "--json", *arguments)

    def down(self) -> Done:
        return self.run("down", self.file, "--yes", "--json")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OnAzure, Cloud, Api]]:
    """The example azure-ndv4 with two nodes that boot Azure's own HPC image, locked; they are not made yet."""
    folder = tmp_path_factory.mktemp("azure")
    example = SandboxCluster.of_example("azure-ndv4", folder, count=2)
    sandbox_cluster = OnAzure(example.file, example.name)
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.azure_sandbox"]
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    document["access"] |= {"ssh_key": str(key), "allow": ["203.0.113.0/24"]}
    document["sites"]["east"]["subscription"] = SUBSCRIPTION
    document["groups"]["train"] |= {"base": "vendor-hpc", "storage": {}}
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    cloud = Cloud("azurerm")
    with pytest.MonkeyPatch.context() as patch, azure_api.serving(patch) as api, cloud.serving() as environment:
        api.skus = [sku(ND, "standard NDASv4_A100 Family", 96, RdmaEnabled="True")]
        api.compute = [usage("cores", 0, 500), usage("StandardNDASv4_A100Family", 0, 200)]
        api.network = [usage("StandardSkuPublicIpAddresses", 0, 20)]
        api.images["microsoft-dsvm:ubuntu-hpc:2404"] = ["24.04.2026072901", "24.04.2026092501"]
        for name, value in {**environment, "ARM": api.url}.items():
            patch.setenv(name, value)
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        vendor = lock.groups["train"].vendor
        assert vendor is not None and vendor.base is not None and vendor.base.id == HPC
        machines = Machines(folder, sandbox_cluster.name, lock)
        attach(cloud, api, machines)
        guard = Guard.over(cloud, "azure")
        try:
            yield sandbox_cluster, cloud, api
            sandbox_cluster.down()
            own_permissions = {azure_api.permission(method, path) for method, path in api.calls}
            assert guard.has_denied(own_permissions) == set(), "the documented role is enough"
        finally:
            machines.close()


def test_a_fleet_from_nothing_to_nothing(fleet: tuple[OnAzure, Cloud, Api]) -> None:
    """In order, as a person would; each step needs the one before."""
    sandbox_cluster, cloud, api = fleet
    planned = sandbox_cluster.run("plan", sandbox_cluster.file, "--json")
    assert planned.status == 0, planned.stderr
    assert planned.json["changes"]["east"]["add"] > 10
    assert {"status": "ok", "subject": "group train"}.items() <= {
        key: value for row in planned.json["findings"] if row["subject"] == "group train" for key, value in row.items()
    }.items()
    assert cloud.objects == {}

    first = sandbox_cluster.up()
    assert first.status == 0, "\n".join([first.stderr, *wrongs(first)])
    assert first.json["ok"] and first.json["simulated"]
    assert failing(first.json) == {} and unknown(first.json) == {}
    status_by_check = {c["id"]: c["status"] for n in first.json["nodes"] for c in n["checks"]}
    assert (status_by_check["image.parts"], status_by_check["driver.version"], status_by_check["packages.drift"]) == (
        "pass",
    ) * 3
    nodes = {machine["name"]: machine for machine in cloud.of(VM)}
    assert set(nodes) == {"train-0", "train-1"}
    assert {machine["source_image_reference"][0]["offer"] for machine in nodes.values()} == {"ubuntu-hpc"}
    assert len({machine["availability_set_id"] for machine in nodes.values()} - {None}) == 1
    events = (max((sandbox_cluster.root / "runs").iterdir()) / "events.jsonl").read_text().splitlines()
    pinned = [event["message"] for event in map(json.loads, events) if "host key pinned" in event["message"]]
    assert len(pinned) == 2 and all("as its console says" in message for message in pinned)
    status = sandbox_cluster.run("status", sandbox_cluster.file, "--json").json
    assert [(n["stage"], n["ok"]) for n in status["nodes"]] == [("verified", True)] * 2

    second = sandbox_cluster.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}

    # A machine that Azure evicts is gone, and the next plan says which.
    evicted = nodes["train-1"]
    del cloud.objects[VM, evicted["id"]]
    assert cloud.on_deleted is not None
    cloud.on_deleted(VM, evicted)
    planned = sandbox_cluster.run("plan", sandbox_cluster.file, "--json")
    assert planned.json["changes"]["east"]["add"] == 1, planned.stderr

    assert sandbox_cluster.down().status == 0
    assert (cloud.objects, api.resources) == ({}, [])
