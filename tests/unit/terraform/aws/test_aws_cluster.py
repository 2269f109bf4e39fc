"""A cluster.yaml on AWS through gpuprov's own commands and stages, with moto in place of AWS and real Terraform.

Locked, planned, made, found again, removed. Nobody logs in to these machines: what follows ssh is proven on sandbox
ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend

from provisioner.cli.main import run
from provisioner.common.errors import ProviderError
from provisioner.lifecycle import machines
from provisioner.lifecycle.down import down
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.terraform.binary import find
from provisioner.plan.models import PlannedGroup, build_plan
from provisioner.rundir import fleet
from provisioner.stack import lockfile
from tests.support import terraform_plugins
from tests.support.moto_aws import UBUNTU, Cloud
from tests.unit.stack.conftest import _served, keys, vendors  # noqa: F401 (fixtures)
from tests.unit.stack.test_lock import p4d  # noqa: F401

pytestmark = [pytest.mark.heavy, pytest.mark.shares("aws"), pytest.mark.begins(1)]


@pytest.fixture
def file(
    p4d: Path,  # noqa: F811
    cloud: Cloud,
    attached: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Two p4d close together; moto knows Canonical's parameter, and whose address ssh is open to is said."""
    cli_variables = {"AWS_MAX_ATTEMPTS": "2", "TF_CLI_CONFIG_FILE": str(terraform_plugins.cli_config(tmp_path))}
    for name, value in (cloud.environment | attached | cli_variables).items():
        monkeypatch.setenv(name, value)
    cloud.publish(cloud.images["x86_64"])
    document = yaml.safe_load(p4d.read_text())
    document["groups"]["train"] |= {"count": 2, "placement": "cluster"}
    document["access"] = {"allow": ["203.0.113.0/24"]}
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    yield p4d
    cluster = open_cluster(p4d, sandbox=False)
    if (cluster.paths.root / "sites").exists():
        down(cluster, find())


def running(cloud: Cloud) -> list[str]:
    rows = cloud.client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )["Reservations"]
    return [instance["InstanceId"] for row in rows for instance in row["Instances"]]


def test_an_image_is_locked_and_stays_and_a_plan_makes_nothing(
    file: Path, cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is planned is made in tests/sandbox/test_aws.py."""
    assert run(["lock", str(file)]) == 0
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None
    base = lock.bases["virginia"]["ubuntu-24.04"]
    assert base.id == cloud.images["x86_64"]
    assert UBUNTU in base.why

    cloud.publish(cloud.images["newer"])
    assert run(["lock", str(file)]) == 0
    second = lockfile.read(file.with_name("cluster.lock"))
    assert second is not None and second.bases == lock.bases  # what is locked stays
    assert run(["lock", str(file), "--upgrade"]) == 0
    moved = lockfile.read(file.with_name("cluster.lock"))
    assert moved is not None and moved.bases["virginia"]["ubuntu-24.04"].id == cloud.images["newer"]

    capsys.readouterr()
    assert run(["plan", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes"]["virginia"]["add"] > 10
    assert running(cloud) == []


def test_without_credentials_a_lock_says_why_it_has_no_image_and_up_is_blocked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert run(["lock", str(file)]) == 0
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None
    base = lock.bases["virginia"]["ubuntu-24.04"]
    assert base.id is None
    assert "sign in" in base.why
    capsys.readouterr()
    assert run(["up", str(file), "--yes"]) == 3
    error_text = capsys.readouterr().err
    assert "credentials" in error_text
    assert "Traceback" not in error_text
    assert not (open_cluster(file, sandbox=False).paths.root / "sites").exists()


def own_network(cloud: Cloud, zones: list[str]) -> dict[str, object]:
    """A VPC that was there before, with a subnet in each zone; what stands in it is not gpuprov's."""
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.20.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.20.{i}.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for i, zone in enumerate(zones)
    ]
    return {"id": vpc, "subnets": subnets}


@contextmanager
def sold_out(*zones: str) -> Iterator[list[str]]:
    """EC2 has no machine in these zones, in its own words; the zones that were asked, in order."""
    plain, requested_zones = InstanceBackend.run_instances, []

    def run_instances(backend: Any, *arguments: Any, **kwargs: Any) -> Any:
        subnet = backend._get_template_from_args(kwargs["launch_template"]).data["NetworkInterfaces"][0]["SubnetId"]
        zone = backend.get_subnet(subnet).availability_zone
        requested_zones.append(zone)
        if zone in zones:
            raise EC2ClientError(
                "InsufficientInstanceCapacity",
                "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested "
                f"({zone}). Our system will be working on provisioning additional capacity. You can currently get "
                "p4d.24xlarge capacity by not specifying an Availability Zone in your request or choosing us-east-1c.",
            )
        return plain(backend, *arguments, **kwargs)

    InstanceBackend.run_instances = run_instances
    try:
        yield requested_zones
    finally:
        InstanceBackend.run_instances = plain


@pytest.mark.slow  # four applies, each with the provider's own waits; test_capacity.py has the order of things
def test_a_zone_without_machines_gives_way_to_one_that_has_some(file: Path, cloud: Cloud) -> None:
    document = yaml.safe_load(file.read_text())
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
    document["sites"]["virginia"] |= {"zones": zones, "internet": "nat", "vpc": own_network(cloud, zones)}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    assert run(["lock", str(file)]) == 0
    heard: list[str] = []
    cluster, binary = open_cluster(file, sandbox=False), find()
    cluster.events.subscribe(lambda event: heard.append(event.message))
    plan = build_plan(cluster.spec, cluster.lock)
    with sold_out("us-east-1a") as requested_zones:
        virginia = machines.of_site(cluster, "virginia", binary)
        nodes = virginia.apply(plan, virginia.plan(plan))
    assert {node.zone for node in nodes} == {"us-east-1c"}  # the one that EC2 names
    assert set(requested_zones) == {"us-east-1a", "us-east-1c"}
    assert any(
        "InsufficientInstanceCapacity for on-demand in us-east-1a, now on-demand in us-east-1c" in m for m in heard
    )
    assert sorted(node.id for node in nodes) == sorted(running(cloud))
    fleet.save(cluster.paths, nodes)
    virginia = machines.of_site(cluster, "virginia", binary)
    assert virginia.plan(plan).total == 0  # they stay where they are

    wider = replace(plan, groups=tuple(replace(g, spec=g.spec.model_copy(update={"count": 3})) for g in plan.groups))
    with sold_out("us-east-1a", "us-east-1b", "us-east-1c"):
        planned = virginia.plan(wider)
        with pytest.raises(ProviderError, match="us-east-1: no capacity for train") as caught:
            virginia.apply(wider, planned)
    asked_zones = re.findall(r"train, on-demand in (\S+): InsufficientInstanceCapacity \(shortage\)", str(caught.value))
    assert asked_zones == ["us-east-1c", "us-east-1a", "us-east-1b"]
    assert sorted(node.id for node in nodes) == sorted(running(cloud))  # those that stood still stand

    def with_minimum(group: PlannedGroup) -> PlannedGroup:
        capacity = group.spec.capacity.model_copy(update={"min": 2})
        return replace(group, spec=group.spec.model_copy(update={"capacity": capacity}))

    content = replace(wider, groups=tuple(map(with_minimum, wider.groups)))
    with sold_out("us-east-1a", "us-east-1b", "us-east-1c"):
        fewer = virginia.apply(content, virginia.plan(content))
    assert fewer == nodes
    assert virginia.plan(content).total == 0
    machines.ask_again(cluster, content)
    assert len(virginia.apply(content, virginia.plan(content))) == 3
