"""`machines:` of cluster.yaml, or of a file of its own: machine types of the user, and what cannot work in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioner.catalog import Catalog
from provisioner.catalog.description import ARCHITECTURES, DescribedGpu, MachineDescription
from provisioner.catalog.models import NO_GPU
from provisioner.common.errors import InputError
from provisioner.common.suggest import did_you_mean
from provisioner.spec.models import MachineName
from provisioner.spec.problems import add_problems, to_json
from provisioner.spec.source import read
from provisioner.spec.source_map import MAX_PROBLEMS, Finding, Loc, Source, shown

KEY = "machines"


class _MachinesFile(BaseModel):
    """A file that has the block; whatever else it has (it may be a cluster.yaml) is not read here."""

    model_config = ConfigDict(extra="ignore")

    machines: dict[MachineName, MachineDescription] = {}


def extended(known: Catalog, path: Path | None) -> Catalog:
    """The catalogue and the machine types of a file, where there is one. Raises InputError for a file with mistakes."""
    return known if path is None else known.with_described(load_machines(path, known))


def load_machines(path: str | os.PathLike[str], catalog: Catalog) -> dict[str, MachineDescription]:
    """The machine types of a file. Raises InputError with every problem, at its line and column."""
    source = read(path)
    descriptions = _required(source, catalog)
    if source.problems:
        raise InputError(sorted(source.problems, key=lambda p: (p.line, p.column)))
    return descriptions


def take_from_file(source: Source, catalog: Catalog, folder: Path) -> Source | None:
    """Where `machines` of cluster.yaml is the path of a file: its block in place of the path, and that file. None where
    the types stand in cluster.yaml itself."""
    if not isinstance(source.value, dict) or not isinstance(path := source.value.get(KEY), str):
        return None
    target = Path(path).expanduser()
    file = read(target if target.is_absolute() else os.path.relpath(folder / target))
    descriptions = _required(file, catalog)
    source.problems += file.problems
    source.value[KEY] = file.value[KEY] if descriptions and not file.problems else {}
    return file


def _required(file: Source, catalog: Catalog) -> dict[str, MachineDescription]:
    """The types of a file that is there for them: one without any is a problem of its own."""
    descriptions = described(file, catalog) if file.complete else {}
    if file.complete and not file.problems and not descriptions:
        file.report(file.mark(()).value, (), f'"{KEY}" is missing', "`gpuprov docs catalog own` shows one")
    return descriptions


def described(source: Source, catalog: Catalog) -> dict[str, MachineDescription]:
    """The types of a file that are well-formed; what is wrong is added to the problems of `source`."""
    if not isinstance(source.value, dict):
        return {}
    try:
        descriptions = dict(_MachinesFile.model_validate_json(to_json({KEY: source.value.get(KEY, {})})).machines)
    except ValidationError as error:
        add_problems(source, error)
        return {}
    for finding in findings(descriptions, catalog):
        if len(source.problems) <= MAX_PROBLEMS:
            mark = source.mark(finding.loc)
            at = mark.key if finding.at_key or finding.loc not in source.marks else mark.value
            source.report(at, finding.loc, finding.message, finding.hint)
    return descriptions


def usable(descriptions: Mapping[str, MachineDescription], catalog: Catalog) -> dict[str, MachineDescription]:
    """Those of which a row of the catalogue can be made: the GPU and the provider are known."""
    gpus = {gpu.model for gpu in catalog.gpus()} | {NO_GPU.model}
    providers = {row.name for row in catalog.providers()}
    return {
        name: description
        for name, description in descriptions.items()
        if (isinstance(description.gpu, DescribedGpu) or description.gpu in gpus) and description.provider in providers
    }


def findings(descriptions: Mapping[str, MachineDescription], catalog: Catalog) -> Iterator[Finding]:
    """What cannot be in the types of a user."""
    listed = {row.name for row in catalog.machines()} if descriptions else set()
    for name, description in descriptions.items():
        loc: Loc = (KEY, name)
        if name in listed:
            hint = "remove it to use the catalogue's, or choose another name"
            yield Finding(loc, f"{name} is a machine type of the catalogue", hint, at_key=True)
        yield from _origin(loc, name, description, catalog)
        yield from _links((*loc, "nvlink"), description)
        yield from _ports((*loc, "network"), description)


def _origin(loc: Loc, name: str, description: MachineDescription, catalog: Catalog) -> Iterator[Finding]:
    providers = {row.name: row for row in catalog.providers()}
    seller = providers.get(description.provider)
    if seller is None:
        hint = did_you_mean(description.provider, list(providers)) or f"one of {', '.join(providers)}"
        yield Finding((*loc, "provider"), f"there is no provider {shown(description.provider)}", hint)
    elif seller.machine_type and re.fullmatch(seller.machine_type, name) is None:
        hint = "the name of a type of a cloud is the cloud's name for it"
        yield Finding(loc, f"{seller.title} has no machine types that are called like {shown(name)}", hint, at_key=True)
    if isinstance(description.gpu, DescribedGpu):
        allowed, capability = ARCHITECTURES[description.gpu.arch], description.gpu.compute_capability
        if capability not in allowed:
            message = f"compute_capability {capability} is not of architecture {description.gpu.arch}"
            yield Finding(
                (*loc, "gpu", "compute_capability"), message, f"of {description.gpu.arch}: {', '.join(allowed)}"
            )
    models = [gpu.model for gpu in catalog.gpus()]
    if description.gpus == 0:
        if description.gpu != NO_GPU.model:
            yield Finding((*loc, "gpu"), "gpus is 0, and a GPU is named", "remove gpu, or correct gpus")
    elif description.gpu == NO_GPU.model:
        hint = "a GPU of `gpuprov catalog --gpus`, or a block that describes another; gpus: 0 is a machine without GPUs"
        yield Finding(loc, f'"gpu" is missing in {KEY}.{name}', hint, at_key=True)
    elif isinstance(description.gpu, str) and description.gpu not in models:
        hint = did_you_mean(description.gpu, models, limit=3) or "`gpuprov catalog --gpus` lists them"
        more = "; describe another in a block: gpu: {product_name: …, memory_mib: …, arch: …, compute_capability: …}"
        yield Finding((*loc, "gpu"), f"there is no GPU {shown(description.gpu)}", hint + more)


def _links(loc: Loc, description: MachineDescription) -> Iterator[Finding]:
    nvlink = description.nvlink
    if nvlink is None:
        return
    if nvlink.topology != "none" and description.gpus <= 1:
        message = "one GPU cannot be linked" if description.gpus else "a machine without GPUs has no NVLink"
        yield Finding((*loc, "topology"), message, "write none, or leave nvlink out")
    elif nvlink.topology != "none" and nvlink.links_per_gpu == 0:
        hint = "add links_per_gpu: …, the links of one GPU that `nvidia-smi nvlink -s` lists"
        yield Finding(loc, f"nvlink.topology {nvlink.topology} needs links_per_gpu", hint)
    elif nvlink.topology == "none" and nvlink.links_per_gpu:
        yield Finding((*loc, "links_per_gpu"), "topology is none, and links_per_gpu is not 0", "remove one of the two")


def _ports(loc: Loc, description: MachineDescription) -> Iterator[Finding]:
    network = description.network
    if network is None:
        return
    if network.devices and network.kind not in ("efa", "infiniband", "roce"):
        yield Finding((*loc, "devices"), f"{network.kind} has no RDMA devices", "remove devices, or correct kind")
    elif network.devices and len(network.devices) != network.ports:
        count = len(network.devices)
        yield Finding((*loc, "devices"), f"ports is {network.ports}, and devices lists {count}", f"ports: {count}")
    if network.kind in ("infiniband", "roce") and not network.rate_gbps:
        yield Finding(loc, f"network.kind {network.kind} needs rate_gbps", "add rate_gbps: …, Gbit/s of one port")
