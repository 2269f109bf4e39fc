"""An independent judge of stacks: the rules of the field written down a second time, over compat_facts.yaml.

It shares nothing with provisioner/stack: other data, other code, and no solver but trying everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from provisioner.catalog.models import Gpu, Machine
from provisioner.stack.models import Stack

FACTS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "compat_facts.yaml").read_text(encoding="utf-8"))
AGE = ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"]
GFX = {"cdna2": "gfx90a", "cdna3": "gfx942"}
MAJOR_FLOOR = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def runs_on(arch: str, oldest: str, newest: str) -> bool:
    """Ada has Ampere's major compute capability (8), so what was built for Ampere runs on it."""
    top = AGE.index("ada" if newest == "ampere" else newest)
    return AGE.index(oldest) <= AGE.index(arch) <= top


def toolkit(minor: str) -> dict[str, Any] | None:
    return next((row for row in FACTS["cuda"] if row["version"].startswith(f"{minor}.")), None)


def packaged(system: str, driver: str, cuda: str) -> bool:
    """NVIDIA's repository of Ubuntu 24.04 begins with driver 555 and CUDA 12.5, that of Debian 12 with 545 and 12.4."""
    minimum = {"ubuntu-24.04": ("555", "12.5"), "ubuntu-22.04": ("0", "0"), "debian-12": ("545", "12.4")}[system]
    return numbers(driver) >= numbers(minimum[0]) and numbers(cuda) >= numbers(minimum[1])


def build_cuda(build: str) -> str:
    return f"{build[2:-1]}.{build[-1]}"


def build_runs(release: str, build: str, arch: str) -> bool:
    """Whether a wheel of PyTorch has code for an architecture (PyTorch's own support matrix)."""
    cuda = build_cuda(build)
    if arch == "blackwell":
        return numbers(cuda) >= (12, 8)
    if arch == "volta":
        return numbers(cuda) < (13,) and not (numbers(cuda) >= (12, 8) and numbers(release) >= (2, 11))
    if arch == "hopper":
        return numbers(cuda) >= (11, 8)
    return True


def violations(stack: Stack, machine: Machine, gpu: Gpu) -> list[str]:
    """Everything that is wrong with a stack for a machine."""
    return list(_amd(stack, gpu) if gpu.vendor == "amd" else _nvidia(stack, machine, gpu))


def _nvidia(stack: Stack, machine: Machine, gpu: Gpu) -> Iterator[str]:
    driver, cuda = stack.driver or "", stack.components["cuda"].version
    branch = next((row for row in FACTS["drivers"] if row["branch"] == driver.split(".")[0]), None)
    if branch is None or gpu.arch not in branch["archs"]:
        yield f"driver {driver} does not drive {gpu.arch}"
        return
    row = toolkit(".".join(cuda.split(".")[:2]))
    if row is None or numbers(driver) < numbers(row["minor_compat_min_driver"]):
        yield f"driver {driver} does not run CUDA {cuda}"
    elif not runs_on(gpu.arch, row["archs_min"], row["archs_max"]):
        yield f"CUDA {cuda} has no code for {gpu.arch}"
    if not packaged(stack.os, driver, cuda):
        yield f"{stack.os} has no driver {driver} with CUDA {cuda}"
    state = FACTS["open_kernel_modules"][gpu.arch]
    expected = {"impossible": "proprietary", "required": "open"}.get(
        state, "open" if int(branch["branch"]) >= 560 else "proprietary"
    )
    if stack.kernel_modules != expected:
        yield f"{stack.kernel_modules} modules for {gpu.arch} with {driver}"
    yield from _driver_packages(stack, machine, driver)
    if stack.nccl not in FACTS["nccl"]:
        yield f"no NCCL {stack.nccl}"
    elif int(str(cuda).split(".")[0]) not in FACTS["nccl"][stack.nccl]:
        yield f"NCCL {stack.nccl} was not built for CUDA {cuda}"
    if f"{stack.dcgm}-{stack.dcgm_exporter}" not in FACTS["dcgm_exporter"]:
        yield f"exporter {stack.dcgm_exporter} is not of DCGM {stack.dcgm}"
    if not any(p.name == f"datacenter-gpu-manager-4-cuda{branch['cuda_max_major']}" for p in stack.packages):
        yield "DCGM's package is not that of the driver's CUDA"
    yield from _efa(stack, machine, gpu)
    for image in stack.images:
        yield from _image(image.reference, driver, gpu)


def _driver_packages(stack: Stack, machine: Machine, driver: str) -> Iterator[str]:
    names = {p.name: p.version for p in stack.packages}
    manager = next((n for n in names if n.startswith("nvidia-fabricmanager")), None)
    if (manager is not None) != machine.fabric_manager_required:
        yield "fabric manager is on the wrong machine"
    if manager is not None and names[manager] != f"{driver}-1":
        yield f"fabric manager {names[manager]} with driver {driver}"
    if manager is not None and (manager == "nvidia-fabricmanager") != (numbers(driver) >= (580,)):
        yield f"{manager} is not the name of that driver's era"
    drivers = {p.version for p in stack.packages if p.part in ("driver", "imex")}
    if drivers != {f"{driver}-1"}:
        yield f"packages of several drivers: {drivers}"


def _efa(stack: Stack, machine: Machine, gpu: Gpu) -> Iterator[str]:
    if (stack.efa is not None) != (machine.network.kind == "efa"):
        yield "EFA is on the wrong machine"
    if stack.efa is None:
        return
    row = next((r for r in FACTS["efa"] if r["installer"] == stack.efa), None)
    if row is None or row.get("ofi_nccl") != stack.ofi_nccl:
        yield f"EFA {stack.efa} does not bring aws-ofi-nccl {stack.ofi_nccl}"
    if numbers(stack.efa) < (1, 29, 1) and numbers(stack.nccl or "") >= (2, 19):
        yield f"NCCL {stack.nccl} fails to register memory with EFA {stack.efa}"
    if gpu.arch == "hopper" and numbers(stack.nccl or "") < (2, 18):
        yield "P5 wants NCCL 2.18"
    if gpu.arch == "hopper" and numbers(stack.cuda_toolkit or "") < (12, 0):
        yield "P5 wants CUDA 12"


def _image(reference: str, driver: str, gpu: Gpu) -> Iterator[str]:
    if match := re.match(r"nvcr\.io/nvidia/pytorch:(\d\d\.\d\d)-py3", reference):
        row = next(r for r in FACTS["ngc_pytorch"] if r["tag"] == match[1])
        cuda_row = next(r for r in FACTS["cuda"] if r["version"].startswith(".".join(row["cuda"].split(".")[:2]) + "."))
        older = [d for d in row.get("datacenter_drivers", ()) if gpu.ecc and _same_branch(driver, d)]
        if int(driver[:3]) < int(row["min_driver_branch"]) and not older:
            yield f"{reference} wants driver {row['min_driver_branch']}"
        if not runs_on(gpu.arch, cuda_row["archs_min"], cuda_row["archs_max"]):
            yield f"{reference} has no code for {gpu.arch}"
    elif match := re.match(r"docker\.io/pytorch/pytorch:([\d.]+)-cuda([\d.]+)-", reference):
        build = f"cu{match[2].replace('.', '')}"
        row = next(r for r in FACTS["pytorch"] if r["version"] == match[1])
        if build not in row["cuda_builds"]:
            yield f"PyTorch {match[1]} has no known build {build}"
        if numbers(driver) < numbers(MAJOR_FLOOR[int(match[2].split(".")[0])]):
            yield f"driver {driver} does not run {build}"
        if not build_runs(match[1], build, gpu.arch):
            yield f"{reference} has no code for {gpu.arch}"
    elif match := re.match(r"docker\.io/tensorflow/tensorflow:([\d.]+)-gpu", reference):
        row = next(r for r in FACTS["tensorflow"] if r["version"] == match[1])
        if numbers(driver) < numbers(MAJOR_FLOOR[int(row["cuda"].split(".")[0])]):
            yield f"driver {driver} does not run CUDA {row['cuda']}"
        known = toolkit(row["cuda"])
        if known is None or not runs_on(gpu.arch, known["archs_min"], known["archs_max"]):
            yield f"{reference} has no code for {gpu.arch}"
    else:
        yield f"nothing is known of {reference}"


def _same_branch(driver: str, minimum: str) -> bool:
    return driver[:3] == minimum[:3] and numbers(driver) >= numbers(minimum)


def _amd(stack: Stack, gpu: Gpu) -> Iterator[str]:
    row = next((r for r in FACTS["rocm"] if r["version"] == stack.rocm), None)
    if row is None or GFX[gpu.arch] not in row["gfx"]:
        yield f"ROCm {stack.rocm} does not drive {gpu.arch}"
        return
    if stack.os.removeprefix("ubuntu-") not in row["ubuntu"]:
        yield f"ROCm {stack.rocm} is not for {stack.os}"
    if any(p.part != "rocm" for p in stack.packages):
        yield "packages of NVIDIA"
    match = re.match(r"([\d.]+)\+rocm([\d.]+)$", stack.pytorch or "")
    if match is None:
        yield f"{stack.pytorch} is no build for ROCm"
    elif not rocm_goes(match[1], match[2], stack.rocm or "", gpu.arch):
        yield f"{stack.pytorch} does not go with ROCm {stack.rocm}"


def rocm_goes(release: str, build: str, rocm: str, arch: str) -> bool:
    """Whether a ROCm build exists, is within two minor releases of the driver, and knows the GPU."""
    row = next((r for r in FACTS["pytorch"] if r["version"] == release), None)
    have, host = numbers(build), numbers(rocm)
    return (
        row is not None
        and f"rocm{build}" in row["rocm_builds"]
        and have[0] == host[0]
        and abs(have[1] - host[1]) <= 2
        and (arch != "cdna3" or have[0] >= 6)
    )


DRIVERS = (
    "470.256.02", "525.85.12", "535.247.01", "545.23.08", "550.144.06", "560.35.05", "570.172.08", "575.57.08",
    "580.173.02", "590.48.01", "595.91.07", "610.60",
)  # fmt: skip
SYSTEMS = ("ubuntu-24.04", "ubuntu-22.04", "debian-12")


def base_sets(arch: str) -> Iterator[tuple[str, str, str]]:
    """Every (driver, CUDA, distribution) that goes together on an architecture."""
    for driver, row, system in product(DRIVERS, FACTS["cuda"], SYSTEMS):
        branch = next(b for b in FACTS["drivers"] if b["branch"] == driver.split(".")[0])
        if (
            arch in branch["archs"]
            and numbers(driver) >= numbers(row["minor_compat_min_driver"])
            and runs_on(arch, row["archs_min"], row["archs_max"])
            and packaged(system, driver, row["version"])
        ):
            yield driver, row["version"], system


def possible(machine: Machine, gpu: Gpu, *, pytorch: str | None = None, tensorflow: str | None = None) -> bool:
    """Whether any set at all serves a machine with that release of a framework, found by trying all of them."""
    if gpu.vendor == "amd":
        return tensorflow is None and any(
            rocm_goes(row["version"], build.removeprefix("rocm"), rocm["version"], gpu.arch)
            and GFX[gpu.arch] in rocm["gfx"]
            and {"22.04", "24.04"} & set(rocm["ubuntu"])
            for row in FACTS["pytorch"]
            if row["version"] == pytorch
            for build in row["rocm_builds"]
            for rocm in FACTS["rocm"]
        )
    p5 = gpu.arch == "hopper" and machine.network.kind == "efa"
    for driver, cuda, _ in base_sets(gpu.arch):
        if p5 and numbers(cuda) < (12, 0):
            continue
        for reference, image_cuda in _images_of(pytorch, tensorflow):
            same_major = cuda.split(".")[0] == image_cuda.split(".")[0]
            enough = tensorflow is None or numbers(cuda) >= numbers(image_cuda)
            if same_major and enough and not list(_image(reference, driver, gpu)):
                return True
    return False


def _images_of(pytorch: str | None, tensorflow: str | None) -> Iterator[tuple[str, str]]:
    for row in FACTS["pytorch"]:
        if row["version"] == pytorch:
            for build in row["cuda_builds"]:
                yield f"docker.io/pytorch/pytorch:{pytorch}-cuda{build_cuda(build)}-x", build_cuda(build)
    for row in FACTS["tensorflow"]:
        if row["version"] == tensorflow:
            yield f"docker.io/tensorflow/tensorflow:{tensorflow}-gpu", row["cuda"]
