"""The cluster.yaml that `gpuprov init` writes: small, commented, valid."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.catalog.providers import Provider
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.spec.base import NAME_PATTERN, NAME_TITLE
from provisioner.spec.ranges import expand
from provisioner.spec.scalars import Scalar, read_scalar
from provisioner.spec.source_map import shown


def starter(
    catalog: Catalog, *, provider: str | None = None, machine: str | None = None, hosts: Sequence[str] = (),
    name: str = "my-fleet",
) -> str:  # fmt: skip
    """The text for a provider's usual machine, or for the machine asked for; `hosts`: machines that exist already, by
    name or by range; `name`: of the cluster. Raises GpuprovError for unknown names, for a name that a cluster cannot
    have, and for a machine that the provider does not sell."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise GpuprovError(f"--name: {shown(name)} is not {NAME_TITLE}")
    chosen = catalog.machine(machine) if machine is not None else None
    seller = _provider(catalog, provider or (chosen.provider if chosen else catalog.providers()[0].name))
    chosen = chosen or catalog.machine(seller.example_machine)
    if chosen.provider != seller.name:
        hint = f"leave out --provider, or take {seller.example_machine}"
        raise GpuprovError(f"{chosen.name} is not sold by {seller.title}", hint=hint)
    if chosen.retired:
        raise GpuprovError(f"{chosen.name} is no longer sold: {chosen.retired}")
    if hosts and seller.virtual:
        raise GpuprovError(f"{seller.title} makes its machines: --host is for machines that exist already")
    try:
        names = [name for host in hosts for name in expand(host)]
    except ValueError as error:
        raise GpuprovError(f"--host: {error}", hint="a host name, or a range such as dgx[01-16].lab") from None
    if twice := [name for name, times in Counter(name.lower() for name in names).items() if times > 1]:
        raise GpuprovError(f"--host names {twice[0]} twice", hint="each machine once, by name or in one range")
    group = _group(seller, chosen, len(names) or 1)
    return "\n".join([*_head(name), *_site(seller, hosts), *group, *_remaining_lines(catalog, seller, chosen)]) + "\n"


def _provider(catalog: Catalog, name: str) -> Provider:
    for provider in catalog.providers():
        if provider.name == name:
            return provider
    names = [provider.name for provider in catalog.providers()]
    hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
    raise GpuprovError(f"there is no provider {name!r}", hint=hint)


def _head(name: str) -> list[str]:
    return [
        "# A GPU fleet. `gpuprov validate` checks this file, `gpuprov up FILE --sandbox` runs it in the sandbox,",
        "# `gpuprov up FILE` makes it. `gpuprov schema` prints the schema for your editor.",
        f"name: {name if read_scalar(name, plain=True) == Scalar(name) else json.dumps(name)}",
        "",
        "sites:                       # where machines come from",
    ]


def _site(provider: Provider, hosts: Sequence[str]) -> list[str]:
    if not provider.virtual:
        lines = ["  lab:", f"    provider: {provider.name}", "    method: ssh              # machines that run already"]
        if hosts:
            return [*lines, "    hosts:", *(f"      {json.dumps(host)}: {{}}" for host in hosts)]
        lines.append("    # hosts:                 # the machines; a sandbox does without. local: this very machine")
        return [*lines, '    #   "dgx01.lab": {}']
    lines = ["  main:", f"    provider: {provider.name}", f"    region: {provider.example_region}"]
    if provider.example_zones:
        lines.append(f"    zones: [{', '.join(provider.example_zones)}]   # tried in this order")
    return lines


def _group(provider: Provider, machine: Machine, count: int) -> list[str]:
    lines = [
        "",
        "groups:                      # groups of equal machines; `gpuprov catalog` lists the types",
        f"  {'train' if machine.gpu_count else 'head'}:",
        f"    machine: {machine.name}",
        f"    count: {count}",
    ]
    sold = provider.capacity
    if machine.network.kind == "infiniband" and provider.infiniband_capacity:
        sold = provider.infiniband_capacity
    if len(sold) > 1:
        kinds = ", ".join(sold[1:])
        lines += ["    capacity:", f"      kind: {sold[0]}        # or {kinds}"]
    if machine.placement_cluster and machine.gpu_count > 1:
        apart = "; not with kind: block" if "block" in provider.capacity else ""
        lines.append(f"    placement: cluster       # all machines close together{apart}")
    if machine.local_nvme.count and provider.virtual:  # disks of one's own may hold data
        lines += ["    storage:", "      scratch: /scratch      # local NVMe disks as one RAID0"]
    return lines


def _remaining_lines(catalog: Catalog, provider: Provider, machine: Machine) -> list[str]:
    lines = ["", "# stack:                     # what is pinned; the rest is chosen and written to cluster.lock"]
    vendor = catalog.gpu(machine.gpu_model).vendor
    if vendor == "nvidia":
        lines.append('#   driver: "580"            # versions stand in quotes: unquoted, 2.10 is 2.1')
    return [
        *lines,
        "#   os: ubuntu-24.04" if vendor == "none" else '#   pytorch: "2.9"',
        "",
        "access:",
        f"  user: {provider.user}",
        "  # ssh_key: ~/.ssh/id_ed25519   # left out: a key is made for this cluster",
        "  # allow: [203.0.113.0/24]      # left out: the address that gpuprov runs from",
        "",
        "verify:",
        "  level: standard            # or quick, stress",
        '  min_healthy: "100%"',
    ]
