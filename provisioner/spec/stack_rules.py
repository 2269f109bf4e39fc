"""Pinned versions that cannot run on the GPUs asked for, or not with each other (catalog/data/compat.yaml)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner.catalog import Catalog
from provisioner.catalog.models import CudaRelease, DriverBranch, Machine
from provisioner.spec.models import StackRequest

Found = tuple[str, str, str]
"""Key of `stack`, message, hint."""


def stack_findings(stack: StackRequest, machines: Sequence[Machine], catalog: Catalog) -> Iterator[Found]:
    """What is pinned and cannot be. In a fleet of both, NVIDIA's pins are for the NVIDIA machines."""
    nvidia = [m for m in machines if catalog.gpu(m.gpu_model).vendor == "nvidia"]
    if machines and not nvidia:
        for key in ("driver", "cuda", "nccl"):
            if getattr(stack, key) is not None:
                yield key, f"{machines[0].gpu_model} is an AMD GPU: {key} is NVIDIA's", "leave it out"
        return
    branch = release = None
    if stack.driver is not None:
        branch = next((b for b in catalog.driver_branches if b.branch == stack.driver[:3]), None)
        if branch is None:
            known = [b.branch for b in catalog.driver_branches]
            yield "driver", f"no driver branch {stack.driver[:3]} is known", f"known: {', '.join(known[-6:])}"
        else:
            yield from _driver_and_gpus(branch, nvidia, catalog)
    if stack.cuda is not None:
        wanted = ".".join(stack.cuda.split(".")[:2])
        release = next((c for c in catalog.cuda_releases if c.version == wanted), None)
        if release is None:
            versions = sorted([*(c.version for c in catalog.cuda_releases), wanted], key=_numbers)
            at = versions.index(wanted)
            around = [v for v in versions[max(0, at - 1) : at + 2] if v != wanted]
            yield "cuda", f"no CUDA {wanted} is known", f"known: {' and '.join(around)}"
        else:
            yield from _cuda_and_gpus(release, nvidia, catalog)
    if branch is not None and release is not None and stack.driver is not None:
        yield from _driver_and_cuda(stack.driver, branch, release, catalog)


def _driver_and_gpus(branch: DriverBranch, machines: Sequence[Machine], catalog: Catalog) -> Iterator[Found]:
    for machine in _one_for_each_arch(machines):
        if machine.gpu_arch not in branch.archs:
            fit = [b.branch for b in catalog.driver_branches if machine.gpu_arch in b.archs]
            what = f"driver {branch.branch} does not drive the {machine.gpu_model} of {machine.name}"
            yield "driver", what, f"branches that do: {fit[0]} to {fit[-1]}" if fit else ""


def _cuda_and_gpus(release: CudaRelease, machines: Sequence[Machine], catalog: Catalog) -> Iterator[Found]:
    for machine in _one_for_each_arch(machines):
        if not _builds_for(release, machine.gpu_arch, catalog):
            fit = [c.version for c in catalog.cuda_releases if _builds_for(c, machine.gpu_arch, catalog)]
            what = f"CUDA {release.version} does not build for the {machine.gpu_model} of {machine.name}"
            yield "cuda", what, f"versions that do: {fit[0]} to {fit[-1]}" if fit else ""


def _builds_for(release: CudaRelease, arch: str, catalog: Catalog) -> bool:
    age = catalog.archs.index
    return age(release.archs_min) <= age(arch) <= age(release.archs_max)


def _driver_and_cuda(driver: str, branch: DriverBranch, release: CudaRelease, catalog: Catalog) -> Iterator[Found]:
    if not _runs(driver, branch, release):
        older = [c.version for c in catalog.cuda_releases if _runs(driver, branch, c)]
        hint = f"{f'CUDA {older[-1]}, or ' if older else ''}a driver from {release.min_driver} on"
        yield "cuda", f"driver {driver} does not run CUDA {release.version}", hint


def _runs(driver: str, branch: DriverBranch, release: CudaRelease) -> bool:
    """Whether the driver, given as branch or version, may run that CUDA; a branch stands for its newest driver."""
    least, version = _numbers(release.min_driver), _numbers(driver)
    new_enough = version >= least[: len(version)]
    return new_enough and int(release.version.split(".")[0]) <= branch.cuda_max_major


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _one_for_each_arch(machines: Sequence[Machine]) -> list[Machine]:
    return list({machine.gpu_arch: machine for machine in reversed(machines)}.values())
