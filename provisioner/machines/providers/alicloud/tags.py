"""gpuprov's tags on things of Alibaba Cloud, as its services write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner.machines.providers.alicloud.client import Region

CLUSTER, SITE, NODE, GROUP, IDENTITY = "gpuprov-cluster", "gpuprov-site", "gpuprov-node", "gpuprov-group", "gpuprov-id"


def of(row: Mapping[str, Any]) -> dict[str, str]:
    """The tags of any service's row: each has its own name for them. Of a deployment set, which takes none, those that
    its description has."""
    tags = row.get("Tags") or {}
    rows = tags.get("Tag") if isinstance(tags, Mapping) else tags
    values = {str(row.get("TagKey", row.get("Key"))): str(row.get("TagValue", row.get("Value"))) for row in rows or ()}
    if not values and str(row.get("DeploymentSetDescription") or "").startswith("gpuprov-"):
        terms = str(row["DeploymentSetDescription"]).split()
        values = {key: value for key, _, value in (term.partition("=") for term in terms)}
    return values


def instances(region: Region, cluster: str, site: str) -> list[dict[str, Any]]:
    """The instances of a site that are not gone, by tag. Raises Trouble."""
    filters = [{"Key": CLUSTER, "Value": cluster}, {"Key": SITE, "Value": site}]
    rows = region.all("ecs", "DescribeInstances", "Instances", "Instance", Tag=filters)
    expected_tags = {CLUSTER: cluster, SITE: site}
    return [row for row in rows if expected_tags.items() <= of(row).items()]
