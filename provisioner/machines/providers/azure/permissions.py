"""Whether these credentials may do what `up` and `down` do: their effective permissions as Azure has them, against
actions.yaml. Deny assignments, Azure Policy and locks are not among them.

https://learn.microsoft.com/rest/api/authorization/permissions/list-for-resource-group
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.common.text import few
from provisioner.machines.providers import actions
from provisioner.machines.providers.azure.client import Subscription, parts
from provisioner.machines.providers.azure.findings import unknown
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.trouble import Trouble

API = "2022-04-01"
MOST = 6
"""Actions that are told one by one."""
ROLE = "`gpuprov docs azure permissions` has the role"
SUBNETS = "Microsoft.Network/virtualNetworks/subnets/"
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities/"


def required(site: AzureSite) -> frozenset[str]:
    """What `up` and `down` call for the resources that cluster.yaml asks for."""
    own_network = site.subnet is None
    features = {
        "own_group": site.resource_group is None, "own_network": own_network, "public": site.internet == "public",
        "nat": site.internet == "nat" and own_network, "files": site.storage.files is not None,
        "identities": bool(site.identities),
    }  # fmt: skip
    table = actions.load("azure")
    return table.of_resources(table.with_features(name for name, enabled in features.items() if enabled))


def by_scope(subscription: Subscription) -> dict[str, set[str]]:
    """Scope → the actions that are called there. A subnet and identities that cluster.yaml names are in resource groups
    of their own."""
    site = subscription.site
    main = subscription.scope + (f"/resourceGroups/{site.resource_group}" if site.resource_group else "")
    existing = [(SUBNETS, site.subnet)] if site.subnet else []
    existing += [(IDENTITIES, identity) for identity in site.identities]
    scopes = {main: {name for name in required(site) if not name.startswith(tuple(kind for kind, _ in existing))}}
    for kind, number in existing:
        names = parts(number)
        group = f"/subscriptions/{names['subscriptions']}/resourceGroups/{names['resourcegroups']}"
        scopes.setdefault(group, set()).update(name for name in required(site) if name.startswith(kind))
    return scopes


def findings(subscription: Subscription) -> Iterator[Finding]:
    refused: set[str] = set()
    answered = 0
    for scope, names in by_scope(subscription).items():
        try:
            rows = subscription.get(f"{scope}/providers/Microsoft.Authorization/permissions", API).get("value", [])
        except Trouble as error:
            yield unknown("permissions", error, "Microsoft.Authorization/permissions/read")
            continue
        answered += len(names)
        refused |= {name for name in names if not allowed(rows, name)}
    if refused:
        listed = few(sorted(refused), MOST, ",")
        yield Finding("blocks", "permissions", f"these credentials may not {listed}", ROLE)
    elif answered:
        yield Finding("ok", "permissions", f"{answered} actions")


def allowed(rows: Sequence[Mapping[str, Any]], action: str) -> bool:
    """Whether one of the roles has an action, and does not take it out again."""

    def among(patterns: Sequence[str] | None) -> bool:
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns or ())

    return any(among(row.get("actions")) and not among(row.get("notActions")) for row in rows)
