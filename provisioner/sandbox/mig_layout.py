"""What the simulated nvidia-smi knows of MIG profiles: ids, slices, memory and units of one instance."""

from __future__ import annotations

from typing import Any

from provisioner.catalog import mig
from provisioner.catalog.models import Gpu

MIG_UNITS = {
    "ampere": ({1: 14, 2: 28, 3: 42, 4: 56, 7: 98}, {1: 0, 2: 1, 3: 2, 4: 2, 7: 5}, {7: 1}),
    "hopper": ({1: 16, 2: 32, 3: 60, 4: 64, 7: 132}, {1: 1, 2: 2, 3: 3, 4: 4, 7: 7}, {1: 1, 2: 2, 3: 3, 4: 4, 7: 7}),
}
"""Multiprocessors, decoders and JPEG engines of an instance by its compute slices: A100 from NVIDIA's MIG user guide,
H100 from a capture of 1g, 2g and 3g; later GPUs are shown with Hopper's numbers (unverified)."""


def mig_layout(gpu: Gpu) -> dict[str, Any]:
    """What one GPU can be cut into. Ids are the MIG user guide's; memory is what nvidia-smi prints, half a GB or less
    below what the name says (captures: 9984 of 10, 19968 of 20, 40448 of 40 GB)."""
    if not gpu.mig:
        return {"supported": False, "profiles": {}, "slices": [0, 0]}
    multiprocessors, decoders, jpeg = MIG_UNITS.get(gpu.arch, MIG_UNITS["hopper"])
    profiles = {}
    for name in gpu.mig_profiles:
        compute, memory = mig.slices(gpu, name)
        memory_gb = int(mig.PROFILE.fullmatch(name)[2])  # type: ignore[index]  # slices() has matched it
        profiles[name] = {
            "id": 15 if (compute, memory) == (1, 2) else {1: 19, 2: 14, 3: 9, 4: 5, 7: 0}[compute],
            "slices": [compute, memory],
            "total": mig.instances(gpu, name),
            "memory_mib": memory_gb * 1024 - (256 if memory_gb <= 10 else 512),
            "sm": multiprocessors[compute],
            "copy": compute,
            "decoders": 1 if (compute, memory) == (1, 2) else decoders[compute],
            "jpeg": jpeg.get(compute, 0),
            "ofa": 1 if compute == 7 else 0,
        }
    return {"supported": True, "profiles": profiles, "slices": list(mig.full_gpu(gpu)[:2])}
