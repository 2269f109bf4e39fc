"""CAM roles that terraform/tencent makes for nodes: the whole account's, told by their names and descriptions, which
have gpuprov's tags. https://cloud.tencent.com/document/product/598/33165"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.machines.providers.orphans import Thing
from provisioner.machines.providers.removal import described_role
from provisioner.machines.providers.tencent.client import MOST_PAGES, Region
from provisioner.machines.providers.trouble import Trouble, gone_is_fine

KIND = "CAM role"
ROWS = 200
"""On one page, CAM's most."""


def find(region: Region) -> Iterator[Thing]:
    """Raises Trouble."""
    for row in _listed(region, "DescribeRoleList"):
        yield from described_role(KIND, "CAM", str(row["RoleName"]), str(row.get("Description") or ""))


def delete(region: Region, name: str) -> None:
    """With its policy, which has its name. What is gone is fine. Raises Trouble."""
    for row in list(_listed(region, "ListPolicies", Keyword=name, Scope="Local")):
        if row.get("PolicyName") == name:
            number = int(row["PolicyId"])
            _delete_if_present(region, "DetachRolePolicy", PolicyId=number, DetachRoleName=name)
            _delete_if_present(region, "DeletePolicy", PolicyId=[number])
    _delete_if_present(region, "DeleteRole", RoleName=name)


def _delete_if_present(region: Region, action: str, **arguments: Any) -> None:
    with gone_is_fine():
        region.ask("cam", action, **arguments)


def _listed(region: Region, action: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """The rows of every page. Raises Trouble."""
    for number in range(1, MOST_PAGES + 1):
        rows = region.ask("cam", action, Page=number, Rp=ROWS, **arguments).get("List") or []
        yield from rows
        if len(rows) < ROWS:
            return
    raise Trouble("refused", f"{action} has more than {MOST_PAGES} pages")
