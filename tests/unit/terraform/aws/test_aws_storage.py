"""FSx for Lustre and buckets from cluster.yaml to Terraform's plan, with moto in place of AWS and real Terraform.

Planned, not made: moto's FSx never becomes available.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.terraform.binary import find
from provisioner.machines.terraform.workspace import PLAN_FILE
from provisioner.plan.models import build_plan
from provisioner.stack import lockfile
from tests.support import terraform_plugins
from tests.support.moto_aws import Cloud
from tests.unit.stack.conftest import _served, keys, vendors  # noqa: F401 (fixtures)
from tests.unit.stack.test_shared_storage_packages import change, written  # noqa: F401

pytestmark = [pytest.mark.heavy, pytest.mark.shares("aws"), pytest.mark.begins(1)]


@pytest.fixture
def file(
    written: Path,  # noqa: F811
    cloud: Cloud,
    attached: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    cli_variables = {"AWS_MAX_ATTEMPTS": "2", "TF_CLI_CONFIG_FILE": str(terraform_plugins.cli_config(tmp_path))}
    for name, value in (cloud.environment | attached | cli_variables).items():
        monkeypatch.setenv(name, value)
    cloud.publish(cloud.images["x86_64"])
    cloud.client("s3").create_bucket(Bucket="my-data")
    storage = {
        "fsx": {"capacity_gib": 2400, "throughput": 500, "path": "/scratch", "zone": "us-east-1b"},
        "s3": [
            {"bucket": "my-data", "prefix": "sets/", "path": "/data"},
            {"bucket": "my-data", "prefix": "out/", "path": "/out", "write": True},
        ],
    }
    site = {"provider": "aws", "region": "us-east-1", "zones": ["us-east-1a", "us-east-1b"], "storage": storage}
    change(written, sites={"virginia": site}, access={"allow": ["203.0.113.0/24"]})
    return written


def test_both_are_planned_with_what_they_cost_and_who_may_write(
    file: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lock", str(file)]) == 0
    capsys.readouterr()
    assert run(["plan", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    about = {(f["subject"], f["status"]): f["message"] for f in document["findings"]}
    assert about["bucket my-data", "ok"] == "is there"
    storage_messages = [f["message"] for f in document["findings"] if f["subject"] == "storage"]
    assert [
        "`gpuprov down` removes the FSx for Lustre file system at /scratch" in storage_messages[0],
        len(storage_messages),
    ] == [True, 2]
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None
    cluster, binary = open_cluster(file, sandbox=False), find()
    plan = build_plan(cluster.spec, lock)
    machines.of_site(cluster, "virginia", binary).plan(plan)
    command = [*binary.argv, "show", "-json", PLAN_FILE]
    result = subprocess.run(command, cwd=cluster.paths.site("virginia"), capture_output=True, text=True, check=True)
    resource_values = {r["address"]: r["values"] for r in _resources(json.loads(result.stdout))}
    fsx = resource_values["module.site.aws_fsx_lustre_file_system.scratch[0]"]
    assert (fsx["storage_capacity"], fsx["deployment_type"]) == (2400, "PERSISTENT_2")
    assert fsx["per_unit_storage_throughput"] == 500
    policy = json.loads(resource_values["module.site.aws_iam_role_policy.s3[0]"]["policy"])["Statement"]
    assert [s["Resource"] for s in policy if "s3:PutObject" in s["Action"]] == ["arn:aws:s3:::my-data/out/*"]
    assert [s["Resource"] for s in policy if s["Action"] == ["s3:GetObject"]] == ["arn:aws:s3:::my-data/sets/*"]


def _resources(document: dict) -> list[dict]:  # type: ignore[type-arg]
    (child,) = document["planned_values"]["root_module"]["child_modules"]
    return list(child["resources"])


def test_a_bucket_that_is_not_there_blocks_before_anything_is_made(
    file: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.client("s3").delete_bucket(Bucket="my-data")
    assert run(["lock", str(file)]) == 0
    capsys.readouterr()
    assert run(["up", str(file), "--yes"]) in (2, 3)
    captured = capsys.readouterr()
    assert "bucket my-data: there is no such bucket" in captured.err + captured.out
    assert cloud.client("ec2").describe_vpcs(Filters=[{"Name": "tag-key", "Values": ["gpuprov-cluster"]}])["Vpcs"] == []


def test_a_lock_from_before_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lock", str(file)]) == 0
    change(file, sites={"virginia": {"provider": "aws", "region": "us-east-1"}})
    capsys.readouterr()
    assert run(["plan", str(file)]) == 2
    captured = capsys.readouterr()
    assert "sites.virginia.storage.fsx: asked for when locked, not there now" in captured.err + captured.out
