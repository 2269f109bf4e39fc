"""gpuprov's tags on things of Alibaba Cloud, as its services write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner.providers.alicloud.client import Region

CLUSTER, SITE, NODE, GROUP, IDENTITY = "gpuprov-cluster", "gpuprov-site", "gpuprov-node", "gpuprov-group", "gpuprov-id"


def of(row: Mapping[str, Any]) -> dict[str, str]:
    """The tags of any service's row: each has its own name for them. Of a deployment set, which takes none, those that
    its description has."""
    found = row.get("Tags") or {}
    rows = found.get("Tag") if isinstance(found, Mapping) else found
    told = {str(one.get("TagKey", one.get("Key"))): str(one.get("TagValue", one.get("Value"))) for one in rows or ()}
    if not told and str(row.get("DeploymentSetDescription") or "").startswith("gpuprov-"):
        words = str(row["DeploymentSetDescription"]).split()
        told = {key: value for key, _, value in (word.partition("=") for word in words)}
    return told


def instances(region: Region, cluster: str, site: str) -> list[dict[str, Any]]:
    """The instances of a site that are not gone, by tag. Raises Trouble."""
    wanted = [{"Key": CLUSTER, "Value": cluster}, {"Key": SITE, "Value": site}]
    rows = region.all("ecs", "DescribeInstances", "Instances", "Instance", Tag=wanted)
    mine = {CLUSTER: cluster, SITE: site}
    return [row for row in rows if mine.items() <= of(row).items()]
