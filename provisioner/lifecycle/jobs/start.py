"""Start a job: its nodes, its image, its folder on every node, one container each."""

from __future__ import annotations

import re
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from provisioner.common.errors import GpuprovError
from provisioner.common.text import counted, few
from provisioner.lifecycle.jobs import choose, on_nodes, slurm_submit
from provisioner.lifecycle.jobs.pack import pack
from provisioner.lifecycle.quarantine.actions import person
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir.fleet import Node
from provisioner.spec.base import NAME_PATTERN, NAME_TITLE
from provisioner.workloads import published

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster
    from provisioner.stack.models import Image
    from provisioner.workloads.recipe import Recipe

PORT = 29400
"""torchrun's own default for its rendezvous; the supervisor listens on the next one."""
GRACE_S = 120
"""Seconds that ranks have to write a checkpoint: what AWS announces an interruption before it."""
CHECKPOINTS = "/var/lib/gpuprov/checkpoints"
"""Where a group has no scratch."""
SYSTEM = (
    "bin", "boot", "dev", "etc", "gpuprov", "job", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "sys", "usr",
)  # fmt: skip
"""Folders that a container has of its own."""
MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None takes the default."""

    group: str | None = None
    nodes: int | None = None
    names: Sequence[str] = ()
    name: str | None = None
    image: str | None = None
    gpus_per_node: int | None = None
    checkpoints: str | None = None
    grace_s: int = GRACE_S
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the recipe's, and before it."""


@dataclass(frozen=True, slots=True)
class Started:
    """A job that runs, or waits in Slurm's queue. `pids`: node → the process to wait for; `slurm`: Slurm's number of
    it, and then its nodes are not known yet."""

    id: str
    name: str
    nodes: tuple[Node, ...]
    pids: Mapping[str, int]
    slurm: str = ""


def start(cluster: Cluster, recipe: Recipe, arguments: Sequence[str], options: Options) -> Started:
    """Start a recipe on its nodes. Raises GpuprovError, and then no container of it runs."""
    name = options.name or recipe.name
    if not re.fullmatch(NAME_PATTERN, name):
        raise GpuprovError(f"--name {name}: not {NAME_TITLE}")
    _check_paths(options)
    with cluster.exclusively("run", look=True), tempfile.NamedTemporaryFile(prefix="gpuprov-job-") as archive:
        group = choose.group_of(cluster, options.group, options.names)
        is_slurm = cluster.spec.scheduler.slurm is not None
        select = choose.of_group if is_slurm else choose.choose
        nodes = select(cluster, group, options.nodes, options.names)
        job = _job(cluster, group, nodes, recipe, arguments, options, name)
        packed = pack(recipe.folder, archive)
        archive.flush()
        cluster.events(
            "run", "started",
            f"job {job['id']}: {counted(packed.files, 'file')} of {recipe.folder} ({_size(packed.size)}) to "
            f"{counted(options.nodes or len(nodes), 'node')}",
        )  # fmt: skip
        for link in packed.links:
            cluster.events("run", "warning", f"{link} leads out of the folder: it is broken on the nodes")
        if is_slurm:
            count = options.nodes or len(nodes)
            script = slurm_submit.batch_script(job, group, count, options.names, Path(archive.name))
            return Started(job["id"], name, (), {}, slurm_submit.submit(cluster, script))
        _refuse(cluster, job["id"], on_nodes.send_all(cluster, nodes, Path(archive.name), job["id"]), ())
        program = on_nodes.source("supervisor.py")
        requests = {node.name: {"do": "start", "job": {**job, "node": node.name}, "program": program} for node in nodes}
        try:
            answers, errors = on_nodes.ask_all(cluster, requests, on_nodes.START_S)
        except BaseException:  # Ctrl-C: some nodes have started their part
            stop = {"do": "stop", "id": job["id"], "reason": f"stopped by {person()} while it started"}
            on_nodes.ask_all(cluster, dict.fromkeys(requests, stop))
            raise
        _refuse(cluster, job["id"], errors, tuple(answers))
        pids = {name: int(answer["pid"]) for name, answer in answers.items()}
    return Started(job["id"], name, tuple(nodes), pids)


def _check_paths(options: Options) -> None:
    """Raise GpuprovError for a folder of checkpoints that no container can have."""
    path = options.checkpoints
    if path is None:
        return
    parts = Path(path).parts
    if parts[:1] != ("/",) or ".." in parts or ":" in path:
        raise GpuprovError(f"--checkpoints {path}: not an absolute path", hint="such as /scratch/checkpoints")
    if len(parts) < 2 or parts[1] in SYSTEM:
        raise GpuprovError(f"--checkpoints {path}: a folder of the system", hint="such as /scratch/checkpoints")


def _refuse(cluster: Cluster, job_id: str, errors: Mapping[str, str], started: Sequence[str]) -> None:
    """Raise GpuprovError where a node did not start its part, after the others have ended theirs."""
    if not errors:
        return
    stop = {"do": "stop", "id": job_id, "reason": f"it did not start on {', '.join(errors)}"}
    on_nodes.ask_all(cluster, dict.fromkeys(started, stop))
    listed = few([f"{name}: {reason}" for name, reason in errors.items()], 5)
    raise GpuprovError(f"the job did not start: {listed}", where=cluster.spec.name)


def _job(
    cluster: Cluster,
    group: str,
    nodes: Sequence[Node],
    recipe: Recipe,
    arguments: Sequence[str],
    options: Options,
    name: str,
) -> dict[str, Any]:
    """job.json but for the node's own name (supervisor.py reads it)."""
    machine = cluster.spec.catalog.machine(nodes[0].machine)
    image = image_of(cluster, nodes, options.image)
    gpus = options.gpus_per_node or recipe.needs.gpus_per_node or machine.gpu_count
    count = options.nodes or len(nodes)
    _check_needs(cluster, recipe, count, gpus, image, nodes[0], is_changed=bool(arguments))
    expected = subjects_of(cluster, nodes[:1])[0].expected
    scratch = cluster.spec.groups[group].storage.scratch
    peak = published.peaks().get(machine.gpu_model)
    return {
        "id": f"{name}-{secrets.token_hex(3)}",
        "name": name,
        "owner": person(),
        "began": time.time(),
        "nodes": [{"name": node.name, "address": node.private_address or node.address} for node in nodes],
        "port": PORT,
        "token": secrets.token_hex(16),
        "image": image.pull,
        "command": [*recipe.command, *arguments],
        "environment": {
            **({"GPUPROV_PEAK_TFLOPS": f"{peak.bf16:g}"} if peak else {}),
            **dict(recipe.environment),
            **options.environment,
        },
        "gpus": gpus,
        "grace_s": options.grace_s,
        "checkpoints": options.checkpoints or f"{scratch + '/checkpoints' if scratch else CHECKPOINTS}/{name}",
        "volumes": [*([scratch] if scratch else []), *(mount.path for mount in nodes[0].mounts)],
        "rdma": expected.fabric == "rdma" and count > 1 and "NCCL_DEBUG" not in options.environment,
        "gpudirect": expected.gpudirect,
    }


def image_of(cluster: Cluster, nodes: Sequence[Node], reference: str | None) -> Image:
    """The image of the lock that these nodes run. Raises GpuprovError where it has none that fits."""
    stacks = {
        release.id: release.stack(node.group)
        for node, release in zip(nodes, upgrade_journal.assigned(cluster, nodes, cluster.lock).values(), strict=True)
    }
    if len(stacks) != 1:
        raise GpuprovError("the nodes run different locks", hint=f"finish `gpuprov upgrade {cluster.typed_file}` first")
    images = next(iter(stacks.values())).images
    if reference is not None:
        match = next((image for image in images if reference in (image.reference, image.pull)), None)
        if match is None:
            listed = ", ".join(image.reference for image in images) or "none"
            raise GpuprovError(
                f"cluster.lock does not have the image {reference}", hint=f"images of the lock: {listed}"
            )
        return match
    if not images:
        raise GpuprovError(
            "cluster.lock has no container image", where=str(cluster.file), hint="name one in stack.containers"
        )
    return next((image for image in images if image.torch is not None), images[0])


def _check_needs(
    cluster: Cluster, recipe: Recipe, nodes: int, gpus: int, image: Image, node: Node, *, is_changed: bool
) -> None:
    """Raise GpuprovError where these nodes or their image are not what the recipe needs. `is_changed`: with arguments
    of the user, a model or batch may be smaller."""
    needs, machine = recipe.needs, cluster.spec.catalog.machine(node.machine)
    problems = []
    if gpus < 1 or gpus > machine.gpu_count:
        problems.append(f"{counted(gpus, 'GPU')} on a node: {machine.name} has {machine.gpu_count}")
    if needs.gpus_per_node > gpus:
        problems.append(f"needs {needs.gpus_per_node} GPUs on a node, and {gpus} are requested")
    if needs.nodes > nodes:
        problems.append(f"needs {needs.nodes} nodes, and {nodes} are requested")
    memory = cluster.spec.catalog.gpu(machine.gpu_model).memory_mib / MIB_PER_GIB if machine.gpu_count else 0.0
    if needs.gpu_memory_gib > memory:
        text = f"needs {needs.gpu_memory_gib:g} GiB of GPU memory, and {machine.gpu_model} has {memory:.0f}"
        if is_changed:
            cluster.events("run", "warning", f"recipe {recipe.name} by itself {text}")
        else:
            problems.append(text)
    if needs.torch and image.torch is None:
        message = f"the version of PyTorch in {image.reference} is unknown; the recipe needs {needs.torch}"
        cluster.events("run", "warning", message)
    elif needs.torch and str(image.torch) not in SpecifierSet(needs.torch, prereleases=True):
        problems.append(f"needs PyTorch {needs.torch}, and {image.reference} has {image.torch}")
    if problems:
        raise GpuprovError(f"recipe {recipe.name}: {'; '.join(problems)}", where=cluster.spec.name)


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{max(1, size >> 10)} KiB"
