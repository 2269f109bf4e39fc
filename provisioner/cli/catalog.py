"""catalog: the machine types that are known, as a list or one in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner import catalog as catalogue
from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.cli import json_output
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import one_line

if TYPE_CHECKING:
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.description import Described

COLUMNS = ("MACHINE", "PROVIDER", "GPUS", "GIB EACH", "LINKS", "NETWORK", "LOCAL NVME", "NOTE")


def catalog(
    machine: Annotated[str | None, typer.Argument(metavar="[MACHINE]", help="Show one machine type in full.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only the types of this provider.")] = None,
    machines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also the types of `machines:` in FILE, such as a cluster.yaml.")
    ] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="List the GPU products instead.")] = False,
    from_host: Annotated[
        str | None,
        typer.Option(metavar="USER@ADDRESS", help="Describe this healthy machine for `machines:`; or local."),
    ] = None,
    from_bundle: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Describe the healthy machine of a bundle for `machines:`.")
    ] = None,
    from_cloud: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER", help="Describe the size [MACHINE] for `machines:`, by the cloud's API."),
    ] = None,
    region: Annotated[str | None, typer.Option(help="With --from-cloud: the region to ask.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="With --from-cloud: the GPU, where the cloud's API does not name it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show the machine types that are known, or describe a machine that is not."""
    known = catalogue.load()
    if machines is not None:
        from provisioner.spec.machine_types import extended

        known = extended(known, machines)
    if (from_cloud is None) != (region is None) or (gpu is not None and from_cloud is None):
        raise GpuprovError(
            "--from-cloud and --region go together", hint="gpuprov catalog SIZE --from-cloud aws --region R"
        )
    if from_cloud is not None and region is not None:
        _describe_size(known, from_cloud, region, machine, gpu, as_json=as_json)
        return
    if from_host is not None or from_bundle is not None:
        _describe(known, from_host, from_bundle, machine, as_json=as_json)
        return
    if gpus:
        _list_gpus(known, as_json=as_json)
        return
    if machine is not None:
        machine_type = known.machine(machine)
        if as_json:
            json_output.write(_full(known, machine_type))
        else:
            typer.echo("\n".join(_page(known, machine_type)))
        return
    types = [m for m in known.machines() if provider in (None, m.provider)]
    if not types:
        names = [p.name for p in known.providers()]
        raise GpuprovError(
            f"unknown provider {provider!r}", hint=did_you_mean(provider or "", names) or ", ".join(names)
        )
    if as_json:
        json_output.write([m.model_dump(mode="json") for m in types])
        return
    _print_table([COLUMNS, *(_row(m, known) for m in types)])


def _describe(known: Catalog, host: str | None, bundle: Path | None, name: str | None, *, as_json: bool) -> None:
    """The description of a healthy machine, as `machines:` takes it; what to look at on standard error."""
    from provisioner.cli.one_machine import probe, supplied_at
    from provisioner.verify.description import describe
    from provisioner.verify.facts import read
    from provisioner.verify.request import unknown_machine_request

    if host is not None and bundle is not None:
        raise GpuprovError("pass one of --from-host and --from-bundle")
    raw = supplied_at(bundle).bundle if bundle is not None else probe(str(host), unknown_machine_request())
    if raw.error:
        raise GpuprovError(one_line(raw.error), where=str(host or bundle))
    described = describe(read(raw), known)
    _refuse_unhealthy(raw, described, known)
    _print_description(name or described.name, described.machine, described.notes, as_json=as_json)


def _refuse_unhealthy(bundle: Bundle, described: Described, known: Catalog) -> None:
    """Raise GpuprovError where the machine fails a check that condemns it, by the description of itself."""
    from dataclasses import replace

    from provisioner.catalog.description import MachineDescription
    from provisioner.verify.expectations import expect
    from provisioner.verify.pytest_runner import Case, judge

    description = MachineDescription.model_validate_json(json.dumps(described.machine))  # as `machines:` is read
    catalog = known.with_described({described.name: description})
    row = catalog.machine(described.name)
    expected = expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level="quick")
    expected = replace(expected, simulated=bundle.simulated, bmc={} if "bmc.json" in bundle.files else None)
    checks = judge({described.name: Case(bundle, expected)})[described.name].checks
    if failed := [f"{check.id}: {check.message}" for check in checks if check.condemns and check.status == "fail"]:
        raise GpuprovError(
            "this machine is not healthy:\n  " + "\n  ".join(map(one_line, failed)),
            hint="describe a healthy machine of the same type: what is described is expected of every node",
        )


def _describe_size(
    known: Catalog, cloud: str, region: str, name: str | None, gpu: str | None, *, as_json: bool
) -> None:
    """The description of a size that a cloud sells, asked of the cloud with the user's own credentials."""
    from provisioner.machines.providers.base import find, with_capability
    from provisioner.machines.providers.market import Unanswered
    from provisioner.machines.providers.sizes import description

    if name is None:
        raise GpuprovError("the size is missing", hint=f"gpuprov catalog SIZE --from-cloud {cloud} --region {region}")
    clouds = with_capability("market")
    provider = find(cloud) if cloud in clouds else None
    market = provider.market() if provider is not None else None
    if market is None:
        raise GpuprovError(
            f"{cloud!r} is not a cloud", hint=did_you_mean(cloud, clouds) or f"one of {', '.join(clouds)}"
        )
    try:
        size = market.size(region, name)
    except Unanswered as unanswered:
        raise GpuprovError(f"{cloud} {region}: {unanswered.message}", hint=unanswered.action) from None
    if size is None:
        raise GpuprovError(f"{region} does not know a size {name}", hint="correct its name, or ask another region")
    notes = [] if name not in known.names() else [f"the catalogue has {name} already, and needs no description"]
    _print_description(name, description(size, cloud, known, gpu), notes, as_json=as_json)


def _print_description(name: str, keys: Mapping[str, Any], notes: Sequence[str], *, as_json: bool) -> None:
    from provisioner.common import yaml_text

    if as_json:
        json_output.write({name: keys})
        return
    typer.echo(yaml_text.dump({"machines": {name: dict(keys)}}), nl=False)
    for note in notes:
        typer.echo(f"look at: {one_line(note)}", err=True)
    typer.echo(f"add it to cluster.yaml, and write `machine: {name}` in a group", err=True)


def _list_gpus(known: Catalog, *, as_json: bool) -> None:
    if as_json:
        json_output.write([gpu.model_dump(mode="json") for gpu in known.gpus()])
        return
    columns = ("GPU", "NAME", "MIB", "ARCHITECTURE", "COMPUTE", "ECC", "MIG")
    rows = [
        (gpu.model, gpu.product_names[0], str(gpu.memory_mib), gpu.arch, gpu.compute_capability,
         "on" if gpu.ecc else "off", "yes" if gpu.mig else "-")
        for gpu in known.gpus()
    ]  # fmt: skip
    _print_table([columns, *rows])


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(machine: Machine, known: Catalog) -> tuple[str, ...]:
    gpu = known.gpu(machine.gpu_model)
    return (
        machine.name,
        machine.provider,
        f"{machine.gpu_count} x {gpu.model if gpu.source != 'user' else gpu.product_names[0]}"
        if machine.gpu_count
        else "-",
        f"{machine.gpu_memory_mib / 1024:.0f}" if machine.gpu_count else "-",
        _links(machine),
        _network(machine),
        _disks(machine),
        "retired" if machine.retired else "",
    )


def _links(machine: Machine) -> str:
    if machine.nvlink.topology == "none":
        return "-" if machine.gpu_count <= 1 else "PCIe"
    rate = f" x {machine.nvlink.gbps_per_link:g} GB/s" if machine.nvlink.gbps_per_link else " links"
    return f"{machine.nvlink.topology} {machine.nvlink.links_per_gpu}{rate}"


def _network(machine: Machine) -> str:
    return f"{machine.network.kind} {machine.network.ports} x {machine.network.rate_gbps:g} Gbit/s"


def _disks(machine: Machine) -> str:
    disks = machine.local_nvme
    return f"{disks.count} x {disks.size_gb:g} GB" if disks.count else "-"


def _page(known: Catalog, machine: Machine) -> list[str]:
    rows = {
        "provider": known.provider(machine.provider).title,
        **(_gpu_lines(known, machine) if machine.gpu_count else {"GPUs": "none"}),
        "network": "not known" if machine.basis.is_left_out("network") else _network(machine),
        "RDMA devices": _devices(machine),
        "at": ", ".join(machine.rdma_pci) + " (other RDMA devices are for storage and management)"
        if machine.rdma_pci
        else "",
        "placement": "cluster" if machine.placement_cluster else "none",
        "local NVMe": "not known" if machine.basis.is_left_out("local_nvme") else _disks(machine),
        "host": _host(machine),
        "retired": machine.retired or "",
        "notes": machine.notes,
        "described": ", ".join(machine.basis.user),
        "not expected": ", ".join(machine.basis.left_out),
        "measured": ", ".join(machine.basis.measured),
        "unverified": ", ".join(machine.basis.unverified),
    }
    lines = [machine.name, *(f"  {name:<13} {value}" for name, value in rows.items() if value)]
    if layout := known.layout(machine):
        known_pairs = all(len(cells) == 1 for cells in known.topology(machine).values())
        lines.append(f"  {'pairs':<13} " + ("as nvidia-smi topo -m prints them" if known_pairs else "for example"))
        for i in range(machine.gpu_count):
            cells = ("X" if i == j else layout[min(i, j), max(i, j)] for j in range(machine.gpu_count))
            lines.append("  " + f"GPU{i}".rjust(13) + " " + " ".join(cell.rjust(4) for cell in cells))
    return lines


def _gpu_lines(known: Catalog, machine: Machine) -> dict[str, str]:
    gpu = known.gpu(machine.gpu_model)
    return {
        "GPUs": f"{machine.gpu_count} x {gpu.product_names[0]}, {gpu.memory_mib} MiB, {gpu.compute_capability}",
        "MIG": ", ".join(gpu.mig_profiles) or "no",
        "ECC": "on" if gpu.ecc else "off as shipped",
        "links": _links(machine) + (", needs fabric manager" if machine.fabric_manager_required else ""),
    }


def _devices(machine: Machine) -> str:
    names = ", ".join(machine.rdma_devices) or "none"
    is_guess = machine.rdma_devices and machine.basis.of("rdma_devices") == "unverified"
    return f"{names} (as the kernel numbers them: unverified)" if is_guess else names


def _host(machine: Machine) -> str:
    """Processors, memory and NUMA nodes; what nobody has said is not known."""
    vcpus = "not known" if machine.basis.is_left_out("vcpus") else str(machine.vcpus)
    memory = "not known" if machine.basis.is_left_out("memory_gib") else f"{machine.memory_gib:g} GiB"
    return f"vCPUs: {vcpus}, memory: {memory}, NUMA nodes: {machine.numa_nodes or 'not known'}"


def _full(known: Catalog, machine: Machine) -> dict[str, Any]:
    pairs = {f"GPU{i}-GPU{j}": sorted(cells) for (i, j), cells in known.topology(machine).items()}
    nccl, rdma = known.nccl_limit(machine), known.rdma_limit(machine)
    return {
        **machine.model_dump(mode="json"),
        "gpu": known.gpu(machine.gpu_model).model_dump(mode="json"),
        "pairs": pairs,
        "nvlinks_per_gpu": list(known.nvlinks_per_gpu(machine)),
        "nccl_busbw_min_gbps": nccl.threshold if nccl else None,
        "rdma_write_min_gbps": rdma.threshold if rdma else None,
    }
