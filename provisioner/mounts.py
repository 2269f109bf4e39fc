"""File systems that all machines of a site share: what cluster.yaml asks for and Terraform has made, and where it is
mounted on a node (role mounts)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from provisioner.errors import ProviderError
from provisioner.plan import Plan
from provisioner.spec.models import AwsSite, Site

if TYPE_CHECKING:
    from provisioner.fleet import Node

DATA = re.compile(r"(^|\.)aws_(efs|fsx_lustre)_file_system\.")
"""Terraform's addresses of what holds data that is nowhere else."""


@dataclass(frozen=True, slots=True)
class Mount:
    """As the module's output `nodes` has it: type, source and options are fstab's."""

    type: str
    source: str
    path: str
    options: str

    @classmethod
    def read(cls, rows: Iterable[Mapping[str, str]]) -> tuple[Mount, ...]:
        """Of a module's output, or of nodes.json. Raises KeyError, TypeError for anything else."""
        return tuple(cls(row["type"], row["source"], row["path"], row["options"]) for row in rows)


def asked(site: Site | None) -> Mapping[str, str]:
    """Path → type of what cluster.yaml wants on every node of the site; nothing of a site that it has no more."""
    efs = site.storage.efs if isinstance(site, AwsSite) else None
    return {efs.path: "nfs4"} if efs else {}


def unit(path: str) -> str:
    """The mount unit of a path, which systemd wants to be called so (systemd.mount(5), `systemd-escape --path`).

    >>> unit("/efs"), unit("/data/my-set")
    ('efs.mount', 'data-my\\\\x2dset.mount')
    """
    escaped = re.sub(r"[^A-Za-z0-9:_./]|^\.", lambda found: f"\\x{ord(found[0]):02x}", path.strip("/"))
    return escaped.replace("/", "-") + ".mount"


def expected(plan: Plan, node: Node) -> tuple[dict[str, str], ...]:
    """What has to be mounted on a node: {"path", "type", "source", "unit"}; `source` is empty where Terraform has not
    made it yet. A rehearsal makes no file system."""
    if plan.simulated:
        return ()
    made = {mount.path: mount for mount in node.mounts}
    return tuple(
        {"path": path, "type": kind, "source": _source(made.get(path), kind), "unit": unit(path)}
        for path, kind in asked(plan.spec.sites.get(node.site)).items()
    )


def _source(mount: Mount | None, kind: str) -> str:
    return mount.source if mount and mount.type == kind else ""


def variables(plan: Plan, nodes: Iterable[Node]) -> dict[str, Any]:
    """`gpuprov_mounts` for the roles: site → its file systems, for sites that can have any; {} in a rehearsal. It is of
    what a node is configured from, so that another file system is a reason to run the role."""
    if plan.simulated:
        return {}
    found: dict[str, list[dict[str, str]]] = {n: [] for n, s in plan.spec.sites.items() if isinstance(s, AwsSite)}
    for node in sorted(nodes, key=lambda node: node.name):
        if node.site in found and not found[node.site]:
            wanted = asked(plan.spec.sites[node.site])
            mine = [mount for mount in node.mounts if wanted.get(mount.path) == mount.type]
            found[node.site] = [{**asdict(mount), "unit": unit(mount.path)} for mount in mine]
    return {"gpuprov_mounts": found} if found else {}


def refuse_loss(actions: Iterable[tuple[str, str]], site: str) -> None:
    """Raise ProviderError where Terraform's plan (address, action) would remove a file system: a line that is gone from
    cluster.yaml is no reason to lose data. `down` removes it, and says so."""
    lost = [address for address, action in actions if action in ("delete", "replace") and DATA.search(address)]
    if lost:
        raise ProviderError(
            f"{', '.join(lost)} would be removed with its data, because cluster.yaml does not ask for it as it is. "
            "Nothing was done",
            where=f"site {site}",
            hint="put sites.*.storage back as it was; or, where nobody needs the data any more, delete the file system "
            "yourself in AWS's console and run it again",
        )
