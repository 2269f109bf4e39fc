"""The `sandbox` object of terraform/sandbox: image, network, mirror and one hardware.json for each node of a site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provisioner.catalog import load
from provisioner.common.paths import private_dir, write_whole
from provisioner.plan.models import Plan
from provisioner.plan.roles.interruption import watched
from provisioner.sandbox import pytorch, site_faults
from provisioner.sandbox.assets import Assets, disk_image
from provisioner.sandbox.hardware import hardware
from provisioner.sandbox.jump_host import module_input
from provisioner.sandbox.leftovers import leased
from provisioner.sandbox.network import allocate_octet, node_numbers, of_octet
from provisioner.sandbox.runtime import ulimit_options
from provisioner.sandbox.systems import system

HARDWARE = "hardware"
DISK_BUILDER = "sandbox.disk-builder"
"""A simulated machine without a GPU, of which a disk is made."""


def module_inputs(plan: Plan, site: str, workspace: Path, assets: Assets) -> dict[str, Any]:
    """Values of the module's variable `sandbox` for the groups of one site.

    Writes `workspace`/hardware/<node>.json and `workspace`/addresses.json; the same plan gives the same files, so that
    nothing is replaced without a reason; a node of another distribution is another node. Raises `GpuprovError` above
    250 nodes or when this machine has no network left.
    """
    catalog = load()
    nodes = {name: group for name, group in plan.nodes() if group.site == site}
    octet = allocate_octet(private_dir(workspace))
    numbers = node_numbers(workspace, nodes, leased(of_octet(octet)))
    folder = private_dir(workspace / HARDWARE)
    paths, bad = dict[str, str](), site_faults.bad_driver(workspace)
    for name, group in nodes.items():
        path = (folder / f"{name}.json").absolute()
        described = hardware(group.machine, group.gpu, name, catalog) | {"os": system(group.stack.os)}
        if bad is not None and described["gpus"]:
            described["driver"]["bad"] = {"version": bad, "gpu": 0}
        if watched(group):
            described["spot"] = True
        text = json.dumps(described, indent=1, sort_keys=True) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text)
        paths[name] = str(path)
    images = {n: booted for n, group in nodes.items() if (booted := assets.image_of(group.stack)) != assets.image}
    images |= {name: plan.images[group.name].id for name, group in nodes.items() if group.name in plan.images}
    if on_disk := [name for name, group in nodes.items() if group.machine.name == DISK_BUILDER]:
        images |= dict.fromkeys(on_disk, disk_image(assets.podman))
    jumps = plan.spec.sites[site].jump_hosts(list(nodes)).values()
    ulimits = dict(item.split("=") for item in ulimit_options()[1::2])
    return {
        "image": assets.image,
        "runtime": assets.podman.runtime,
        "podman": assets.podman.path,
        "workspace": str(workspace.absolute()),
        "network_octet": octet,
        "network_prefix": of_octet(octet).subnet.rpartition(".")[0],
        "mirror_dir": str(assets.mirror),
        "pytorch_dir": str(pytorch.folder()),
        "hardware": paths,
        "numbers": numbers,
        "user": plan.spec.user(site),
        "nofile": int(ulimits["nofile"].split(":")[0]),
        "nproc": int(ulimits["nproc"].split(":")[0]),
        **({"images": images} if images else {}),
        **({"jump": module_input(jumps)} if jumps else {}),
    }
