"""How the nodes of each site are reached: their account, and the way that ssh takes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import spec
from provisioner.fleet import Node
from provisioner.paths import ClusterPaths
from provisioner.providers.cluster import Providers
from provisioner.spec.models import ClusterSpec

FILE = """name: lab
sites:
  east: { provider: aws, region: us-east-1, internet: nat, jump: "me@bastion:2222" }
  west: { provider: aws, region: us-west-2, user: admin }
  shanghai: { provider: alicloud, region: cn-shanghai }
groups:
  a: { site: east, machine: g5.xlarge }
  b: { site: west, machine: g5.xlarge }
"""


def read(tmp_path: Path, text: str) -> tuple[ClusterSpec, ClusterPaths]:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return spec.load(file), ClusterPaths(tmp_path, "lab", sandbox=False)


@pytest.mark.parametrize(
    ("access", "users"),
    [
        ("", {"east": "ubuntu", "west": "admin", "shanghai": "ecs-user", "gone": "ubuntu"}),
        ("access: { user: ops }\n", {"east": "ops", "west": "admin", "shanghai": "ops", "gone": "ops"}),
    ],
)
def test_a_site_has_its_own_account_or_that_of_access_or_its_providers(
    tmp_path: Path, access: str, users: dict[str, str]
) -> None:
    found, _ = read(tmp_path, FILE + access)
    assert {site: found.user(site) for site in users} == users


def test_nodes_behind_a_jump_host_are_reached_through_it(tmp_path: Path) -> None:
    found, paths = read(tmp_path, FILE)
    nodes = [
        Node(f"{group}-0", group, site, "g5.xlarge", f"i-{group}", "", "10.0.0.5", "10.0.0.5")
        for group, site in (("a", "east"), ("b", "west"), ("c", "gone"))
    ]
    ways = Providers(found, paths).proxies(nodes)
    assert ways == {"a-0": "ssh -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -W [10.0.0.5]:22 me@bastion"}


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "a b", "me@", "host;id", "$(id)", "host:port"])
def test_a_jump_host_that_is_none_is_refused_at_its_line(tmp_path: Path, jump: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("me@bastion:2222", jump))
    (problem,) = spec.check(file)
    assert (problem.line, problem.path) == (3, "sites.east.jump")


def test_a_jump_host_beside_session_manager_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("internet: nat", "internet: nat, connect: ssm"))
    assert "connect: ssm already" in str(spec.check(file))
