"""What a MIG profile means for a GPU: how much of it one instance takes, and how many there is room for.

A profile names its compute slices and its memory in decimal GB. The largest one is the whole GPU: 7g means seven slices
for compute and eight for memory, 4g (A30, RTX PRO 6000) four and four, 2g (RTX PRO 4500) two and two (NVIDIA MIG user
guide, "Supported MIG profiles").
"""

from __future__ import annotations

import re

from provisioner.catalog.models import Gpu

MEMORY_SLICES = {7: 8, 4: 4, 2: 2}
"""Memory slices of a GPU by the compute slices of its largest profile."""
PROFILE = re.compile(r"([1-7])g\.([0-9]+)gb")


def full_gpu(gpu: Gpu) -> tuple[int, int, int]:
    """Compute slices, memory slices and decimal GB of the whole GPU. Raises KeyError for a GPU without MIG."""
    known = [(int(f[1]), int(f[2])) for name in gpu.mig_profiles if (f := PROFILE.fullmatch(name))]
    if not known:
        raise KeyError(f"{gpu.model} has no MIG profiles")
    compute, memory_gb = max(known)
    return compute, MEMORY_SLICES[compute], memory_gb


def slices(gpu: Gpu, profile: str) -> tuple[int, int]:
    """Compute and memory slices of one instance. Raises KeyError for a profile that the GPU does not have."""
    match = PROFILE.fullmatch(profile)
    if match is None or profile not in gpu.mig_profiles:
        raise KeyError(f"{gpu.model} has no MIG profile {profile}")
    _, memory, memory_gb = full_gpu(gpu)
    # Names round up: 1g.18gb of 141 GB is one eighth (17.6), 1g.35gb two.
    return int(match[1]), max(1, round(int(match[2]) * memory / memory_gb))


def instances(gpu: Gpu, profile: str | None) -> int:
    """How many instances of that profile one GPU has room for; 0 for None, that is with MIG off."""
    if profile is None:
        return 0
    compute, memory = slices(gpu, profile)
    all_compute, all_memory, _ = full_gpu(gpu)
    return min(all_compute // compute, all_memory // memory)
