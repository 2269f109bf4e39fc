"""Whether what a node copies arrives: patterns from GPU to GPU and between host and GPU, compared on the other side."""

from __future__ import annotations

from provisioner.common.text import few
from provisioner.verify.check import Action, check, fail, saw, skip, unknown
from provisioner.verify.checks.load import LOAD, NEEDS, reached
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.load import Load


@check(
    "load.copies",
    severity="fatal",
    documented="github NVIDIA/open-gpu-kernel-modules#1257, CAPS-UMU/FIDESlib#28, unslothai/unsloth#10613: copies "
    "between GPUs arrive wrong without any error; vllm-project/vllm can_actually_p2p compares them too",
    action="replace",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.results"),
    says="Copied bytes arrive wrong and nothing reports an error: every job of several GPUs computes with them. If one "
    "GPU is part of all wrong pairs, replace it. If all are wrong, disable the IOMMU or P2P, or use another driver.",
)
def test_copies(node: Facts, expected: Expected) -> None:
    load = reached(node, expected)
    if load.wrong_peers is None and all(gpu.wrong_h2d is None for gpu in load.gpus):
        skip("an older load program, which compared no copies")
    wrong = wrong_copies(load)
    pairs = {(i, j) for i, j, _ in load.wrong_peers or ()}
    saw(expected=f"every byte right: host and GPU, {len(pairs)} pairs of GPUs", actual=wrong or "every byte right")
    if wrong:
        fail(few([f"{path}: {count} wrong bytes" for path, count in wrong.items()], 4), action=action_for(load))
    indexes = [gpu.index for gpu in load.gpus]
    missing = [f"GPU {i} to GPU {j}" for i in indexes for j in indexes if i != j and (i, j) not in pairs]
    missing += [f"GPU {gpu.index} and host" for gpu in load.gpus if gpu.wrong_h2d is None or gpu.wrong_d2h is None]
    if missing:
        unknown(f"not compared: {few(missing, 3)}")


def wrong_copies(load: Load) -> dict[str, int]:
    """Path → wrong bytes, of the paths that have any."""
    paths: dict[str, int | None] = {f"GPU {i} to GPU {j}": count for i, j, count in load.wrong_peers or ()}
    for gpu in load.gpus:
        paths |= {f"host to GPU {gpu.index}": gpu.wrong_h2d, f"GPU {gpu.index} to host": gpu.wrong_d2h}
    return {path: count for path, count in paths.items() if count}


def action_for(load: Load) -> Action:
    """Replace where one GPU is part of every wrong copy; where several GPUs are, IOMMU, driver or settings."""
    sets = [{i, j} for i, j, count in load.wrong_peers or () if count]
    sets += [{gpu.index} for gpu in load.gpus if gpu.wrong_h2d or gpu.wrong_d2h]
    return "replace" if set.intersection(*sets) and len(load.gpus) > 2 else "reconfigure"
