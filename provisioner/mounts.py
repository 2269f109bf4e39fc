"""File systems that all machines of a site share: what cluster.yaml asks for and Terraform has made, and where it is
mounted on a node (role mounts)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from provisioner.errors import ProviderError
from provisioner.plan import Plan
from provisioner.spec.sites import AwsSite, Site

if TYPE_CHECKING:
    from provisioner.fleet import Node

DATA = re.compile(r"(^|\.)aws_(efs|fsx_lustre)_file_system\.")
"""Terraform's addresses of what holds data that is nowhere else."""


LUSTRE, S3 = "lustre", "s3"
"""Types of the module's output, beside nfs4."""
PARTS = {LUSTRE: "lustre", S3: "mount_s3"}
"""Type → the part of the lock that mounts it; NFS is the distribution's own."""

S3_OPTIONS = "_netdev,nosuid,nodev,allow-other,{access}"
"""mount-s3 wants the first three from whoever calls it as mount(8) does; jobs are no root.
https://github.com/awslabs/mountpoint-s3/blob/main/doc/CONFIGURATION.md#automatically-mounting-an-s3-bucket-at-boot"""
S3_ACCESS = {"ro": "ro", "rw": "rw,allow-delete,allow-overwrite,dir-mode=0777,file-mode=0666"}
"""The module's options → mount-s3's. Objects have no owner: who may log in may write, as in /tmp."""


@dataclass(frozen=True, slots=True)
class Mount:
    """As the module's output `nodes` has it: type, source and options are fstab's; of a bucket the type is s3, the
    source bucket/prefix, the options ro or rw."""

    type: str
    source: str
    path: str
    options: str

    @classmethod
    def read(cls, rows: Iterable[Mapping[str, str]]) -> tuple[Mount, ...]:
        """Of a module's output, or of nodes.json. Raises KeyError, TypeError for anything else."""
        return tuple(cls(row["type"], row["source"], row["path"], row["options"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Asked:
    """What cluster.yaml wants at a path: the module's type; `access` is rw or ro."""

    type: str
    access: str = "rw"


def asked(site: Site | None) -> Mapping[str, Asked]:
    """Path → what cluster.yaml wants on every node of the site; nothing of a site that it has no more."""
    if not isinstance(site, AwsSite):
        return {}
    storage, found = site.storage, dict[str, Asked]()
    if storage.fsx is not None:
        found[storage.fsx.path] = Asked(LUSTRE)
    if storage.efs is not None:
        found[storage.efs.path] = Asked("nfs4")
    return found | {one.path: Asked(S3, "rw" if one.write else "ro") for one in storage.s3}


def unit(path: str) -> str:
    """The mount unit of a path, which systemd wants to be called so (systemd.mount(5), `systemd-escape --path`).

    >>> unit("/efs"), unit("/data/my-set")
    ('efs.mount', 'data-my\\\\x2dset.mount')
    """
    escaped = re.sub(r"[^A-Za-z0-9:_./]|^\.", lambda found: f"\\x{ord(found[0]):02x}", path.strip("/"))
    return escaped.replace("/", "-") + ".mount"


def expected(plan: Plan, node: Node) -> tuple[dict[str, str], ...]:
    """What has to be mounted on a node, as `_row` says; `source` is empty where Terraform has not made it yet. A
    rehearsal makes no file system; a node that is held to an older lock has nothing that mounts a newer one's."""
    if plan.simulated:
        return ()
    able = {"", *(package.part for package in plan.group(node.group).stack.packages)}
    made = {(mount.path, mount.type): mount for mount in node.mounts}
    return tuple(
        _row(made.get((path, want.type)) or Mount(want.type, "", path, ""), want)
        for path, want in asked(plan.spec.sites.get(node.site)).items()
        if PARTS.get(want.type, "") in able
    )


def _row(mount: Mount, want: Asked) -> dict[str, str]:
    """One mount for the role and for the check. path, unit; type, source, options: what mount(8) is told; shows_type,
    shows_source: what the kernel's table has afterwards, `*` for what nobody can know before; access: rw or ro; part:
    of the lock that has to be there, empty for none."""
    kind, source, options = mount.type, mount.source, mount.options
    shows_type, shows_source = kind, source
    if mount.type == LUSTRE:
        # mount.lustre puts the server's address in the place of its name. The name behind it is the file system's own.
        shows_source = f"*@tcp:/{source.rpartition('@tcp:/')[2]}" if source else ""
    elif mount.type == S3:
        # Every bucket shows itself so (mountpoint-s3-fs/src/fuse/config.rs); the check asks mount-s3's own process.
        kind, source = "mount-s3", f"s3://{source}" if source else ""
        options = S3_OPTIONS.format(access=S3_ACCESS[want.access])
        shows_type, shows_source = "fuse", "mountpoint-s3"
    return {
        "path": mount.path, "unit": unit(mount.path), "type": kind, "source": source, "options": options,
        "shows_type": shows_type, "shows_source": shows_source, "access": want.access,
        "part": PARTS.get(mount.type, ""),
    }  # fmt: skip


def variables(plan: Plan, nodes: Iterable[Node]) -> dict[str, Any]:
    """`gpuprov_mounts` for the roles: site → its file systems, for sites that can have any. A rehearsal mounts none:
    there only sites are in it whose lock has packages for the role. It is of what a node is configured from, so that
    another file system is a reason to run the role."""
    found: dict[str, list[dict[str, str]]] = {n: [] for n, s in plan.spec.sites.items() if isinstance(s, AwsSite)}
    if plan.simulated:
        sites = {g.site for g in plan.groups if {p.part for p in g.stack.packages} & set(PARTS.values())}
        return {"gpuprov_mounts": {name: [] for name in found if name in sites}} if sites else {}
    for node in sorted(nodes, key=lambda node: node.name):
        if node.site in found and not found[node.site]:
            wanted = asked(plan.spec.sites[node.site])
            mine = [m for m in node.mounts if m.path in wanted and wanted[m.path].type == m.type]
            found[node.site] = [_row(mount, wanted[mount.path]) for mount in mine]
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
