"""A fleet whose Terraform state is lost: made by the real provider against moto, found and removed by `gpuprov gc`."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from provisioner.cli.main import run
from provisioner.machines.providers.aws import orphans as module
from provisioner.machines.providers.aws import tagged_resources
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.orphans import InRegion
from tests.support.aws_root import Root

pytestmark = [pytest.mark.heavy, pytest.mark.shares("aws"), pytest.mark.begins(1)]

REGION = "eu-west-1"


@pytest.mark.slow  # an apply with the provider's own waits; tests/unit/machines/providers/test_aws_gc.py has the rest
@pytest.mark.parametrize("internet", ["public", "nat"])
def test_all_that_the_module_makes_is_found_and_removed(
    root: Root, internet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in root.cloud.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "orphans", lambda region: InRegion(Region(region), wait_s=20, pause_s=0.05))
    root.region = REGION
    images = root.cloud.register(REGION)
    groups = {"train": {"machine": "p4d.24xlarge", "count": 2, "placement": "cluster", "capacity": {"kind": "spot"}}}
    aws = {
        "zones": [f"{REGION}a", f"{REGION}b"],
        "groups": {"train": {"image_id": images["x86_64"]}},
        "internet": internet,
        "access": {"allow": ["203.0.113.0/24"], "instance_connect": True},
        "efs": {},
        "s3": [{"bucket": "data", "path": "/data"}],
    }
    root.write(groups, aws, name="forgotten", tags={"gpuprov-site": "ireland"})
    root.apply()
    (root.folder / "terraform.tfstate").unlink()  # nobody knows any more

    assert run(["gc", "--region", REGION, "--provider", "aws", "--cluster", "forgotten", "--yes", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    kinds = {resource["kind"] for cluster in report["clusters"] for resource in cluster["things"]}
    assert {kind.name for kind in tagged_resources.KINDS} - kinds == {"spot request", "FSx file system"} | (
        {"NAT gateway"} if internet == "public" else set()
    )
    assert {"role", "instance profile"} <= kinds
    assert "things of the network were not touched" in report["left"][0]
    assert tagged_resources.HOLDS_DATA in report["left"][1] and len(report["left"]) == 2

    efs = boto3.client("efs", REGION)
    for system in efs.describe_file_systems()["FileSystems"]:
        for target in efs.describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]:
            efs.delete_mount_target(MountTargetId=target["MountTargetId"])
        efs.delete_file_system(FileSystemId=system["FileSystemId"])
    assert run(["gc", "--region", REGION, "--provider", "aws", "--cluster", "forgotten", "--yes", "--json"]) == 0, (
        capsys.readouterr().out
    )
    assert [
        resource for resource in tagged_resources.find(Region(REGION)).things if resource.cluster == "forgotten"
    ] == []
    ec2, filters = boto3.client("ec2", REGION), [{"Name": "tag:gpuprov-cluster", "Values": ["forgotten"]}]
    assert not ec2.describe_vpcs(Filters=filters)["Vpcs"]
    assert not ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    assert not ec2.describe_placement_groups()["PlacementGroups"]
    roles = boto3.client("iam", REGION).list_roles()["Roles"]
    assert not [role["RoleName"] for role in roles if role["RoleName"].startswith("gpuprov-forgotten")]
