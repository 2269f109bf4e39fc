"""What the AWS provider tells Terraform and asks of the world, without either."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import data
from provisioner.machines.providers import capacity, public_address
from provisioner.machines.providers.aws import module as terraform
from provisioner.machines.providers.aws import permissions, storage
from provisioner.machines.providers.aws import provider as module
from provisioner.machines.providers.aws.provider import Aws
from provisioner.machines.providers.aws.rules import THROUGHPUT
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.terraform.render import main_tf
from provisioner.plan.models import Plan
from provisioner.stack.fetch import Answer
from provisioner.stack.models import BaseImage
from tests.support import plans

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3 me@here"


def plan(**keys: Any) -> Plan:
    """Two p4d in us-east-1 with an image in their lock."""
    offline_plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=2, **keys))
    system = offline_plan.groups[0].stack.os
    bases = {"here": {system: BaseImage(id="ami-0123456789abcdef0", why="test")}}
    return Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)


@dataclass
class InWorkspace:
    """The provider of a plan's only site."""

    provider: Aws
    plan: Plan

    def inputs(self) -> dict[str, Any]:
        return self.provider.module.inputs(self.plan)


def aws(workspace: Path, site_plan: Plan) -> InWorkspace:
    return InWorkspace(Aws(Place("vision", "here", site_plan.spec.sites["here"], workspace)), site_plan)


def at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_address, "ask", lambda *_, **__: Answer(200, {}, address.encode()))


def test_the_provider_is_the_modules_own(tmp_path: Path) -> None:
    text = (data("terraform") / "aws" / "versions.tf").read_text(encoding="utf-8")
    assert f'version = "{terraform.VERSION}"' in text
    block = aws(tmp_path, plan()).provider.module.blocks(plan())["aws"]
    assert (block.source, block.version, block.configuration["region"]) == (
        "hashicorp/aws",
        terraform.VERSION,
        "us-east-1",
    )


def test_first_boot_lets_the_access_user_in_with_the_key_and_nobody_else(tmp_path: Path) -> None:
    site_plan = plan(access={"user": "ops"})
    text = aws(tmp_path, site_plan).provider.module.user_data(site_plan, KEY + "\n")
    assert text.startswith("#cloud-config\n")
    (user,) = yaml.safe_load(text)["users"]
    assert (user["name"], user["ssh_authorized_keys"], user["lock_passwd"]) == ("ops", [KEY], True)
    assert yaml.safe_load(text)["ssh_pwauth"] is False


def test_first_boot_keeps_apts_timers_off_until_the_roles_have_run(tmp_path: Path) -> None:
    """They would hold apt's lock for minutes, and bring a kernel that nobody has proven."""
    config = yaml.safe_load(aws(tmp_path, plan()).provider.module.user_data(plan(), KEY))
    assert (config["package_update"], config["package_upgrade"]) == (False, False)
    (file,) = config["write_files"]
    assert 'APT::Periodic::Enable "0";' in file["content"].splitlines()
    last = yaml.safe_load((data("ansible") / "playbooks" / "site.yml").read_text(encoding="utf-8"))[0]["tasks"][-2:]
    assert last[0]["node_files"] == {"absent": [file["path"]]}
    assert [task["tags"] for task in last] == [["always"], ["always"]]


def test_ssh_is_open_to_this_computer_alone_where_nobody_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at("198.51.100.7\n", monkeypatch)
    inputs = aws(tmp_path, plan()).inputs()
    assert inputs["access"] == {"allow": ["198.51.100.7/32"], "instance_connect": False}
    assert inputs["zones"] == ["us-east-1a"]
    assert inputs["groups"]["train"] == {"image_id": "ami-0123456789abcdef0", "efa_interfaces": 4}


@pytest.mark.parametrize("answer", ["<html>proxy</html>", ""])
def test_an_address_that_is_none_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    at(answer, monkeypatch)
    with pytest.raises(GpuprovError, match=r"access\.allow"):
        aws(tmp_path, plan()).inputs()


def test_networks_that_are_named_are_taken_and_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_address, "ask", None)
    inputs = aws(tmp_path, plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})).inputs()
    assert inputs["access"] == {"allow": ["203.0.113.0/24"], "instance_connect": False}


ACCOUNT = {
    "vpc": {"id": "vpc-0123456789abcdef0", "subnets": ("subnet-0123456789abcdef0",)},
    "tags": {"cost-center": "ml"},
    "instance_profile": "gpu-nodes",
    "kms_key": "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "security_groups": ("sg-0123456789abcdef0",),
}


def test_what_an_account_asks_of_everything_in_it_is_told_to_the_module(tmp_path: Path) -> None:
    base_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    plain = aws(tmp_path, base_plan).inputs()
    assert not {"root", "instance_profile", "permissions_boundary", "security_groups"} & set(plain)
    site = AwsSite.model_validate({**plans.SITES["aws"], **ACCOUNT})
    workspace = aws(tmp_path, replace(base_plan, spec=base_plan.spec.model_copy(update={"sites": {"here": site}})))
    inputs = workspace.inputs()
    assert (inputs["root"], inputs["instance_profile"]) == ({"kms_key_id": ACCOUNT["kms_key"]}, "gpu-nodes")
    assert inputs["security_groups"] == ["sg-0123456789abcdef0"]
    boundary = "arn:aws:iam::111122223333:policy/boundary"
    site = AwsSite.model_validate({**plans.SITES["aws"], "permissions_boundary": boundary})
    bound = aws(tmp_path, replace(base_plan, spec=base_plan.spec.model_copy(update={"sites": {"here": site}})))
    assert bound.inputs()["permissions_boundary"] == boundary
    assert workspace.provider.module is not None
    text = main_tf(workspace.plan, "here", workspace.provider.module, ssh_public_key=KEY, identity="0" * 12)
    assert re.search(r'"?cost-center"?\s*=\s*"ml"', text)


@pytest.mark.parametrize(("kind", "reserved"), [("reservation", True), ("on-demand", False)])
def test_a_reservation_with_placement_names_its_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reserved: bool
) -> None:
    base_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    (group,) = base_plan.groups
    capacity = group.spec.capacity.model_copy(update={"kind": kind, "id": "cr-0abc" if reserved else None})
    spec = group.spec.model_copy(update={"placement": "cluster", "capacity": capacity})
    monkeypatch.setattr(terraform.reservations, "placement_group", lambda *_: "theirs")
    inputs = aws(tmp_path, replace(base_plan, groups=(replace(group, spec=spec),))).inputs()
    assert inputs["groups"]["train"].get("placement_group") == ("theirs" if reserved else None)


def test_a_file_system_is_told_to_the_module_and_its_end_to_the_user(tmp_path: Path) -> None:
    base_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    assert "efs" not in aws(tmp_path, base_plan).inputs()
    assert storage.findings(AwsSite.model_validate(plans.SITES["aws"])) == []
    site = AwsSite.model_validate({**plans.SITES["aws"], "storage": {"efs": {"throughput": "bursting"}}})
    plan_with_storage = replace(base_plan, spec=base_plan.spec.model_copy(update={"sites": {"here": site}}))
    inputs = aws(tmp_path, plan_with_storage).inputs()
    assert inputs["efs"] == {"path": "/efs", "throughput": "bursting", "kms_key_id": None}
    (finding,) = storage.findings(site)
    assert (finding.status, finding.subject) == ("warning", "storage")
    assert "`gpuprov down` removes the EFS file system at /efs with its data" in finding.message
    assert "is in no figure here" in finding.message
    assert "elasticfilesystem:CreateFileSystem" in permissions.required(site)


def test_lustre_and_buckets_are_told_to_the_module_and_what_they_cost_to_the_user(tmp_path: Path) -> None:
    base_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    bucket = {"bucket": "my-data", "prefix": "sets/", "path": "/data"}
    storage_keys = {"fsx": {"capacity_gib": 2400}, "s3": (bucket, {"bucket": "my-out", "path": "/out", "write": True})}
    site = AwsSite.model_validate({**plans.SITES["aws"], "storage": storage_keys})
    plan_with_storage = replace(base_plan, spec=base_plan.spec.model_copy(update={"sites": {"here": site}}))
    inputs = aws(tmp_path, plan_with_storage).inputs()
    assert inputs["fsx"] == {"capacity_gib": 2400, "deployment": "PERSISTENT_2", "throughput": 250, "zone": None,
                            "path": "/fsx", "kms_key_id": None}  # fmt: skip
    assert inputs["s3"] == [
        {**bucket, "write": False},
        {"bucket": "my-out", "prefix": "", "path": "/out", "write": True},
    ]
    assert "efs" not in inputs
    lustre, buckets = storage.findings(site)
    assert "removes the FSx for Lustre file system at /fsx with its data" in lustre.message
    assert "is in no figure here" in lustre.message and "is in no figure here" in buckets.message
    more = permissions.required(site) - permissions.required(AwsSite.model_validate(plans.SITES["aws"]))
    assert more >= {"fsx:CreateFileSystem", "fsx:DeleteFileSystem", "fsx:TagResource"}
    assert {name.partition(":")[0] for name in more} == {"fsx"}


@pytest.mark.parametrize(("deployment", "rate"), [("PERSISTENT_2", 250), ("PERSISTENT_1", 200), ("SCRATCH_2", 200)])
def test_lustre_has_a_rate_that_its_kind_knows(deployment: str, rate: int) -> None:
    fsx = {"capacity_gib": 1200, "deployment": deployment}
    site = AwsSite.model_validate({**plans.SITES["aws"], "storage": {"fsx": fsx}})
    assert storage.inputs(site)["fsx"]["throughput"] == rate
    assert rate in (*THROUGHPUT.get(deployment, ()), 200)


def test_the_module_and_cluster_yaml_know_the_same_rates() -> None:
    text = (data("terraform") / "aws" / "storage.tf").read_text()
    pattern = r'deployment != "(\w+)" \|\| contains\(\[([0-9, ]+)\], var\.aws\.fsx\.throughput\)'
    rates_by_deployment = {
        name: tuple(int(rate) for rate in rates.split(",")) for name, rates in re.findall(pattern, text)
    }
    assert rates_by_deployment == THROUGHPUT


def test_the_way_that_was_found_is_told_to_the_module(tmp_path: Path) -> None:
    Choices({"train": Way("on-demand", "us-east-1c")}).write(tmp_path)
    inputs = aws(tmp_path, plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})).inputs()
    assert inputs["groups"]["train"]["zone"] == "us-east-1c"
    assert inputs["groups"]["train"]["kind"] == "on-demand"


def test_without_an_image_nothing_is_rendered(tmp_path: Path) -> None:
    site_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    bare = Plan(spec=site_plan.spec, groups=site_plan.groups, simulated=False)
    with pytest.raises(GpuprovError, match="no image of"):
        aws(tmp_path, bare).inputs()


def test_a_workspace_that_was_never_rendered_has_nothing_to_clean(tmp_path: Path) -> None:
    assert aws(tmp_path, plan()).provider.clean(lambda *_, **__: None) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("connect", "programs", "command_text"),
    [
        (
            "ssm",
            ("aws", "session-manager-plugin"),
            "ssm start-session --target i-0ab --document-name AWS-StartSSHSession",
        ),
        ("instance-connect", ("aws",), "ec2-instance-connect open-tunnel --instance-id i-0ab --remote-port 22"),
    ],
)
def test_ssh_that_is_carried_opens_no_port_and_asks_nobody_where_it_runs(
    connect: str, programs: tuple[str, ...], command_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_address, "ask", None)
    base_plan = plan()
    site = base_plan.spec.sites["here"].model_copy(update={"connect": connect})
    spec = base_plan.spec.model_copy(update={"sites": {"here": site}})
    workspace = aws(tmp_path, replace(base_plan, spec=spec))
    inputs = workspace.inputs()
    assert inputs["access"] == {"allow": [], "instance_connect": connect == "instance-connect"}
    command = workspace.provider.access.proxy("i-0ab")
    assert command is not None and command_text in command and command.endswith("--region us-east-1")
    with pytest.raises(GpuprovError, match="not an instance id"):
        workspace.provider.access.proxy("i-0; rm -rf /")
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = [module._program(name) for name in module.TUNNEL_PROGRAMS[connect]]
    assert [finding.status for finding in missing] == ["blocks"] * len(programs)


def test_what_a_group_does_without_is_told_to_the_module_and_asked_for_where_the_others_stand(tmp_path: Path) -> None:
    site_plan = plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    first_zone, second_zone = Way("on-demand", "us-east-1a"), Way("on-demand", "us-east-1b")
    Choices(taken={"train": second_zone}, tried={"train": [first_zone]}).write(tmp_path)
    workspace = aws(tmp_path, site_plan)
    capacity.do_without(tmp_path, {"train": ["train-1"]})
    assert capacity.without(tmp_path) == ["train-1"]
    inputs = workspace.inputs()["groups"]["train"]
    assert (inputs["without"], inputs["zone"]) == (["train-1"], "us-east-1a")
    capacity.settle(tmp_path)
    assert capacity.without(tmp_path) == ["train-1"]
    capacity.do_without(tmp_path, {})
    assert "without" not in workspace.inputs()["groups"]["train"]
