"""One fleet's life against moto: applied, planned again, destroyed. Most of it is the provider's waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.aws_root import Root

REGION = "us-west-2"
"""A region of its own, because other tests go on in moto's first one at the same time."""


@dataclass(frozen=True)
class Life:
    """What was seen. `replaced`, `renamed`, `grown`: address → action of a plan after the apply: with one node to be
    made anew, with the name of the site, and with a changed group. `alive`: what EC2 says of each node while it runs
    (`look`). `calls`: service:Action of every call from the first to the last."""

    nodes: dict[str, Any]
    alive: dict[str, dict[str, Any]]
    replaced: dict[str, str]
    renamed: dict[str, str]
    grown: dict[str, str]
    calls: frozenset[str]


def live(root: Root) -> Life:
    """Two p4d close together on spot and a g5, public, with file systems; then a bigger group of another kind, in
    another zone, with other user data; then nothing."""
    root.region = REGION
    images = root.cloud.register(REGION)
    groups: dict[str, Any] = {
        "train": {"machine": "p4d.24xlarge", "count": 2, "placement": "cluster", "capacity": {"kind": "spot"}},
        "infer": {"machine": "g5.xlarge", "count": 1},
    }
    aws: dict[str, Any] = {
        "zones": [f"{REGION}a", f"{REGION}b"],
        "groups": {name: {"image_id": images["x86_64"]} for name in groups},
        "internet": "public",
        "access": {"allow": ["203.0.113.0/24"], "instance_connect": True},
        "efs": {},
        "s3": [{"bucket": "data", "path": "/data"}],
    }
    common = {"tags": {"gpuprov-cluster": "test", "cost-centre": "42"}, "user_data": "#cloud-config\n{}\n"}
    root.write(groups, aws, **common)
    nodes = root.apply()
    alive = {name: look(root, node["id"]) for name, node in nodes.items()}
    replaced = root.changes('-replace=module.site.aws_instance.node["train-1"]')
    root.write(groups, {**aws, "site": "virginia"}, **common)
    renamed = root.changes()
    train = {"image_id": images["newer"], "kind": "on-demand", "zone": f"{REGION}b"}
    root.write(
        {**groups, "train": {**groups["train"], "count": 3, "root_gb": 500}},
        {**aws, "groups": {**aws["groups"], "train": train}},
        **{**common, "user_data": "#cloud-config\n{packages: []}\n"},
    )
    grown = root.changes()
    root.destroy()
    calls = frozenset(c for region, c in root.cloud.calls if region == REGION or c.startswith("iam:"))
    return Life(nodes, alive, replaced, renamed, grown, calls)


def look(root: Root, instance_id: str) -> dict[str, Any]:
    """An instance with its interfaces and its root volume, as EC2 describes them."""
    ec2 = root.cloud.client("ec2", REGION)
    (instance,) = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"]
    interfaces = [nic["NetworkInterfaceId"] for nic in instance["NetworkInterfaces"]]
    attached = [{"Name": "attachment.instance-id", "Values": [instance_id]}]
    return {
        "instance": instance,
        "interfaces": ec2.describe_network_interfaces(NetworkInterfaceIds=interfaces)["NetworkInterfaces"],
        "volumes": ec2.describe_volumes(Filters=attached)["Volumes"],
    }
