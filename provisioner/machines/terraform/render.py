"""One Terraform root module per site: main.tf from templates/root.tf.j2, and a copy of the provider's module.

The module is copied, so that a workspace can be planned and destroyed with plain Terraform whatever happens to gpuprov.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from provisioner.common import directories, paths
from provisioner.machines.providers.base import Module
from provisioner.machines.terraform.hcl import hcl
from provisioner.plan.models import Plan
from provisioner.spec.site import CloudSite

Backend = tuple[str, Mapping[str, Any]]
"""A Terraform backend: its type and its values."""


def render(
    plan: Plan,
    site: str,
    module: Module,
    workspace: Path,
    *,
    ssh_public_key: str,
    identity: str,
    backend: Backend | None = None,
) -> bool:
    """Write the root module of `site` into `workspace`. Returns whether anything differs from what was there."""
    paths.private_dir(workspace)
    changed = _copy_module(paths.data("terraform") / module.folder, workspace / "module")
    text = main_tf(plan, site, module, ssh_public_key=ssh_public_key, identity=identity, backend=backend)
    main = workspace / "main.tf"
    if not main.exists() or main.read_text(encoding="utf-8") != text:
        paths.write_whole(main, text)
        changed = True
    return changed


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - HCL, not HTML: every value goes through `hcl`
    environment.filters["hcl"] = hcl
    return environment.from_string((paths.data("templates") / "root.tf.j2").read_text(encoding="utf-8"))


def main_tf(
    plan: Plan,
    site: str,
    module: Module,
    *,
    ssh_public_key: str,
    identity: str,
    backend: Backend | None = None,
) -> str:
    """The text of main.tf. Its length grows with the groups, not with the nodes. Without `backend` the state is beside
    it."""
    settings = plan.spec.sites[site]
    zones = settings.zones if isinstance(settings, CloudSite) else ()
    user_tags = settings.tags if isinstance(settings, CloudSite) else {}
    return _template().render(
        backend=backend,
        cluster=plan.spec.name,
        site=site,
        name=plan.spec.name,
        groups={
            g.name: {
                "machine": g.machine.name,
                "count": g.spec.count,
                "zone": next(iter(zones), ""),
                "placement": g.spec.placement,
                "root_gb": g.spec.storage.root_gb,
                "capacity": g.spec.capacity.model_dump(mode="json"),
            }
            for g in plan.groups
            if g.site == site
        },
        ssh_public_key=ssh_public_key,
        user_data=module.user_data(plan, ssh_public_key),
        tags={**user_tags, "gpuprov-cluster": plan.spec.name, "gpuprov-site": site, "gpuprov-id": identity},
        providers=module.blocks(plan),
        module=module.folder,
        inputs=module.inputs(plan),
    )


def _copy_module(source: Path, target: Path) -> bool:
    expected = _files(source)
    if _files(target) == expected:
        return False
    fresh = target.with_name(".module.new")
    paths.remove_tree(fresh)
    for name, (content, executable) in expected.items():
        paths.private_dir((fresh / name).parent)
        paths.write_whole(fresh / name, content, mode=0o700 if executable else 0o600, durable=False)
    paths.remove_tree(target)
    with directories.opened(target.parent) as folder:
        os.rename(fresh.name, target.name, src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Relative name → (content, whether it is a program). Examples and Terraform's own folders stay behind."""
    if not folder.is_dir():
        return {}
    files: dict[str, tuple[bytes, bool]] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative.parts[0] not in ("examples", ".terraform", "tests"):
            files[str(relative)] = (path.read_bytes(), path.suffix == ".sh" or bool(path.stat().st_mode & 0o100))
    return files


def outputs_to_nodes(outputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The module contract's `nodes` output: node name → id, group, zone, private_ip, public_ip, machine."""
    nodes: dict[str, dict[str, Any]] = outputs.get("nodes", {}).get("value") or {}
    return nodes
