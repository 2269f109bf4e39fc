"""Which products of the catalogue a GPU is, by what tools print of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from provisioner.catalog.models import Gpu
from provisioner.verify.checks.gpu import is_model
from provisioner.verify.facts import Facts

CUT = "..."
"""End of a name that a table has shortened."""
NEAR = 0.1
"""Share of a product's memory by which what is printed may differ."""


def products(names: Collection[str], gpus: Iterable[Gpu], *, memory_mib: int | None = None) -> list[Gpu]:
    """The products that may be called by all of these printed names, and have that memory where it is known."""
    rows = [row for row in gpus if all(is_model(name, row.product_names, row.vendor) for name in names)]
    return [row for row in rows if not memory_mib or abs(row.memory_mib - memory_mib) < NEAR * row.memory_mib]


def printed_memory(facts: Facts) -> int | None:
    """MiB of one GPU, of the first that prints it."""
    return next((gpu.memory_mib for gpu in (facts.smi.gpus if facts.smi else ()) if gpu.memory_mib), None)
