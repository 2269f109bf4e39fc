"""What the AWS module would make, by Terraform's own plan: every machine of the catalogue, every way to buy it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from provisioner import catalog
from provisioner.catalog.models import Machine
from tests.support.aws_root import Root
from tests.support.moto_aws import REGION, SEEDED, Cloud

pytestmark = [pytest.mark.heavy, pytest.mark.shares("aws"), pytest.mark.begins(1)]

MACHINES = [row for row in catalog.load().listed.values() if row.provider == "aws"]
WITHOUT_GPUS = [row for row in catalog.load().without_gpus.values() if row.provider == "aws"]
Interface = tuple[int, int, str]


def cards(count: int) -> list[Interface]:
    """An EFA for each network card: the first with an address, device index 0; the others without, device index 1."""
    return [(0, 0, "efa"), *((card, 1, "efa-only") for card in range(1, count))]


# EC2 user guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards" (efa-acc-inst-types):
# card 0 device 0 EFA with ENA, each further card device 1 and EFA-only, one for each card that its table of network
# cards gives the machine. p6-b300: AWS's engineers as quoted in github.com/aws/aws-parallelcluster/issues/7143: card 0
# takes a plain interface only, 16 EFA-only on cards 1 to 16 with device index 0. p6e-gb200: unverified, as the
# catalogue has it.
DOCUMENTED: dict[str, list[Interface]] = {
    "p3.2xlarge": [(0, 0, "interface")],
    "p3.8xlarge": [(0, 0, "interface")],
    "p3.16xlarge": [(0, 0, "interface")],
    "p3dn.24xlarge": cards(1),
    "p4d.24xlarge": cards(4),
    "p4de.24xlarge": cards(4),
    "p5.4xlarge": cards(1),
    "p5.48xlarge": cards(32),
    "p5e.48xlarge": cards(32),
    "p5en.48xlarge": cards(16),
    "p6-b200.48xlarge": cards(8),
    "p6-b300.48xlarge": [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))],
    "p6e-gb200.36xlarge": cards(4),
    "g4dn.xlarge": [(0, 0, "interface")],
    "g4dn.12xlarge": cards(1),
    "g4dn.metal": cards(1),
    "g5.xlarge": [(0, 0, "interface")],
    "g5.12xlarge": cards(1),
    "g5.48xlarge": cards(1),
    "g6.xlarge": [(0, 0, "interface")],
    "g6.48xlarge": cards(1),
    "g6e.xlarge": [(0, 0, "interface")],
    "g6e.12xlarge": cards(1),
    "g6e.48xlarge": cards(4),
    "g7e.48xlarge": cards(4),
}


def group_name(machine: Machine) -> str:
    return machine.name.replace(".", "-")


def efas(machine: Machine) -> int:
    return machine.network.ports if machine.network.kind == "efa" else 0


@dataclass(frozen=True)
class Planned:
    """What one call of the module would make. `configured`: the module's own resources, as they are written."""

    made: list[tuple[str, str, dict[str, Any]]]
    configured: dict[str, dict[str, Any]]
    subnets: dict[str, str]


def planned(document: dict[str, Any], call: str, subnets: dict[str, str]) -> Planned:
    """Of `terraform show -json`: address below the module, type and values of all that would be made."""
    modules = {m["address"]: m for m in document["planned_values"]["root_module"]["child_modules"]}
    module = f"module.{call}"
    planned_resources = [
        (resource["address"].removeprefix(f"{module}."), resource["type"], resource["values"])
        for resource in modules[module]["resources"]
        if resource["mode"] == "managed"
    ]
    written = document["configuration"]["root_module"]["module_calls"][call]["module"]["resources"]
    return Planned(planned_resources, {resource["address"]: resource for resource in written}, subnets)


def resources(module_plan: Planned, kind: str) -> dict[str, dict[str, Any]]:
    """Address below the module → values of every planned resource of that type."""
    return {address: values for address, resource_type, values in module_plan.made if resource_type == kind}


def templates(module_plan: Planned) -> dict[str, dict[str, Any]]:
    """Group → values of its launch template."""
    return {address.split('"')[1]: t for address, t in resources(module_plan, "aws_launch_template").items()}


def every_machine(cloud: Cloud) -> dict[str, Any]:
    """Every machine of the catalogue in private subnets, with everything that can be asked for."""
    return {
        "groups": {
            group_name(m): {"machine": m.name, "count": 1, "placement": "cluster", "root_gb": 300, "zone": ""}
            for m in MACHINES
        },
        "aws": {
            "zones": [f"{REGION}a", f"{REGION}b"],
            "groups": {
                group_name(m): {
                    "image_id": cloud.images["arm64" if m.cpu == "arm64" else "x86_64"],
                    "network_cards": m.network.cards,
                    "efa_interfaces": efas(m),
                }
                for m in MACHINES
            },
            "nat_per_zone": True,
            "access": {"allow": ["203.0.113.0/24", "2001:db8::/32"], "instance_connect": True},
            "root": {"iops": 4000, "throughput": 1000},
            "fsx": {"capacity_gib": 2400},
            "efs": {},
            "s3": [
                {"bucket": "data", "prefix": "sets/", "path": "/data"},
                {"bucket": "out", "path": "/o", "write": True},
            ],
        },
        "tags": {"gpuprov-cluster": "test", "cost-centre": "42"},
    }


KMS = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def every_way(cloud: Cloud, vpc: str) -> dict[str, Any]:
    """Machines bought in every way, in somebody's VPC, with public addresses."""
    arn = "arn:aws:resource-groups:us-east-1:123456789012:group/mine"
    purchases: dict[str, dict[str, Any]] = {
        "demand": {"capacity": {"kind": "on-demand"}},
        "spot": {"capacity": {"kind": "spot", "fallback": ["on-demand"]}},
        "fell-back": {"capacity": {"kind": "spot", "fallback": ["on-demand"]}},
        "named": {"capacity": {"kind": "reservation", "id": "cr-0123456789abcdef0"}, "placement": "cluster"},
        "pooled": {"capacity": {"kind": "reservation", "id": arn}, "placement": "cluster"},
        "block": {"capacity": {"kind": "block", "id": "cr-0123456789abcdef1"}, "machine": "p5.48xlarge"},
    }
    return {
        "groups": {
            name: {"machine": "g6.48xlarge", "count": 2, "zone": f"{REGION}b", **purchase}
            for name, purchase in purchases.items()
        },
        "aws": {
            "site": "east",
            "groups": {
                **{name: {"image_id": cloud.images["x86_64"]} for name in purchases},
                "fell-back": {"image_id": cloud.images["x86_64"], "kind": "on-demand", "zone": f"{REGION}a"},
                "named": {"image_id": cloud.images["x86_64"], "placement_group": "theirs"},
            },
            "vpc": {"id": vpc, "subnet_tags": {"tier": "gpu"}},
            "internet": "public",
            "access": {"from_groups": ["sg-0123456789abcdef0"], "ssm": False},
            "instance_profile": "ours",
            "spot_max_price": "10.5",
            "security_groups": ["sg-0123456789abcdef1"],
            "root": {"kms_key_id": KMS},
            "metadata_hop_limit": 2,
        },
        "user_data": "#cloud-config\n",
    }


@pytest.fixture(scope="module")
def both(started: object, new_root: Any, cloud: Cloud) -> dict[str, Planned]:
    """One plan of three calls: most of a plan's time is the provider's start."""
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate("ab"):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{number}.0/24", AvailabilityZone=f"{REGION}{zone}")
        subnets[zone] = subnet["Subnet"]["SubnetId"]
        ec2.create_tags(Resources=[subnets[zone]], Tags=[{"Key": "tier", "Value": "gpu"}])
    ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.9.0/24", AvailabilityZone=f"{REGION}a")
    root: Root = new_root()
    closed = {
        "groups": {"lone": {"machine": "g6.xlarge", "count": 1}, "head": {"machine": "m6i.large", "count": 1}},
        "aws": {
            "groups": {
                "lone": {"image_id": cloud.images["x86_64"]},
                "head": {"image_id": cloud.images["x86_64"], "efa_interfaces": 0},
            },
            "internet": "none",
        },
    }
    calls = {"site": every_machine(cloud), "guest": every_way(cloud, vpc), "closed": closed}
    root.write_calls(calls)
    document = root.plan()
    return {call: planned(document, call, subnets) for call in calls}


@pytest.fixture
def fleet(both: dict[str, Planned]) -> Planned:
    """Every machine, in a VPC of its own."""
    return both["site"]


@pytest.fixture
def guest(both: dict[str, Planned]) -> Planned:
    """Every way to buy, in a VPC that exists."""
    return both["guest"]


def test_every_machine_of_the_catalogue_is_documented_here() -> None:
    assert set(DOCUMENTED) == {machine.name for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_interfaces_are_as_documented(machine: Machine, fleet: Planned) -> None:
    template = templates(fleet)[group_name(machine)]
    actual = [
        (nic["network_card_index"] or 0, nic["device_index"] or 0, nic["interface_type"] or "interface")
        for nic in template["network_interfaces"]
    ]
    assert actual == DOCUMENTED[machine.name]
    assert template["instance_type"] == machine.name
    for nic in template["network_interfaces"]:
        assert nic["delete_on_termination"] == "true"
        # beside several interfaces not even `false` is allowed
        assert (nic["associate_public_ip_address"] or None) == ("false" if len(actual) == 1 else None)


def test_a_machine_without_gpus_has_one_plain_interface(both: dict[str, Planned]) -> None:
    head = templates(both["closed"])["head"]
    assert (head["instance_type"], head["placement"]) == ("m6i.large", [])
    (nic,) = head["network_interfaces"]
    assert (nic["network_card_index"] or 0, nic["interface_type"] or None) == (0, None)
    assert 'aws_instance.node["head-0"]' in resources(both["closed"], "aws_instance")


@pytest.mark.parametrize(
    "machine",
    [m for m in (*MACHINES, *WITHOUT_GPUS) if m.name not in SEEDED],
    ids=lambda m: m.name,
)
def test_the_catalogue_agrees_with_what_ec2_says_of_a_machine(machine: Machine, cloud: Cloud) -> None:
    described = cloud.client("ec2").describe_instance_types(InstanceTypes=[machine.name])["InstanceTypes"][0]
    network = described["NetworkInfo"]
    assert network["MaximumNetworkCards"] == machine.network.cards
    assert network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) == efas(machine)
    disks = described.get("InstanceStorageInfo", {}).get("Disks", [])
    assert sum(disk["Count"] for disk in disks) == machine.local_nvme.count
    assert ("cluster" in described["PlacementGroupInfo"]["SupportedStrategies"]) == machine.placement_cluster
    assert described["ProcessorInfo"]["SupportedArchitectures"] == ["arm64" if machine.cpu == "arm64" else "x86_64"]


def test_metadata_needs_a_token_and_one_hop(fleet: Planned, guest: Planned) -> None:
    assert len(templates(fleet)) == len(MACHINES)
    for module_plan, hops in ((fleet, 1), (guest, 2)):
        for template in templates(module_plan).values():
            (options,) = template["metadata_options"]
            assert options["http_tokens"] == "required"
            assert options["http_endpoint"] == "enabled"
            assert options["http_put_response_hop_limit"] == hops


def test_disks_are_encrypted(fleet: Planned) -> None:
    for template in templates(fleet).values():
        (mapping,) = template["block_device_mappings"]
        (disk,) = mapping["ebs"]
        assert mapping["device_name"] == "/dev/sda1"
        assert (disk["encrypted"], disk["volume_type"], disk["volume_size"]) == ("true", "gp3", 300)
        assert (disk["iops"], disk["throughput"], disk["delete_on_termination"]) == (4000, 1000, "true")
    (shared,) = resources(fleet, "aws_efs_file_system").values()
    assert shared["encrypted"] is True


def test_nothing_is_open_to_the_world(fleet: Planned, guest: Planned) -> None:
    for module_plan in (fleet, guest):
        for address, kind, values in module_plan.made:
            assert kind != "aws_security_group" or not values.get("ingress"), address
            if kind == "aws_vpc_security_group_ingress_rule":
                assert values["cidr_ipv4"] not in ("0.0.0.0/0",), address
                assert values["cidr_ipv6"] not in ("::/0",), address
                from_nodes = address == "aws_vpc_security_group_ingress_rule.self"
                assert from_nodes or (values["ip_protocol"], values["from_port"], values["to_port"]) == ("tcp", 22, 22)
    cidrs = {
        values["cidr_ipv4"] or values["cidr_ipv6"]
        for address, values in resources(fleet, "aws_vpc_security_group_ingress_rule").items()
        if ".ssh[" in address
    }
    assert cidrs == {"203.0.113.0/24", "2001:db8::/32"}
    (unused,) = resources(fleet, "aws_default_security_group").values()
    assert not unused.get("ingress")
    assert not unused.get("egress")


def test_efa_traffic_goes_both_ways_among_nodes(fleet: Planned) -> None:
    for kind in ("ingress", "egress"):
        rule = resources(fleet, f"aws_vpc_security_group_{kind}_rule")[f"aws_vpc_security_group_{kind}_rule.self"]
        assert (rule["ip_protocol"], rule["cidr_ipv4"], rule["from_port"]) == ("-1", None, None)
        expressions = fleet.configured[f"aws_vpc_security_group_{kind}_rule.self"]["expressions"]
        for end in ("security_group_id", "referenced_security_group_id"):
            assert "aws_security_group.nodes.id" in expressions[end]["references"]


def test_private_nodes_have_a_way_out_and_none_in(fleet: Planned) -> None:
    assert set(resources(fleet, "aws_nat_gateway")) == {f'aws_nat_gateway.own["{REGION}{z}"]' for z in "ab"}
    assert not resources(fleet, "aws_eip_association")
    for subnet in resources(fleet, "aws_subnet").values():
        assert not subnet["map_public_ip_on_launch"]
    blocks = {s["cidr_block"] for s in resources(fleet, "aws_subnet").values()}
    assert blocks == {"10.77.0.0/19", "10.77.32.0/19", "10.77.224.0/23", "10.77.226.0/23"}
    (s3,) = resources(fleet, "aws_vpc_endpoint").values()
    assert s3["service_name"] == f"com.amazonaws.{REGION}.s3"


def test_closed_nodes_reach_session_manager_alone(both: dict[str, Planned]) -> None:
    closed = both["closed"]
    kinds = {kind for _, kind, _ in closed.made}
    assert not kinds & {"aws_internet_gateway", "aws_nat_gateway", "aws_route", "aws_eip"}
    services = {values["service_name"].rsplit(".", 1)[1] for values in resources(closed, "aws_vpc_endpoint").values()}
    assert services == {"s3", "ssm", "ssmmessages"}
    assert set(resources(closed, "aws_subnet")) == {f'aws_subnet.nodes["{REGION}a"]'}  # no zone was named: the first


def test_cost_and_owner_are_on_everything_that_takes_tags(fleet: Planned) -> None:
    expected = {"gpuprov-cluster": "test", "cost-centre": "42"}
    tagged_count = 0
    for address, kind, values in fleet.made:
        if "tags" in values:
            assert expected.items() <= (values["tags"] or {}).items(), address
            tagged_count += 1
        if kind == "aws_launch_template":
            specs = {spec["resource_type"]: spec["tags"] for spec in values["tag_specifications"]}
            assert set(specs) == {"volume", "network-interface"}
            assert all(expected.items() <= tags.items() for tags in specs.values())
    assert tagged_count > 100


def test_nodes_may_do_nothing_that_was_not_asked_for(fleet: Planned) -> None:
    assert not resources(fleet, "aws_iam_role_policy_attachment")
    policies = resources(fleet, "aws_iam_role_policy")
    assert set(policies) == {"aws_iam_role_policy.ssm[0]", "aws_iam_role_policy.s3[0]"}
    (session,) = json.loads(policies["aws_iam_role_policy.ssm[0]"]["policy"])["Statement"]
    assert all(
        action.startswith("ssmmessages:") or action == "ssm:UpdateInstanceInformation" for action in session["Action"]
    )
    buckets = json.loads(policies["aws_iam_role_policy.s3[0]"]["policy"])["Statement"]
    writers = [s["Resource"] for s in buckets if "s3:PutObject" in s["Action"]]
    assert writers == ["arn:aws:s3:::out/*"]
    assert {s["Resource"] for s in buckets} == {
        "arn:aws:s3:::data",
        "arn:aws:s3:::data/sets/*",
        "arn:aws:s3:::out",
        "arn:aws:s3:::out/*",
    }
    assert [s["Condition"] for s in buckets if "Condition" in s] == [{"StringLike": {"s3:prefix": ["sets/*"]}}]


def test_placement_groups_are_one_for_each_zone(fleet: Planned) -> None:
    placement_groups = resources(fleet, "aws_placement_group")
    assert len(placement_groups) == 2 * len(MACHINES)
    assert all(group["strategy"] == "cluster" for group in placement_groups.values())
    for name, template in templates(fleet).items():
        assert [p["group_name"] for p in template["placement"]] == [f"gpuprov-test-{name}-{REGION}a"]


def test_what_is_reserved_stands_where_it_was_reserved(guest: Planned) -> None:
    """In the reservation's own placement group or in none: a new one does not match what is reserved."""
    group_names = {
        (name, p["group_name"]) for name, template in templates(guest).items() for p in template["placement"]
    }
    assert group_names == {("named", "theirs")}


def test_root_volumes_are_encrypted_with_the_key_that_is_named(guest: Planned) -> None:
    keys = {t["block_device_mappings"][0]["ebs"][0]["kms_key_id"] for t in templates(guest).values()}
    assert keys == {KMS}


def test_a_vpc_that_exists_is_left_as_it_is(guest: Planned) -> None:
    kinds = {kind for _, kind, _ in guest.made}
    assert not kinds & {
        "aws_vpc",
        "aws_subnet",
        "aws_route",
        "aws_route_table",
        "aws_internet_gateway",
        "aws_nat_gateway",
    }
    assert "aws_default_security_group" not in kinds
    assert not kinds & {"aws_iam_role", "aws_iam_instance_profile"}
    assert set(resources(guest, "aws_eip_association")) == {f'aws_eip_association.node["block-{i}"]' for i in range(2)}
    for name, template in templates(guest).items():
        zone = "a" if name == "fell-back" else "b"
        interfaces = template["network_interfaces"]
        assert {nic["subnet_id"] for nic in interfaces} == {guest.subnets[zone]}
        if len(interfaces) == 1:
            assert interfaces[0]["associate_public_ip_address"] == "true"
        assert [profile["name"] for profile in template["iam_instance_profile"]] == ["ours"]
        assert template["name"] == f"gpuprov-test-east-{name}"


@pytest.mark.parametrize(
    ("group", "market", "reservation"),
    [
        ("demand", None, None),
        ("spot", "spot", None),
        ("fell-back", None, None),
        ("named", None, "cr-0123456789abcdef0"),
        ("pooled", None, "arn:aws:resource-groups:us-east-1:123456789012:group/mine"),
        ("block", "capacity-block", "cr-0123456789abcdef1"),
    ],
)
def test_machines_are_bought_as_the_group_says(
    group: str, market: str | None, reservation: str | None, guest: Planned
) -> None:
    template = templates(guest)[group]
    assert [o["market_type"] for o in template["instance_market_options"]] == ([market] if market else [])
    if market == "spot":
        (options,) = template["instance_market_options"][0]["spot_options"]
        assert (options["spot_instance_type"], options["instance_interruption_behavior"]) == ("one-time", "terminate")
        assert options["max_price"] == "10.5"
        assert "spot-instances-request" in {s["resource_type"] for s in template["tag_specifications"]}
    targets = [t for s in template["capacity_reservation_specification"] for t in s["capacity_reservation_target"]]
    reservation_ids = [t["capacity_reservation_id"] or t["capacity_reservation_resource_group_arn"] for t in targets]
    assert reservation_ids == ([reservation] if reservation else [])


def test_what_cannot_work_is_refused_with_the_page_that_says_so(root: Root, cloud: Cloud) -> None:
    x86, arm = cloud.images["x86_64"], cloud.images["arm64"]
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
        "cards": (
            {},
            {"network_cards": 8, "efa_interfaces": 8},
            "p4d.24xlarge has 4 network cards, not 8. https://docs.aws",
        ),
        "efas": ({"machine": "g5.xlarge"}, {"efa_interfaces": 1}, "g5.xlarge takes 0 EFAs, not 1. https://docs.aws"),
        "some": ({}, {"efa_interfaces": 2}, "2 EFAs on 4 network cards: give the whole map"),
        "first": (
            {},
            {"interfaces": [{"card": 1, "device": 1, "type": "efa-only"}]},
            "the first interface is device 0 of card 0",
        ),
        "cpu": ({}, {"image_id": arm}, f"{arm} is for arm64, p4d.24xlarge is x86_64"),
        "disk": ({"root_gb": 4}, {}, f"root_gb is smaller than the disk of {x86}"),
        "block": ({"capacity": {"kind": "block"}}, {}, "a capacity block is named by its reservation"),
        "placed": (
            {"capacity": {"kind": "block", "id": "cr-0123456789abcdef1"}, "placement": "cluster"},
            {},
            "a capacity block takes no placement group",
        ),
        "reserved": ({"capacity": {"kind": "reservation", "id": "mine"}}, {}, "a reservation is named by its id"),
        "stray": ({"capacity": {"kind": "spot", "id": "cr-1"}}, {}, "only a reservation or a block has an id"),
        "kind": ({"capacity": {"kind": "free"}}, {}, "kind is on-demand, spot, reservation or block"),
    }
    root.write(
        {name: {"machine": "p4d.24xlarge", "count": 1, **group} for name, (group, _, _) in wrong.items()},
        {
            "zones": [f"{REGION}a"],
            "groups": {name: {"image_id": x86, **group} for name, (_, group, _) in wrong.items()},
        },
    )
    site = json.loads((root.folder / "main.tf.json").read_text(encoding="utf-8"))["module"]["site"]
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    twins = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.8.{i}.0/24", AvailabilityZone=f"{REGION}a")["Subnet"]["SubnetId"]
        for i in range(2)
    ]
    guest_call = {
        "groups": {zone: {"machine": "g6.xlarge", "count": 1, "zone": f"{REGION}{zone}"} for zone in "ab"},
        "aws": {"groups": {zone: {"image_id": x86} for zone in "ab"}, "vpc": {"id": vpc, "subnet_ids": twins}},
    }
    root.write_calls({"site": {key: site[key] for key in ("groups", "aws")}, "guest": guest_call})
    refusal = root.refusal()
    for name, (_, _, message) in wrong.items():
        assert f"Group {name}: {message}" in refusal, name
    assert f"Group a: several subnets are in {REGION}a" in refusal
    assert f"Group b: no subnet of the VPC is in {REGION}b" in refusal


def test_wrong_values_are_refused_before_anything_is_asked_of_aws(root: Root) -> None:
    site = {
        "name": "Not_a_name",
        "user_data": "x" * 16385,
        "groups": {"train": {"machine": "p4d.24xlarge", "count": 1, "placement": "spread"}},
        "aws": {
            "groups": {"train": {"image_id": "ubuntu-24.04"}},
            "vpc": {"id": "vpc-0"},
            "internet": "sometimes",
            "metadata_hop_limit": 3,
            "access": {"allow": ["0.0.0.0/0"]},
            "root": {"iops": 3000, "throughput": 1000},
        },
    }
    alone = {"groups": {}, "security_groups": ["sg-0123456789abcdef0"]}
    root.write_calls(
        {
            "closed": {"groups": {}, "aws": alone},
            "site": site,
            "guest": {"groups": {}, "aws": {"groups": {}, "access": {"ssm": False}}},
        }
    )
    refusal = root.refusal()
    for message in (
        "The name has lower-case letters",
        "placement is cluster or null",
        "image_id is an image's id",
        "A VPC that exists needs subnet_ids or subnet_tags",
        "internet is nat, public or none",
        "metadata_hop_limit is 1, or 2",
        "ssh is never opened to every address",
        "gp3 has 3000 to 16000 IOPS",
        "User data has at most 16 KiB",
        "Nobody could log in",
        "security_groups are of a VPC that exists",
    ):
        assert message in refusal
