"""Whether these credentials may do what `up` and `down` do: their effective permissions as Azure has them, against
actions.yaml. Deny assignments, Azure Policy and locks are not among them.

https://learn.microsoft.com/rest/api/authorization/permissions/list-for-resource-group
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner import yaml_text
from provisioner.preflight import Finding
from provisioner.providers.azure.client import Subscription, parts
from provisioner.providers.azure.findings import unknown
from provisioner.providers.azure.site import AzureSite
from provisioner.providers.trouble import Trouble
from provisioner.text import few

API = "2022-04-01"
MOST = 6
"""Actions that are told one by one."""
ROLE = "docs/azure.md has the role"


@cache
def actions() -> Mapping[str, tuple[str, ...]]:
    """actions.yaml: what asks for them → names of actions."""
    text = files("provisioner.providers.azure").joinpath("actions.yaml").read_text(encoding="utf-8")
    return {key: tuple(names) for key, names in yaml_text.load(text).items()}


def wanted(site: AzureSite) -> list[str]:
    """What `up` and `down` call in the resource group, with what cluster.yaml asks for."""
    asks = {
        "always": True, "own_group": site.resource_group is None, "own_network": site.subnet is None,
        "public": site.internet == "public" or (site.internet == "nat" and site.subnet is None),
        "nat": site.internet == "nat" and site.subnet is None, "files": site.storage.files is not None,
    }  # fmt: skip
    return [name for key, asked in asks.items() if asked for name in actions()[key]]


def findings(subscription: Subscription) -> Iterator[Finding]:
    site = subscription.site
    scope = subscription.scope + (f"/resourceGroups/{site.resource_group}" if site.resource_group else "")
    places = {scope: wanted(site)}
    if site.subnet:
        names = parts(site.subnet)
        group = f"/subscriptions/{names['subscriptions']}/resourceGroups/{names['resourcegroups']}"
        places[group] = [*places.get(group, []), *actions()["join"]]
    for one in site.identities:
        names = parts(one)
        group = f"/subscriptions/{names['subscriptions']}/resourceGroups/{names['resourcegroups']}"
        places[group] = [*places.get(group, []), *actions()["assign"]]
    refused: list[str] = []
    for where, asked in places.items():
        try:
            rows = subscription.get(f"{where}/providers/Microsoft.Authorization/permissions", API).get("value", [])
        except Trouble as trouble:
            yield unknown("permissions", trouble, "Microsoft.Authorization/permissions/read")
            continue
        refused += [name for name in asked if not allowed(rows, name)]
    if refused:
        told = few(refused, MOST, ",")
        yield Finding("blocks", "permissions", f"these credentials may not {told}", ROLE)
    else:
        yield Finding("ok", "permissions", f"{sum(map(len, places.values()))} actions")


def allowed(rows: Sequence[Mapping[str, Any]], action: str) -> bool:
    """Whether one of the roles has an action, and does not take it out again."""

    def among(patterns: Sequence[str] | None) -> bool:
        return any(fnmatchcase(action.lower(), one.lower()) for one in patterns or ())

    return any(among(row.get("actions")) and not among(row.get("notActions")) for row in rows)
