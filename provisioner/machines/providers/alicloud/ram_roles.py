"""RAM roles that terraform/alicloud makes for nodes: the whole account's, told by their names and descriptions, which
have gpuprov's tags. https://www.alibabacloud.com/help/en/ram/developer-reference/api-ram-2015-05-01-overview"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.machines.providers.alicloud.client import MOST_PAGES, Region
from provisioner.machines.providers.orphans import Thing
from provisioner.machines.providers.removal import described_role
from provisioner.machines.providers.trouble import Trouble, gone_is_fine

KIND = "RAM role"


def find(region: Region) -> Iterator[Thing]:
    """Raises Trouble."""
    for row in _listed(region):
        yield from described_role(KIND, "RAM", str(row["RoleName"]), str(row.get("Description") or ""))


def delete(region: Region, name: str) -> None:
    """With its policy, which has its name. What is gone is fine. Raises Trouble."""
    policy = {"PolicyType": "Custom", "PolicyName": name}
    _delete_if_present(region, "DetachPolicyFromRole", RoleName=name, **policy)
    _delete_if_present(region, "DeletePolicy", PolicyName=name)
    _delete_if_present(region, "DeleteRole", RoleName=name)


def _delete_if_present(region: Region, action: str, **arguments: str) -> None:
    with gone_is_fine():
        region.ask("ram", action, **arguments)


def _listed(region: Region) -> Iterator[dict[str, Any]]:
    """Every role of the account, page after page. Raises Trouble."""
    marker = None
    for _ in range(MOST_PAGES):
        answer = region.ask("ram", "ListRoles", Marker=marker, MaxItems=100)
        yield from (answer.get("Roles") or {}).get("Role") or ()
        marker = answer.get("Marker") if str(answer.get("IsTruncated")).lower() == "true" else None
        if not marker:
            return
    raise Trouble("refused", f"ListRoles has more than {MOST_PAGES} pages")
