"""A golden image at AWS, as its users build one: gpuprov's own command line, the real provider, real Ansible and ssh.
EC2 is moto, and its instances are sandbox nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.stack import lockfile
from tests.support import moto_aws, terraform_plugins
from tests.support.aws_machines import Machines, behind_moto
from tests.support.moto_aws import REGION, Cloud
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
OTHER = "us-west-2"


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[tuple[SandboxCluster, Cloud, Machines]]:
    (tmp_path / "images").mkdir()
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    file = tmp_path / "images" / "desk.yaml"
    recipe: dict[str, Any] = {
        "name": "desk", "sites": {"here": {"provider": "aws", "region": REGION}},
        "groups": {"l4": {"machine": "g6.xlarge"}}, "stack": {"driver": "580"},
        "access": {"ssh_key": str(key), "allow": ["203.0.113.0/24"]},
        "image": {"boots": 1, "targets": {"l4": {"copy_to": [OTHER]}}},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    sandbox_cluster = SandboxCluster(file, "desk")
    sandbox_cluster.gpuprov = [sys.executable, "-m", "tests.support.aws_sandbox"]
    with moto_aws.serve() as cloud, pytest.MonkeyPatch.context() as patch:
        cloud.publish(cloud.images["x86_64"])
        plugins = {"TF_CLI_CONFIG_FILE": str(terraform_plugins.cli_config(tmp_path))}
        for name, value in (cloud.environment | plugins).items():
            patch.setenv(name, value)
        locked = sandbox_cluster.run("lock", file)
        assert locked.status == 0, locked.stderr
        lock = next(content for path in sorted(file.parent.glob("*.lock")) if (content := lockfile.read(path)))
        with behind_moto(Machines(tmp_path, "desk", lock)) as machines:
            yield sandbox_cluster, cloud, machines


def images(cloud: Cloud, region: str = REGION) -> dict[str, str]:
    rows = cloud.client("ec2", region).describe_images(Owners=["self"])["Images"]
    return {row["ImageId"]: row["Name"] for row in rows if row["Name"].startswith("gpuprov-desk-")}


def test_it_is_built_proven_copied_and_kept(aws: tuple[SandboxCluster, Cloud, Machines]) -> None:
    shell, cloud, machines = aws
    previous_images = {region: images(cloud, region) for region in (REGION, OTHER)}
    assert previous_images == {REGION: {}, OTHER: {}}
    done = shell.run("image", "build", shell.file, "--yes", "--json")
    assert done.status == 0, done.stderr
    build = done.json["build"]
    manifest = json.loads((shell.file.parent / "desk" / "builds" / build / "manifest.json").read_text())
    target = manifest["targets"]["l4"]
    assert (target["builder"], target["machine"], manifest["simulated"]) == ("m7i.2xlarge", "g6.xlarge", True)
    assert {region: {image_id: images(cloud, region)[image_id]} for region, image_id in target["ids"].items()} == {
        region: images(cloud, region) for region in (REGION, OTHER)
    }
    assert [(proof["machine"], proof["unknown"]) for proof in target["proofs"]] == [("g6.xlarge", 0)]
    assert machines.running == {}, "neither the builder nor the machine that has proven it is left"
    states = {
        instance["State"]["Name"] for row in cloud.client("ec2").describe_instances()["Reservations"]
        for instance in row["Instances"]
    }  # fmt: skip
    assert states == {"terminated"}

    # A second night has nothing new, and an image that channels have is never pruned.
    second = shell.run("image", "nightly", shell.file, "--json")
    assert second.status == 0, second.stderr
    assert second.json["nights"][0]["outcome"] == "unchanged", second.json
    pruned = shell.run("image", "prune", shell.file, "--yes", "--json")
    assert pruned.status == 0, pruned.stderr
    assert set(images(cloud)) == {target["ids"][REGION]}
