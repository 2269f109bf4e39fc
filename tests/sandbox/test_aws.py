"""A fleet on AWS from nothing to nothing, as its users meet it: gpuprov's own command line, the real provider, real
Ansible and ssh. EC2 and S3 are moto, and its instances are sandbox nodes. Two operators work on it, each in a folder
of their own; what they share is in S3."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.machines.terraform.binary import find as find_terraform
from provisioner.sandbox import faults
from provisioner.stack import lockfile
from tests.support import aws_provider, moto_aws, terraform_plugins
from tests.support.aws_machines import Machines, behind_moto
from tests.support.moto_aws import Cloud
from tests.support.run_processes import until
from tests.support.sandbox_cluster import Done, SandboxCluster, failing, unknown, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(6)]
BUCKET = "acme-gpuprov"


class OnAws(SandboxCluster):
    """A cluster.yaml that is not sandbox: its machines are EC2's, and those are sandbox nodes."""

    @property
    def root(self) -> Path:
        return self.file.parent / ".gpuprov" / self.name

    def up(self, *arguments: object) -> Done:
        return self.run("up", self.file, "--yes", "--json", *arguments)

    def down(self) -> Done:
        return self.run("down", self.file, "--yes", "--json")


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with moto_aws.serve() as served:
        served.publish(served.images["x86_64"])
        yield served


@pytest.fixture(scope="module")
def fleet(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[OnAws, Machines]]:
    """The example aws-p4d with that many nodes, locked; its machines are not made yet."""
    folder = tmp_path_factory.mktemp("aws")
    sandbox_cluster = OnAws.of_example("aws-p4d", folder, count=request.param)
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.aws_sandbox"]
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    # Without `allow`, AWS would be asked for this computer's address.
    document["access"] = {"ssh_key": str(key), "allow": ["203.0.113.0/24"]}
    document["state"] = {"backend": "s3", "bucket": BUCKET, "create": True}
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch, aws_provider.running(cloud) as attached:
        plugins = {"TF_CLI_CONFIG_FILE": str(terraform_plugins.cli_config(folder))}
        for name, value in (cloud.environment | attached | plugins).items():
            patch.setenv(name, value)
        locked = sandbox_cluster.run("lock", sandbox_cluster.file)
        assert locked.status == 0, locked.stderr
        lock = lockfile.read(sandbox_cluster.file.with_name("cluster.lock"))
        assert lock is not None
        with behind_moto(Machines(folder, sandbox_cluster.name, lock)) as machines:
            yield sandbox_cluster, machines
            sandbox_cluster.down()


def colleague(sandbox_cluster: OnAws) -> OnAws:
    """Somebody else with the same cluster.yaml and the same key, and nothing else."""
    folder = sandbox_cluster.file.parent / "colleague"
    folder.mkdir()
    shutil.copy(sandbox_cluster.file, folder)
    return OnAws(folder / sandbox_cluster.file.name, sandbox_cluster.name, gpuprov=sandbox_cluster.gpuprov)


def running(cloud: Cloud) -> list[dict[str, Any]]:
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    rows = cloud.client("ec2").describe_instances(Filters=alive)["Reservations"]
    return [instance for row in rows for instance in row["Instances"]]


def machine(cloud: Cloud, node: str) -> str:
    """The id of a node's instance."""
    tag = {"Key": "gpuprov-node", "Value": node}
    return next(instance["InstanceId"] for instance in running(cloud) if tag in instance["Tags"])


def killed_while_machines_are_made(sandbox_cluster: OnAws, cloud: Cloud) -> None:
    """An `up` whose every process is killed when EC2 has made machines and Terraform has not written them down.

    Terraform writes every 20 s: where the first of those is before the machines, what it wrote is taken away, so that
    slow computers and fast ones see the same.
    """
    process = sandbox_cluster.start("up", sandbox_cluster.file, "--yes")
    try:
        assert until(lambda: bool(running(cloud)) or process.poll() is not None, 900)
        assert process.poll() is None, process.communicate()
    finally:
        for number in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.communicate()
    store = cloud.client("s3")
    for key in [row["Key"] for row in store.list_objects_v2(Bucket=BUCKET)["Contents"]]:
        if key.endswith("/terraform.tfstate"):
            store.delete_object(Bucket=BUCKET, Key=key)


def descendants(parent: int) -> list[int]:
    """Processes below one, whatever session they are in."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    children_ids = [int(child) for file in children for child in file.read_text().split()]
    return children_ids + [deeper for child in children_ids for deeper in descendants(child)]


def forget(sandbox_cluster: OnAws, node: str) -> None:
    """Take a node's machine out of Terraform's state, as if Terraform had been killed before it wrote that."""
    workspace = sandbox_cluster.root / "sites" / "virginia"
    address = f'module.site.aws_instance.node["{node}"]'
    binary = find_terraform()
    subprocess.run([*binary.argv, "state", "rm", address], cwd=workspace, check=True, capture_output=True, timeout=120)


def events(sandbox_cluster: OnAws) -> str:
    """What the last run said."""
    return (max((sandbox_cluster.root / "runs").iterdir()) / "events.jsonl").read_text()


def stores(sandbox_cluster: OnAws, **file_systems: dict[str, str]) -> None:
    """Write the file systems that its site is to have into cluster.yaml."""
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    document["sites"]["virginia"]["storage"] = file_systems
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))


def mounted(sandbox_cluster: OnAws) -> list[tuple[str, str, str]]:
    """Path, type and source of what each node is to mount. (A sandbox node mounts none of it.)"""
    nodes = json.loads((sandbox_cluster.root / "nodes.json").read_text())
    return [(mount["path"], mount["type"], mount["source"]) for node in nodes for mount in node["mounts"]]


def all_output(done: Done) -> str:
    """All that a command said, for an assertion that must not shorten it."""
    return "\n".join([done.stderr, *wrongs(done)])


def bucket(cloud: Cloud) -> bool:
    return any(row["Name"] == BUCKET for row in cloud.client("s3").list_buckets()["Buckets"])


def names(cloud: Cloud) -> set[str]:
    """The last part of every object's name in the bucket."""
    return {row["Key"].rpartition("/")[2] for row in cloud.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]}


def present_resources(cloud: Cloud) -> dict[str, list[Any]]:
    """What of a cluster is in the account, by kind; nothing is left out but what AWS keeps of what is gone."""
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    tagged = [{"Name": "tag-key", "Values": ["gpuprov-cluster"]}]
    resources_by_kind = {
        "instances": running(cloud),
        "addresses": ec2.describe_addresses()["Addresses"],
        "volumes": ec2.describe_volumes()["Volumes"],
        "interfaces": ec2.describe_network_interfaces()["NetworkInterfaces"],
        "placement groups": ec2.describe_placement_groups()["PlacementGroups"],
        "launch templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "keys": ec2.describe_key_pairs()["KeyPairs"],
        "roles": iam.list_roles()["Roles"],
        "profiles": iam.list_instance_profiles()["InstanceProfiles"],
        "security groups": ec2.describe_security_groups(Filters=tagged)["SecurityGroups"],
        "subnets": ec2.describe_subnets(Filters=tagged)["Subnets"],
        "routes": ec2.describe_route_tables(Filters=tagged)["RouteTables"],
        "gateways": ec2.describe_internet_gateways(Filters=tagged)["InternetGateways"],
        "endpoints": [e for e in ec2.describe_vpc_endpoints()["VpcEndpoints"] if e["State"] != "deleted"],
        "state": cloud.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", []) if bucket(cloud) else [],
        "file systems": cloud.client("efs").describe_file_systems()["FileSystems"],
        "networks": ec2.describe_vpcs(Filters=tagged)["Vpcs"],
    }
    return {kind: rows for kind, rows in resources_by_kind.items() if rows}


def healthy(done: Done) -> None:
    assert done.status == 0, all_output(done)
    assert done.json["ok"]
    assert done.json["simulated"]
    assert failing(done.json) == {}
    assert unknown(done.json) == {}


def machines_made(sandbox_cluster: OnAws) -> None:
    """An `up`, and another one where moto refuses an apply, as a busy cloud does: that one goes on."""
    first = sandbox_cluster.up()
    if first.status == 3:
        print(first.stderr)
        first = sandbox_cluster.up()
    healthy(first)


@pytest.mark.parametrize("fleet", [1], indirect=True, ids=["one node"])
def test_a_fleet_from_nothing_to_nothing(fleet: tuple[OnAws, Machines], cloud: Cloud) -> None:
    """In order, as a person would; each step needs the one before."""
    sandbox_cluster, machines = fleet
    planned = sandbox_cluster.run("plan", sandbox_cluster.file, "--json")
    assert planned.status == 0, planned.stderr
    assert planned.json["changes"]["virginia"]["add"] > 10
    assert present_resources(cloud) == {}
    assert not bucket(cloud)
    assert {"status": "ok", "subject": "state"}.items() <= planned.json["findings"][0].items()

    machines_made(sandbox_cluster)
    assert len(running(cloud)) == 1
    assert {instance["InstanceLifecycle"] for instance in running(cloud)} == {"spot"}
    pinned = [e for e in map(json.loads, events(sandbox_cluster).splitlines()) if "host key pinned" in e["message"]]
    assert len(pinned) == 1
    assert all("as its console says" in event["message"] for event in pinned)

    status = sandbox_cluster.run("status", sandbox_cluster.file, "--json").json
    assert [(n["stage"], n["ok"]) for n in status["nodes"]] == [("verified", True)]
    assert all(n["address"].startswith("127.77.") for n in status["nodes"])
    assert sandbox_cluster.run("exec", sandbox_cluster.file, "hostname").stdout.splitlines() == ["train-0: train-0"]

    second = sandbox_cluster.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}

    removed = sandbox_cluster.down()
    assert removed.status == 0, removed.stderr
    assert machines.running == {}
    assert present_resources(cloud) == {}
    assert not sandbox_cluster.root.exists()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [2], indirect=True, ids=["two nodes"])
def test_two_operators_and_what_goes_wrong(fleet: tuple[OnAws, Machines], cloud: Cloud) -> None:
    """A run that is killed, a file system that a plan would remove, a colleague, a GPU that is lost and replaced, a
    machine that Terraform forgot, one that EC2 takes back. In order; each step needs the one before."""
    sandbox_cluster, machines = fleet
    killed_while_machines_are_made(sandbox_cluster, cloud)
    assert "terraform.tfstate.tflock" in names(cloud)
    assert sandbox_cluster.run("unlock", sandbox_cluster.file).status == 0
    assert not {"terraform.tfstate.tflock", "holder.json"} & names(cloud)
    refused = sandbox_cluster.up()
    assert refused.status == 3
    assert "machines were created here that Terraform's state does not have: i-" in refused.stderr
    assert sandbox_cluster.down().status == 0
    assert present_resources(cloud) == {}

    stores(sandbox_cluster, efs={"path": "/shared"})
    machines_made(sandbox_cluster)
    (system,) = cloud.client("efs").describe_file_systems()["FileSystems"]
    assert (
        mounted(sandbox_cluster) == [("/shared", "nfs4", f"{system['FileSystemId']}.efs.us-east-1.amazonaws.com:/")] * 2
    )
    stores(sandbox_cluster)
    lost = sandbox_cluster.run("plan", sandbox_cluster.file)
    assert lost.status == 3
    assert "would be removed with its data" in lost.stderr
    stores(sandbox_cluster, efs={"path": "/shared"})

    status = sandbox_cluster.run("status", sandbox_cluster.file, "--json").json
    other = colleague(sandbox_cluster)
    assert other.run("status", other.file, "--json").json["nodes"] == status["nodes"]
    assert other.verify().status == 0
    theirs = other.up()
    assert theirs.status == 0, theirs.stderr
    assert theirs.json["changes"] == {"resources": 0, "configured": 0}

    bad = machine(cloud, "train-1")
    faults.inject(machines.running[bad], "gpu-lost")
    verdict = sandbox_cluster.verify()
    assert verdict.status == 1
    assert [n["name"] for n in verdict.json["nodes"] if not n["ok"]] == ["train-1"]
    quarantine_by_node = {n["name"]: n["quarantine"] for n in other.run("status", other.file, "--json").json["nodes"]}
    assert quarantine_by_node["train-0"] is None and quarantine_by_node["train-1"]["owner"] == "gpuprov"
    replaced = other.run("replace", other.file, "train-1", "--yes", "--json")
    assert replaced.status == 0, all_output(replaced)
    assert bad not in machines.running
    assert len(machines.running) == 2
    # The new machine's host key is pinned here too.
    assert sandbox_cluster.run("exec", sandbox_cluster.file, "hostname").stdout.splitlines() == [
        "train-0: train-0",
        "train-1: train-1",
    ]

    forget(sandbox_cluster, "train-0")
    recovered = sandbox_cluster.up()
    assert recovered.status == 0, recovered.stderr
    assert "was made by a run that died: taken in as train-0" in events(sandbox_cluster)
    assert recovered.json["changes"]["configured"] == 0
    assert len(running(cloud)) == 2

    cloud.client("ec2").terminate_instances(InstanceIds=[machine(cloud, "train-0")])  # as EC2 takes a spot machine back
    restored = sandbox_cluster.up()
    assert restored.status == 0, all_output(restored)
    assert restored.json["changes"]["configured"] == 1
    assert len(running(cloud)) == 2

    removed = other.down()
    assert removed.status == 0, removed.stderr
    assert machines.running == {}
    assert present_resources(cloud) == {}
    assert not other.root.exists()
    assert [n["stage"] for n in sandbox_cluster.run("status", sandbox_cluster.file, "--json").json["nodes"]] == [
        "planned"
    ] * 2
    assert sandbox_cluster.down().status == 0  # nothing is there any more, and that is no error
    assert not sandbox_cluster.root.exists()
