"""The inventory: what the roles are given, and nothing that Ansible would evaluate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import inventory
from provisioner.rundir.fleet import Node
from provisioner.verify.parsers.stamp import RoleStamp
from tests.support import plans

NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "us-east-1a", "203.0.113.5", "10.0.0.5")


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    cluster_paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    private_dir(cluster_paths.root)
    return cluster_paths


@pytest.fixture(scope="module")
def plan() -> Any:
    return plans.plan(plans.cluster_spec("p4d.24xlarge", count=2))


def test_the_inventory_has_the_stack_and_no_secret(plan: Any, paths: ClusterPaths) -> None:
    nodes = [NODE, replace(NODE, name="train-1")]
    stamps = {"train": {"nccl": RoleStamp("a", "b", "c")}}
    written = inventory.write(paths, nodes, plan, {"gpuprov_registry": "mirror:5000"}, stamps)
    written_inventory = inventory.plain(json.loads(written.read_text())["all"])
    assert written_inventory["vars"] == {"gpuprov_registry": "mirror:5000"}
    group = written_inventory["children"]["train"]
    assert group["hosts"] == {
        name: {
            "gpuprov_node": name,
            "gpuprov_private_address": NODE.private_address,
            "gpuprov_listen_address": NODE.private_address,
        }
        for name in ("train-0", "train-1")
    }
    assert group["vars"]["gpuprov_stamps"] == {"nccl": {"digest": "a", "installed": "b", "configured": "c"}}
    assert group["vars"]["gpuprov_gpu_count"] == 8
    assert group["vars"]["gpuprov_efa_devices"] == 4
    assert group["vars"]["gpuprov_network_kind"] == "efa"
    stack = plan.group("train").stack.model_dump(mode="json", exclude={"components", "vendor"})
    rows = [{key: p[key] for key in ("name", "version", "repository", "part")} for p in stack["packages"]]
    node_stack = group["vars"]["gpuprov_stack"]
    for image in stack["images"]:
        del image["basis"], image["config"]
    assert node_stack | {"repositories": []} == stack | {"packages": rows, "repositories": []}
    # what a node makes a repository of: the packages with their hashes; other repositories are as they always were
    efa = next(repository for repository in node_stack["repositories"] if repository["name"] == "efa")
    assert {p["name"] for p in efa["packages"]} == {p["name"] for p in stack["packages"] if p["repository"] == "efa"}
    cuda = next(repository for repository in node_stack["repositories"] if repository["name"] == "cuda")
    assert set(cuda) == {"name", "uri", "suite", "components", "key_url", "fingerprint"}
    assert written.stat().st_mode & 0o077 == 0
    assert "PRIVATE" not in written.read_text()


def test_the_inventory_has_only_nodes_that_are_there(plan: Any, paths: ClusterPaths) -> None:
    written = inventory.write(paths, [NODE], plan, {}, {"train": {}})
    assert list(json.loads(written.read_text())["all"]["children"]["train"]["hosts"]) == ["train-0"]


def test_an_ipv6_address_to_listen_on_is_in_brackets(paths: ClusterPaths) -> None:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=1))
    node = replace(NODE, site=next(iter(plan.spec.sites)), private_address="fd00::4")
    written = inventory.write(paths, [node], plan, {}, {plan.groups[0].name: {}})
    document = inventory.plain(json.loads(written.read_text(encoding="utf-8"))["all"])
    row = document["children"][plan.groups[0].name]["hosts"]["train-0"]
    assert (row["gpuprov_listen_address"], row["gpuprov_private_address"]) == ("[fd00::4]", "fd00::4")


def test_exporters_listen_on_all_addresses_of_a_machine_of_ones_own(paths: ClusterPaths) -> None:
    """Its name or address may be another one than its own: of a NAT, or of /etc/hosts."""
    hosts = plans.plan(plans.cluster_spec("dgx-h100", count=1))
    site = next(iter(hosts.spec.sites))
    node = replace(NODE, site=site, address="gpu01.lab", private_address="gpu01.lab")
    written = inventory.write(paths, [node], hosts, {}, {hosts.groups[0].name: {}})
    row = inventory.plain(json.loads(written.read_text())["all"])["children"][hosts.groups[0].name]["hosts"]["train-0"]
    assert (row["gpuprov_listen_address"], row["gpuprov_private_address"]) == ("", "gpu01.lab")


def one_node(name: str = "train-0", *, group: dict[str, Any] | None = None, **variables: Any) -> Any:
    """What `name` gets of three nodes in two groups, and its files."""
    group_vars = {"gpuprov_group": "train", "gpuprov_site": "west", **(group or {})}
    hosts = {
        n: {"gpuprov_node": n, "gpuprov_private_address": f"10.0.0.{i}"} for i, n in enumerate(("train-0", "train-1"))
    }
    head = {"hosts": {"head-0": {"gpuprov_node": "head-0"}}, "vars": {"gpuprov_group": "head", "gpuprov_site": "west"}}
    children = {"train": {"hosts": hosts, "vars": group_vars}, "head": head}
    full = {"all": {"children": inventory._untrusted(children), "vars": inventory._untrusted(variables)}}
    previous = json.dumps(full)
    node_document, files = inventory.of_one_node(full, name, "/run/x")
    assert json.dumps(full) == previous
    return inventory.plain(node_document["all"]), files


def test_a_node_is_given_nothing_of_others() -> None:
    node_document, files = one_node(
        gpuprov_registry="mirror:5000",
        gpuprov_mounts={"west": ["a"], "east": ["b"]},
        gpuprov_block_ends={"train": "2026-01-01T00:00:00Z", "head": "x"},
        gpuprov_prometheus={"head": {"archive": "/here/head.tar", "receivers": "/here/secrets.yml"}},
        gpuprov_slurm={"head": "10.0.0.9", "health": {}, "files": {"slurmdbd.conf": "s"}, "watch": "w"},
    )
    assert (list(node_document["children"]), list(node_document["children"]["train"]["hosts"]), files) == (
        ["train"],
        ["train-0"],
        {},
    )
    assert node_document["vars"] == {
        "gpuprov_registry": "mirror:5000", "gpuprov_mounts": {"west": ["a"]}, "gpuprov_prometheus": {},
        "gpuprov_block_ends": {"train": "2026-01-01T00:00:00Z"}, "gpuprov_slurm": {},
    }  # fmt: skip


def test_a_head_node_is_given_its_files() -> None:
    settings = {"archive": "/here/head.tar", "receivers": "/here/secrets.yml", "sha256": "s"}
    node_document, files = one_node("head-0", gpuprov_prometheus={"head": settings, "other": settings})
    assert files == {"archive": Path("/here/head.tar"), "receivers": Path("/here/secrets.yml")}
    head = {"archive": "/run/x/archive", "receivers": "/run/x/receivers", "sha256": "s"}
    assert node_document["vars"]["gpuprov_prometheus"] == {"head": head}
    assert one_node("head-0", gpuprov_prometheus={"head": {**settings, "receivers": None}})[1].keys() == {"archive"}


@pytest.mark.parametrize(
    ("part", "keys"), [("node", {"head", "health"}), ("controller", {"head", "health", "files", "watch"}), ("", set())]
)
def test_of_slurm_a_node_is_given_its_part(part: str, keys: set[str]) -> None:
    slurm = {"head": "10.0.0.9", "health": {}, "files": {}, "watch": None}
    node_document, _ = one_node(group={"gpuprov_slurm_part": part}, gpuprov_slurm=slurm)
    assert node_document["vars"]["gpuprov_slurm"].keys() == keys


def test_nodes_that_share_memory_know_each_others_addresses_and_no_more() -> None:
    node_document, _ = one_node(group={"gpuprov_imex": True})
    assert node_document["children"]["train"]["hosts"] == {
        "train-0": {"gpuprov_node": "train-0", "gpuprov_private_address": "10.0.0.0"},
        "train-1": {"gpuprov_private_address": "10.0.0.1"},
    }
