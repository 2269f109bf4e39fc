"""The disk image of a target: made of what was captured, booted in a virtual machine, proven, published."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from provisioner.common import directories
from provisioner.common.errors import VerifyError
from provisioner.common.paths import below, private_dir, remove_tree, write_whole
from provisioner.lifecycle import second_boot
from provisioner.lifecycle.images import virtual
from provisioner.lifecycle.images.builder import Builder, disks_of
from provisioner.lifecycle.images.disk import first_boot, layout, tools, virtual_machine
from provisioner.lifecycle.images.manifest import Disk, DiskFile, Proof
from provisioner.lifecycle.images.recipe import Recipe, opened, workplace, written
from provisioner.lifecycle.images.virtual import BOOT_S
from provisioner.lifecycle.images.work import DISK, Build, of_group
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh_config, ssh_keys, ssh_sockets

STEPS = ("disk", "disk proven", "disk published")
RAW = "disk.raw"
IDENTITY = "/etc/gpuprov/image.json"
"""Of which build a machine was made (generalise_node.py)."""


def refuse_unmakeable(recipe: Recipe, name: str, system: str | None) -> None:
    """Raise GpuprovError for what keeps this computer from making the disk; nothing is changed. `system`: its
    distribution, where that is known."""
    if recipe.target(name).disk is None:
        return
    if virtual.is_virtual(recipe, name):
        virtual.refuse_unmakeable(system)
    else:
        tools.require()


def check(work: Build, name: str) -> None:
    """As `refuse_unmakeable`, and make the folder that the disk is published in."""
    refuse_unmakeable(work.recipe, name, work.lock.groups[name].os)
    if work.recipe.target(name).disk is not None:
        private_dir(folder_of(work.recipe, name))


def folder_of(recipe: Recipe, name: str) -> Path:
    """Where the disks of a target are published; of a sandbox in its run directory."""
    settings = recipe.target(name).disk
    assert settings is not None
    if recipe.sandbox:
        return recipe.cluster.paths.root / "disks"
    return recipe.cluster.file.absolute().parent / Path(settings.path).expanduser()


def steps(work: Build, name: str, image: str) -> Disk | None:
    """Make, prove and publish the disk of a target; None where the recipe wants none."""
    journal = work.journal
    if work.recipe.target(name).disk is None:
        return None
    if journal.of(name, "disk") is None:
        work.report_event(f"{name}: making a disk")
        journal.done(name, "disk", _make_disk(work, name, image))
    if journal.of(name, "disk proven") is None:
        journal.done(name, "disk proven", [proof.model_dump() for proof in _proven(work, name)])
    if journal.of(name, "disk published") is None:
        journal.done(name, "disk published", {key: file.model_dump() for key, file in _published(work, name).items()})
    _forget(work, name)
    disk_facts = journal.of(name, "disk")
    return Disk(
        files={key: DiskFile(**fields) for key, fields in journal.of(name, "disk published").items()},
        root=disk_facts["root"], kernel=disk_facts["kernel"],
        proofs=tuple(Proof(**fields) for fields in journal.of(name, "disk proven")),
    )  # fmt: skip


def _make_disk(work: Build, name: str, image: str) -> dict[str, str]:
    """The disk in the build's folder; gives the kernel that it boots and the UUID of its root file system."""
    folder, identity = _clear(work, name), virtual.identity_of(work, name)
    settings, disks = work.recipe.target(name).disk, disks_of(work.recipe.cluster, name)
    assert settings is not None
    esp = folder / "esp"
    if disks is None:
        raw = virtual.sealed(work, name, folder)
    else:
        with disks.root(image, private_dir(esp), virtual.boot_environment(identity), virtual.script()) as root:
            raw = layout.make(root, esp, folder, identity, virtual.made_at(work))
    kernels = layout.kernels(raw)
    if len(kernels) != 1:
        raise VerifyError(f"a disk boots one kernel, this one has {', '.join(kernels) or 'none'}", where=name)
    for scratch in (esp, folder / "genimage"):
        if scratch.exists():
            remove_tree(scratch)
    if "qcow2" in settings.formats:
        layout.converted(raw)
    return {"kernel": kernels[0], "root": identity.root}


def _proven(work: Build, name: str) -> list[Proof]:
    """Boot it, and again; level `image` after each. Raises ProviderError, ConfigureError, VerifyError; the console's
    log is in the build's folder then."""
    recipe, folder = work.recipe, _workplace(work, name)
    cluster = opened(recipe, written(recipe, work.id, name, DISK, {} if virtual.is_virtual(recipe, name) else None))
    site, group = cluster.spec.site_of(name), cluster.spec.groups[name]
    builder = Builder(cluster, name, of_group(work.lock, cluster, name), None)
    user, machine = cluster.spec.user(site), f"{name}-0"
    key = first_boot.host_key(folder)
    seed = first_boot.seed(folder, machine, first_boot.user_data(user, ssh_keys.ensure_key(cluster.paths, None), key))
    how = virtual_machine.accelerator(folder)
    work.report_event(f"{name}: booting the disk in QEMU ({how}), {recipe.settings.boots} times")
    proofs, began = list[Proof](), time.monotonic()
    with virtual_machine.booted(folder / RAW, seed, folder / "console.log", how) as guest:
        guest.wait_for_ssh(BOOT_S[how])
        node = Node(
            name=machine, group=name, site=site, machine=group.machine_type(), id=f"disk-{work.id}", zone="",
            address="127.0.0.1", private_address="127.0.0.1", port=guest.port, user=user,
        )  # fmt: skip
        ssh_config.save(cluster.paths, [node], {machine: (node.id, key.public)}, {machine: user})
        try:
            second_boot.settle(cluster, node, BOOT_S[how], guest.running)
            for number in range(1, recipe.settings.boots + 1):
                if number > 1:
                    began = time.monotonic()
                    second_boot.reboot(cluster, node)
                proofs.append(_proof(work, name, builder, node, number, time.monotonic() - began, how))
        finally:
            ssh_sockets.disconnect(cluster.paths, [machine])
    return proofs


def _proof(work: Build, name: str, builder: Builder, node: Node, boot: int, seconds: float, how: str) -> Proof:
    """Level `image` on the running machine, and that it is this disk's kernel and this build's image. `seconds`: from
    power on until its services were up."""
    from provisioner.verify.facts import read

    facts, stack = read(builder.prove_installed(node)), work.lock.groups[name]
    kernel, disk_kernel = facts.kernel, work.journal.of(name, "disk")["kernel"]
    if kernel != disk_kernel:
        raise VerifyError(
            f"boot {boot} of the disk runs kernel {kernel or 'unknown'}, not its own {disk_kernel}", where=name
        )
    identity_text = second_boot.ask(builder.cluster, node, f"cat {IDENTITY}")
    if json.dumps(work.id) not in identity_text:
        raise VerifyError(
            f"boot {boot} of the disk is not of build {work.id}: {IDENTITY} has {identity_text!r:.200}", where=name
        )
    compared = {"packages": len(stack.packages), "container images": len(stack.images)}
    report = f"{name}-disk-boot-{boot}.json"
    document = {
        "level": "image", "machine": node.machine, "node": node.name, "boot": boot, "kernel": kernel, "qemu": how,
        "seconds": round(seconds, 1), "as_locked": compared,
    }  # fmt: skip
    write_whole(private_dir(work.folder / "proofs") / report, json.dumps(document, indent=1) + "\n", mode=0o644)
    work.report_event(f"{name}: boot {boot} of the disk passed level image after {seconds:.0f} s")
    return Proof(
        machine=node.machine, node=node.name, level="image", report=report, passed=sum(compared.values()) + 2, warned=0,
        unknown=0,
    )  # fmt: skip


def _published(work: Build, name: str) -> dict[str, DiskFile]:
    """The files in the folder of disks, each whole or not there, and a manifest beside them, which is written last."""
    recipe = work.recipe
    settings = recipe.target(name).disk
    assert settings is not None
    target, files = private_dir(folder_of(recipe, name)), dict[str, DiskFile]()
    for kind in settings.formats:
        source, file = _workplace(work, name) / f"disk.{kind}", target / f"{_stem(work, name)}.{kind}"
        with directories.replacing(file, mode=0o644) as stream:
            copy = f"/proc/{os.getpid()}/fd/{stream.fileno()}"  # whatever happens to the folder meanwhile
            tools.run(["cp", "--sparse=always", "--reflink=auto", source, copy], layout.CONVERT_S)
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        files[kind] = DiskFile(file=file.name, sha256=content, bytes=file.stat().st_size)
    document: dict[str, Any] = {
        "image": recipe.name, "build": work.id, "target": name, "simulated": work.lock.simulated,
        "machine": recipe.cluster.spec.groups[name].machine_type(), "os": work.lock.groups[name].os,
        **work.journal.of(name, "disk"), "files": {kind: file_row.model_dump() for kind, file_row in files.items()},
    }  # fmt: skip
    write_whole(target / f"{_stem(work, name)}.json", json.dumps(document, indent=1) + "\n", mode=0o644)
    work.report_event(f"{name}: the disk is in {target}: {', '.join(file_row.file for file_row in files.values())}")
    return files


def _stem(work: Build, name: str) -> str:
    return stem(work.recipe.name, name, work.id)


def stem(recipe: str, name: str, build: str) -> str:
    """What the files of a disk are called, without their format."""
    return f"{recipe}-{name}-{build}"


def delete(recipe: Recipe, name: str, build: str) -> None:
    """Remove what was published of a build's target; what is gone is fine."""
    if recipe.target(name).disk is None:
        return
    folder = folder_of(recipe, name)
    for kind in ("json", "raw", "qcow2"):  # the manifest first: files without one are none
        plain = f"{stem(recipe.name, name, build)}.{kind}"
        copies = folder.glob(f".{glob.escape(plain)}.*")  # of a run that was killed (directories.replacing)
        for file in (below(folder, plain), *copies):
            file.unlink(missing_ok=True)


def removed(work: Build, name: str) -> None:
    """Remove the disk of a build that will not be; the console's log stays."""
    for folder in (work.folder / "disks" / name, virtual.folder_of(work, name)):
        virtual.but_consoles(folder)
    delete(work.recipe, name, work.id)
    _forget_cluster(work, name)


def remove_unfinished(work: Build, name: str) -> None:
    """Remove the parts of a disk that was not finished; `steps` makes it again."""
    folder = work.folder / "disks" / name
    if work.journal.of(name, "disk") is None and folder.exists():
        virtual.but_consoles(folder)


def _forget(work: Build, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove_tree(work.folder / "disks" / name)
    _forget_cluster(work, name)


def _forget_cluster(work: Build, name: str) -> None:
    """The virtual machine's cluster: no machine of it is left, only its keys."""
    file = workplace(work.recipe, work.id, name, DISK)
    if file.exists():
        remove_tree(file.parent)


def _workplace(work: Build, name: str) -> Path:
    return private_dir(work.folder / "disks" / name)


def _clear(work: Build, name: str) -> Path:
    folder = work.folder / "disks" / name
    if folder.exists():
        remove_tree(folder)
    return private_dir(folder)
