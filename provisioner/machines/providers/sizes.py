"""A machine type as a cloud's API describes it → its description for `machines:` of cluster.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.catalog import Catalog
from provisioner.catalog.models import Gpu
from provisioner.common.errors import GpuprovError

MEMORY_SHARE = 0.12
"""By how much an API's figure may differ from what nvidia-smi prints: clouds round to GiB or give decimal GB."""


@dataclass(frozen=True, slots=True)
class OfferedSize:
    """`gpu`: the cloud's word for the product, such as L40S or "NVIDIA T4", empty where its API has none; `gpu_mib`:
    memory of one, MiB, where the API has it; `has_part`: of a GPU; `keys`: further keys of MachineDescription;
    `source`: the call."""

    gpu: str
    gpus: int
    source: str
    gpu_mib: int | None = None
    has_part: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)


def description(size: OfferedSize, provider: str, catalog: Catalog, gpu: str | None = None) -> dict[str, Any]:
    """Keys of MachineDescription. `gpu`: the product, where the API does not tell it. Raises GpuprovError for a size
    with a part of a GPU, and for a product that gpus.yaml does not have or has several of."""
    if size.has_part or (size.gpus < 1 and size.gpu):
        raise GpuprovError("this size has a part of a GPU", hint="choose a size with whole GPUs")
    if size.gpus < 1:
        if gpu is not None:
            raise GpuprovError("this size has no GPU", hint="remove --gpu")
        return {"provider": provider, "gpus": 0, **size.keys, "source": [size.source]}
    model = catalog.gpu(gpu).model if gpu is not None else _product(size, provider, catalog).model
    return {"provider": provider, "gpu": model, "gpus": size.gpus, **size.keys, "source": [size.source]}


def _product(size: OfferedSize, provider: str, catalog: Catalog) -> Gpu:
    """The product of the catalogue by the API's word and the memory; of two (modules and cards have one word) the one
    that other sizes of the same cloud have."""
    tokens = _tokens(size.gpu)
    if not tokens:
        raise GpuprovError("the API does not name the GPU", hint="pass --gpu; `gpuprov catalog --gpus` lists them")
    rows = [row for row in catalog.gpus() if tokens <= _tokens(" ".join((row.model, *row.product_names)))]
    if size.gpu_mib is not None:
        rows = [row for row in rows if abs(row.memory_mib - size.gpu_mib) <= MEMORY_SHARE * row.memory_mib]
    if len(rows) > 1:
        used = {row.gpu_model for row in catalog.machines(provider)}
        rows = [row for row in rows if row.model in used] or rows
    if len(rows) == 1:
        return rows[0]
    which = ", ".join(row.model for row in rows) or "none of the catalogue"
    raise GpuprovError(f"the API calls the GPU {size.gpu!r}: {which}", hint="pass --gpu with the one that it is")


def _tokens(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower())) - {"nvidia", "amd", "tesla", "radeon", "geforce"}
