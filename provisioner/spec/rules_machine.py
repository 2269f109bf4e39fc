"""Refusals of machine types: those that a site's provider does not have, and what a type cannot be asked for."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.common.suggest import did_you_mean, nearest
from provisioner.spec.groups import Group
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding, Loc, shown

_LIST = "see gpuprov catalog --provider "


def machine_for_each_site(loc: Loc, group: Group) -> Iterator[Finding]:
    """Of a block with a machine type for each site of the list: one for every site of it, and for no other."""
    if isinstance(group.machine, str):
        return
    at, names = (*loc, "machine"), list(group.machine)
    if len(group.sites) < 2:
        sites = f"is at site {group.site}" if group.site else "names no list of sites"
        several = f"site: [{', '.join(names)}]" if len(names) > 1 else "a list of sites"
        hint = f"write {several}, or the name of one machine type"
        yield Finding(at, f"machine has a type for each site, and {loc[1]} {sites}", hint, at_key=True)
        return
    for site in dict.fromkeys(group.sites):
        if site not in group.machine:
            yield Finding(at, f"machine has no type for site {site}", f"add {site}: …", at_key=True)
    for name in names:
        if name not in group.sites:
            hint = did_you_mean(name, group.sites) or "leave it out, or add the site to the list"
            yield Finding((*at, name), f"{shown(name)} is not in the list of sites of {loc[1]}", hint, at_key=True)


def machine_of_site(
    at: Loc, name: str, machine: Machine | None, site: Site | None, catalog: Catalog
) -> Iterator[Finding]:
    """Whether there is a machine type of that name at a site. `machine`: its row; None where the catalogue has none."""
    if machine is None and name in catalog.fractions:
        part = catalog.fractions[name]
        message = f"{part.name} has {part.share} {part.gpu}, which needs a vGPU driver; gpuprov does not install one"
        whole_gpus = [m.name for m in catalog.machines(part.provider) if m.gpu_model == part.gpu and not m.retired]
        yield Finding(
            at,
            message,
            f"with whole GPUs: {', '.join(whole_gpus[:3])}" if whole_gpus else _LIST + part.provider,
        )
    elif machine is None:
        suggestion = did_you_mean(name, catalog.names(site.provider if site else None), limit=3)
        at_provider = f" at {catalog.provider(site.provider).title}" if site else ""
        yield Finding(
            at, f"there is no machine {shown(name)}{at_provider}", suggestion or "`gpuprov catalog` lists them"
        )
    elif site is not None and machine.provider != site.provider:
        sold = catalog.provider(machine.provider).title
        like = [m.name for m in catalog.machines(site.provider) if _alike(m, machine)]
        same = "with the same GPUs" if machine.gpu_count else "without GPUs"
        hint = f"{same} there: {', '.join(like[:3])}" if like else ""
        site_title = catalog.provider(site.provider).title
        yield Finding(
            at, f"{machine.name} comes from {sold}, and this site is {site_title}", hint or _LIST + site.provider
        )
    if machine is not None and machine.retired:
        sold_types = (m for m in catalog.machines(machine.provider) if not m.retired)
        like = [m.name for m in sold_types if m.gpu_count == machine.gpu_count]
        yield Finding(at, f"{machine.name} is no longer sold: {machine.retired}", f"instead: {', '.join(like[:3])}")


def _alike(machine: Machine, other: Machine) -> bool:
    is_alike = (machine.gpu_model, machine.gpu_count) == (other.gpu_model, other.gpu_count)
    return is_alike and (machine.gpu_count > 0 or machine.vcpus == other.vcpus)


def hardware(loc: Loc, group: Group, machine: Machine, catalog: Catalog) -> Iterator[Finding]:
    """Of options that a machine type cannot have."""
    if group.placement == "cluster" and not machine.placement_cluster:
        message = f"no cluster placement is known for {machine.name}"
        yield Finding((*loc, "placement"), message, "leave it out")
    yield from _rdma(loc, group, machine, catalog)
    if group.storage.scratch is not None and not machine.local_disks:
        yield Finding((*loc, "storage", "scratch"), f"{machine.name} has no local NVMe disks", "leave it out")
    if not machine.gpu_count:
        yield from _without_gpus(loc, group, machine)
        return
    gpu = catalog.gpu(machine.gpu_model)
    if group.gpu.mig is not None:
        at = (*loc, "gpu", "mig")
        if not gpu.mig:
            yield Finding(at, f"{gpu.model} cannot be cut with MIG", "leave it out")
        elif group.gpu.mig not in gpu.mig_profiles:
            known = f"its profiles: {', '.join(gpu.mig_profiles)}"
            yield Finding(at, f"{gpu.model} has no MIG profile {group.gpu.mig}", known)
    if group.gpu.ecc and "ecc" in group.gpu.model_fields_set and not gpu.ecc:
        yield Finding((*loc, "gpu", "ecc"), f"{gpu.model} is shipped with ECC off", "leave it out")
    if "persistence" in group.gpu.model_fields_set and group.gpu.persistence and gpu.vendor == "amd":
        yield Finding((*loc, "gpu", "persistence"), f"{gpu.model} has no persistence mode", "leave it out")


def _without_gpus(loc: Loc, group: Group, machine: Machine) -> Iterator[Finding]:
    for key in sorted(group.gpu.model_fields_set):
        yield Finding((*loc, "gpu", key), f"{machine.name} has no GPU", "leave it out", at_key=True)
    if group.base != "plain":
        yield Finding((*loc, "base"), f"{machine.name} has no GPU, and {group.base} is a GPU image", "leave it out")


def _rdma(loc: Loc, group: Group, machine: Machine, catalog: Catalog) -> Iterator[Finding]:
    network, at = group.network, (*loc, "network", "rdma")
    if network.rdma and machine.network.erdma:
        message = f"{machine.name} has elastic RDMA interfaces, and gpuprov does not install their driver"
        yield Finding(at, message, "leave it out: its nodes talk over Ethernet")
    elif network.rdma and not machine.rdma:
        yield Finding(at, f"{machine.name} has no RDMA network", _with_rdma(machine, catalog))
    elif network.rdma is False and machine.rdma and not machine.rdma_optional:
        yield Finding(at, f"{machine.network.kind} cannot be disabled: it is part of {machine.name}", "leave it out")


def _with_rdma(machine: Machine, catalog: Catalog) -> str:
    rdma_types = [m.name for m in catalog.machines(machine.provider) if m.rdma and not m.retired]
    suggestions = nearest(machine.name, rdma_types)
    return f"{suggestions[0]} has it" if suggestions else "leave it out"
