"""File systems that all machines of a site share: what cluster.yaml asks for and Terraform has made, and where it is
mounted on a node (role mounts)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.plan.models import Plan
from provisioner.rundir.fleet import Mount, Node
from provisioner.spec.shared_storage import SharedFileSystem


def unit(path: str) -> str:
    """The mount unit of a path, which systemd wants to be called so (systemd.mount(5), `systemd-escape --path`).

    >>> unit("/efs"), unit("/data/my-set")
    ('efs.mount', 'data-my\\\\x2dset.mount')
    """
    escaped = re.sub(r"[^A-Za-z0-9:_./]|^\.", lambda match: f"\\x{ord(match[0]):02x}", path.strip("/"))
    return escaped.replace("/", "-") + ".mount"


def expected(plan: Plan, node: Node) -> tuple[dict[str, str], ...]:
    """What has to be mounted on a node, as `_row` says; `source` is empty where Terraform has not made it yet. A
    sandbox makes no file system; a node that is held to an older lock has nothing that mounts a newer one's."""
    if plan.simulated:
        return ()
    able = {"", *(package.part for package in plan.group(node.group).stack.packages)}
    existing = {(mount.path, mount.type): mount for mount in node.mounts}
    site = plan.spec.sites.get(node.site)  # None where cluster.yaml does not name it any more
    return tuple(
        _row(
            existing.get((file_system.path, file_system.type)) or Mount(file_system.type, "", file_system.path, ""),
            file_system,
        )
        for file_system in (site.file_systems() if site else ())
        if file_system.component in able
    )


def _row(mount: Mount, file_system: SharedFileSystem) -> dict[str, str]:
    """One mount for the role and for the check. path, unit; type, source, options: what mount(8) is told; shows_type,
    shows_source: what the kernel's table has afterwards, `*` for what nobody can know before; access: rw or ro; part:
    of the lock that has to be there, empty for none."""
    arguments = file_system.arguments(mount.source, mount.options)._asdict()
    head = {"path": mount.path, "unit": unit(mount.path)}
    return {**head, **arguments, "access": file_system.access, "part": file_system.component}


def variables(plan: Plan, nodes: Iterable[Node]) -> dict[str, Any]:
    """`gpuprov_mounts` for the roles: site → its file systems, for sites of clouds. A sandbox mounts none: there only
    sites are in it whose lock has packages for the role. It is of what a node is configured from, so that another file
    system is a reason to run the role."""
    clouds = {name: site for name, site in plan.spec.sites.items() if site.shares}
    if plan.simulated:
        parts = {file_system.component for site in clouds.values() for file_system in site.file_systems()} - {""}
        sites = {g.site for g in plan.groups if {p.part for p in g.stack.packages} & parts}
        return {"gpuprov_mounts": {name: [] for name in clouds if name in sites}} if sites else {}
    rows_by_site: dict[str, list[dict[str, str]]] = {name: [] for name in clouds}
    for node in sorted(nodes, key=lambda node: node.name):
        if node.site in rows_by_site and not rows_by_site[node.site]:
            by_path = {
                (file_system.path, file_system.type): file_system for file_system in clouds[node.site].file_systems()
            }
            pairs = [(mount, by_path.get((mount.path, mount.type))) for mount in node.mounts]
            rows_by_site[node.site] = [
                _row(mount, file_system) for mount, file_system in pairs if file_system is not None
            ]
    return {"gpuprov_mounts": rows_by_site} if rows_by_site else {}


def holds_data(address: str, holders: Collection[str]) -> bool:
    """Whether a resource of Terraform is of one of these types, which have data that is nowhere else."""
    return bool({part.partition("[")[0] for part in address.split(".")} & set(holders))


def refuse_loss(actions: Iterable[tuple[str, str]], site: str, holders: Collection[str]) -> None:
    """Raise ProviderError where Terraform's plan (address, action) would remove a file system: a line that is gone from
    cluster.yaml is no reason to lose data. `down` removes it, and says so. `holders`: types of resources with data that
    is nowhere else."""
    lost = [address for address, action in actions if action in ("delete", "replace") and holds_data(address, holders)]
    if lost:
        raise ProviderError(
            f"{', '.join(lost)} would be removed with its data, because cluster.yaml does not ask for it as it is. "
            "Nothing was done",
            where=f"site {site}",
            hint="put sites.*.storage back as it was. To delete the data, remove the file system in the provider's "
            "console and run the command again",
        )
