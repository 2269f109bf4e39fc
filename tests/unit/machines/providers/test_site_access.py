"""How the nodes of each site are reached: their account, and the way that ssh takes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.paths import ClusterPaths
from provisioner.machines.providers.cluster import Providers
from provisioner.rundir.fleet import Node
from provisioner.sandbox import containers, jump_host
from provisioner.sandbox.containers import Container
from provisioner.spec.models import ClusterSpec
from provisioner.transport import ssh_keys

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
    cluster, _ = read(tmp_path, FILE + access)
    assert {site: cluster.user(site) for site in users} == users


def test_nodes_behind_a_jump_host_are_reached_through_it(tmp_path: Path) -> None:
    cluster, paths = read(tmp_path, FILE)
    nodes = [
        Node(f"{group}-0", group, site, "g5.xlarge", f"i-{group}", "", "10.0.0.5", "10.0.0.5")
        for group, site in (("a", "east"), ("b", "west"), ("c", "gone"))
    ]
    proxies = Providers(cluster, paths).proxies(nodes)
    assert proxies == {"a-0": "ssh -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -W [10.0.0.5]:22 me@bastion"}


METAL = """name: lab
sites:
  room:
    provider: baremetal
    jump: ops@bastion.lab
    hosts:
      "dgx[1-2].lab": { group: a }
      far.lab: { group: a, jump: "gate:2222" }
      desk.lab: { group: b }
groups:
  a: { site: room, machine: dgx-a100-80gb, count: 3 }
  b: { site: room, machine: dgx-a100-80gb, count: 1 }
"""


def in_sandbox(*names: str, site: str) -> list[Node]:
    return [
        Node(name, name.rpartition("-")[0], site, "m", f"id-{name}", "", f"10.77.250.{number}", f"10.77.250.{number}")
        for number, name in enumerate(names, start=4)
    ]


@pytest.mark.parametrize(
    ("text", "site", "names", "hosts"),
    [
        (FILE, "east", ["a-0"], {"a-0": "-p 2222 -W [10.77.250.4]:22 me@bastion"}),
        (FILE, "west", ["b-0"], {}),
        (METAL, "room", ["a-0", "a-1", "a-2", "b-0"], {
            "a-0": "-W [10.77.250.4]:22 ops@bastion.lab", "a-1": "-W [10.77.250.5]:22 ops@bastion.lab",
            "a-2": "-p 2222 -W [10.77.250.6]:22 gate", "b-0": "-W [10.77.250.7]:22 ops@bastion.lab",
        }),
        (METAL.replace("    jump: ops@bastion.lab\n", ""), "room", ["a-1", "a-2", "a-7", "b-0"],
         {"a-2": "-p 2222 -W [10.77.250.5]:22 gate"}),
    ],
)  # fmt: skip
def test_a_sandbox_has_the_same_way_by_a_configuration_of_its_own(
    tmp_path: Path, text: str, site: str, names: list[str], hosts: dict[str, str]
) -> None:
    cluster, _ = read(tmp_path, text)
    paths = ClusterPaths(tmp_path / "cluster.yaml", "lab", sandbox=True)
    ssh_command = f"ssh -F {paths.ssh}/jump-{site} -o BatchMode=yes -o ConnectTimeout=10 "
    proxies = Providers(cluster, paths).proxies(in_sandbox(*names, site=site))
    assert proxies == {name: ssh_command + arguments for name, arguments in hosts.items()}


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBastion"


def test_the_way_to_a_sandboxed_jump_host_is_written_and_a_stopped_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = read(tmp_path, FILE)
    paths = ClusterPaths(tmp_path / "cluster.yaml", "lab", sandbox=True)
    ssh_keys.ensure_key(paths, None)
    providers, nodes = Providers(cluster, paths), [*in_sandbox("a-0", site="east"), *in_sandbox("b-0", site="west")]
    monkeypatch.setattr(jump_host, "address_and_key", lambda *_: ("127.77.250.3", KEY))
    assert providers.save_jump_hosts(nodes) == {}
    assert [path.name for path in sorted(paths.ssh.glob("jump-*"))] == ["jump-east", "jump-east.known_hosts"]
    monkeypatch.undo()

    container = Container("i", "gpuprov-lab.jump.250", "lab", "", str(paths.site("east")), "jump", 250, "exited")
    monkeypatch.setattr(containers, "list_containers", lambda *_, **__: [container])
    failed = providers.save_jump_hosts(nodes)
    assert [*failed] == ["east"]
    assert "the simulated jump host me@bastion:2222 is exited, not running" in failed["east"].message
    assert "`gpuprov up` makes it again" in failed["east"].hint
    assert Providers(cluster, ClusterPaths(tmp_path, "lab", sandbox=False)).save_jump_hosts(nodes) == {}


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
