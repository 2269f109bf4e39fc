"""What cluster.yaml pins, plus the tested sets of data/stacks.yaml → one Stack for each group.

The first set that serves the machine's GPU architecture and agrees with every pin is taken. Nothing is guessed: a
pin that no set satisfies is refused with what exists.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from provisioner import catalog
from provisioner.catalog.models import Gpu, Machine
from provisioner.errors import GpuprovError
from provisioner.spec.models import ClusterSpec, StackRequest
from provisioner.stack.models import Image, Package, Part, Repository, Stack

NGC_PYTORCH = "nvcr.io/nvidia/pytorch"
OS = "ubuntu2404"
"""The repository folder of the base image that the providers boot."""


@cache
def data() -> dict[str, Any]:
    """The rows of data/stacks.yaml."""
    text = (resources.files("provisioner.stack") / "data" / "stacks.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return loaded


def request(spec: ClusterSpec) -> dict[str, str]:
    """Everything that a lock depends on, flat and in a stable order: pins, and each group's machine and options."""
    flat: dict[str, str] = {}
    for key, value in spec.stack.model_dump(exclude_none=True).items():
        if value:
            flat[f"stack.{key}"] = ", ".join(value) if isinstance(value, tuple) else str(value)
    flat["monitoring.dcgm_exporter"] = str(spec.monitoring.dcgm_exporter).lower()
    for name, group in sorted(spec.groups.items()):
        flat[f"groups.{name}.machine"] = group.machine
        if group.network.efa is not None:
            flat[f"groups.{name}.network.efa"] = str(group.network.efa).lower()
    return flat


def solve(spec: ClusterSpec) -> dict[str, Stack]:
    """One Stack for each group. Images have no digest yet: the provider pins them (`Provider.pin`).

    Raises GpuprovError where no set of versions satisfies the pins, or the machine's vendor has no stack.
    """
    known = catalog.load()
    stacks = {}
    for name, group in spec.groups.items():
        machine = known.machine(group.machine)
        efa = machine.network.kind == "efa" and group.network.efa is not False
        stacks[name] = _stack(name, machine, known.gpu(machine.gpu_model), spec, efa=efa)
    return stacks


def _stack(group: str, machine: Machine, gpu: Gpu, spec: ClusterSpec, *, efa: bool) -> Stack:
    where = f"groups.{group}"
    if gpu.vendor == "amd":
        raise GpuprovError(
            f"no stack for {machine.name}: gpuprov has tested sets for NVIDIA GPUs only",
            where=where,
            hint="an AMD machine can be looked at with `gpuprov verify --host`, not yet configured",
        )
    candidates = [s for s in data()["sets"] if gpu.arch in s["archs"]]
    chosen = [s for s in candidates if not _conflicts(s, spec.stack)]
    if not chosen:
        offers = "; ".join(
            f"{s['name']}: driver {s['driver']}, CUDA {s['cuda_toolkit']}, NCCL {s['nccl']}" for s in candidates
        )
        reasons = sorted({c for s in candidates for c in _conflicts(s, spec.stack)})
        raise GpuprovError(
            f"no tested set of versions for {machine.name} ({gpu.arch}) agrees with {', '.join(reasons) or 'it'}",
            where=where,
            hint=f"what exists: {offers or 'none'}",
        )
    return _assemble(chosen[0], machine, spec, efa=efa)


def _conflicts(row: dict[str, Any], pins: StackRequest) -> list[str]:
    wanted = {"driver": pins.driver, "cuda_toolkit": pins.cuda, "nccl": pins.nccl}
    found = [
        f"stack.{'cuda' if key == 'cuda_toolkit' else key}: {pin}"
        for key, pin in wanted.items()
        if pin
        and not _starts(row[key], pin)
        and not (key == "cuda_toolkit" and _starts(row["cuda_toolkit_release"], pin))
    ]
    if pins.pytorch and not any(_runs(i, row) and _starts(i["torch"], pins.pytorch) for i in data()["ngc_pytorch"]):
        found.append(f"stack.pytorch: {pins.pytorch}")
    return found


def _starts(version: str, pin: str) -> bool:
    """Whether a pin names this version: "580" and "580.173" both name 580.173.02, "58" does not."""
    return version == pin or version.startswith((pin + ".", pin + "a", pin + "+"))


def _runs(image: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a framework image runs on a set: the driver's branch is new enough, and its CUDA major is the set's."""
    return bool(
        int(row["driver_branch"]) >= image["min_driver_branch"]
        and image["cuda"].split(".")[0] == row["cuda_toolkit"].split(".")[0]
    )


def _assemble(row: dict[str, Any], machine: Machine, spec: ClusterSpec, *, efa: bool) -> Stack:
    parts: list[Part] = ["driver", "cuda", "nccl", "dcgm", "container_toolkit"]
    parts += ["fabric_manager"] if machine.fabric_manager_required else []
    parts += ["dcgm_exporter"] if spec.monitoring.dcgm_exporter else []
    parts += ["efa"] if efa else []
    values = {
        "driver": row["driver"], "branch": row["driver_branch"], "toolkit": row["cuda_toolkit"].replace(".", "-"),
        "toolkit_release": row["cuda_toolkit_release"], "nccl": row["nccl"], "nccl_build": row["nccl_build"],
        "dcgm": row["dcgm"], "dcgm_cuda": row["dcgm_cuda"], "exporter": row["dcgm_exporter"],
        "container_toolkit": row["container_toolkit"], "efa": row["efa"],
    }  # fmt: skip
    packages = [
        Package(
            name=name.format(**values),
            version=block["version"].format(**values),
            repository=block["repository"],
            part=part,
        )
        for part, block in ((part, data()["packages"][part]) for part in parts)
        for name in [*block["names"], *block.get(row["kernel_modules"], [])]
    ]
    repositories = {p.repository for p in packages if p.repository}
    return Stack(
        os="ubuntu-24.04",
        efa=row["efa"] if efa else None,
        driver=row["driver"],
        driver_branch=row["driver_branch"],
        kernel_modules=row["kernel_modules"],
        fabric_manager=row["driver"] if machine.fabric_manager_required else None,
        cuda_driver=row["cuda_driver"],
        cuda_toolkit=row["cuda_toolkit"],
        nccl=row["nccl"],
        dcgm=row["dcgm"],
        dcgm_exporter=row["dcgm_exporter"] if spec.monitoring.dcgm_exporter else None,
        container_toolkit=row["container_toolkit"],
        packages=tuple(packages),
        repositories=tuple(_repository(name) for name in sorted(repositories)),
        images=_images(row, spec.stack),
        why={"set": f"{row['name']}: {row['source']}"},
    )


def _repository(name: str) -> Repository:
    row = data()["repositories"][name]
    return Repository(
        name=name,
        uri=(row["uri"] or "").format(os=OS),
        suite=row["suite"],
        components=row["components"],
        key_url=(row["key_url"] or "").format(os=OS),
        fingerprint=row["fingerprint"] or "",
    )


def _images(row: dict[str, Any], pins: StackRequest) -> tuple[Image, ...]:
    """The images that cluster.yaml names; where it names none, the framework image that fits."""
    references = pins.containers
    if not references:
        rows = [i for i in data()["ngc_pytorch"] if _runs(i, row)]
        rows = [i for i in rows if not pins.pytorch or _starts(i["torch"], pins.pytorch)]
        tag = row["ngc_pytorch"] if any(i["tag"] == row["ngc_pytorch"] for i in rows) else rows[-1]["tag"]
        references = (f"{NGC_PYTORCH}:{tag}-py3",)
    return tuple(_image(reference, row) for reference in references)


def _image(reference: str, row: dict[str, Any]) -> Image:
    """What is known of an image: versions for NVIDIA's framework images, nothing for anybody else's."""
    known = next((i for i in data()["ngc_pytorch"] if reference.startswith(f"{NGC_PYTORCH}:{i['tag']}-")), None)
    if known is None:
        return Image(reference=reference, digest="", pull="")
    if not _runs(known, row):
        raise GpuprovError(
            f"{reference} holds CUDA {known['cuda']} and wants driver branch {known['min_driver_branch']} or later, "
            f"which does not go with {row['name']} (driver {row['driver']}, CUDA {row['cuda_toolkit']})",
            where="stack.containers",
            hint=f"{NGC_PYTORCH}:{row['ngc_pytorch']}-py3 goes with it",
        )
    return Image(
        reference=reference, digest="", pull="",
        torch=known["torch"], cuda=known["cuda"], nccl=known["nccl"], python=known["python"],
    )  # fmt: skip
