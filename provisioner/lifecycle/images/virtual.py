"""A builder for machines of one's own: a virtual machine on this computer, from a distribution's own packages.

Its disk has the layout of the disk that comes out of it. QEMU ends with the command that started it; the disk
stays, and the next run boots it again. A disk that is not made whole has another name.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir, remove_tree, write_whole
from provisioner.common.text import counted
from provisioner.lifecycle import second_boot
from provisioner.lifecycle.images.builder import Builder, disks_of
from provisioner.lifecycle.images.disk import base_system, first_boot, layout, newest, tools, virtual_machine
from provisioner.lifecycle.images.disk.identity import Identity
from provisioner.lifecycle.images.prepare import prepare
from provisioner.lifecycle.images.recipe import Recipe, digest, opened, workplace, written
from provisioner.lifecycle.images.work import BUILD, Build, of_group, teller
from provisioner.lifecycle.session import Cluster
from provisioner.rundir.fleet import Node
from provisioner.stack.models import BaseImage, Lock
from provisioner.transport import ssh, ssh_keys, ssh_sockets

BOOT_S = {"kvm": 300.0, "tcg": 1500.0}
"""Seconds until a virtual machine's sshd answers, and again until its services are up. By software emulation a boot
took 240 s on two busy cores."""
OFF_S = 600.0
SIZE = 128 << 30
"""Bytes of the builder's disk, sparse: a driver, CUDA and container images."""
RAW, PUBLIC, CAPTURED = "disk.raw", "host-key.pub", "virtual machine"
HOST = "builder"


def is_virtual(recipe: Recipe, name: str) -> bool:
    """Whether a target is built on a virtual machine."""
    return recipe.target(name).disk is not None and disks_of(recipe.cluster, name) is None


def refuse_unmakeable(system: str | None) -> None:
    """Raise GpuprovError for what keeps this computer from it."""
    tools.require(builder=True)
    if os.geteuid():
        hint = "run the same command with sudo"
        raise GpuprovError("mmdebstrap and genimage make files of root's and of others: not without root", hint=hint)
    if system is not None:
        base_system.archive_of(system)


def with_bases(recipe: Recipe, lock: Lock) -> Lock:
    """The lock, with what builders that are virtual machines would start from today: a new kernel of the distribution
    is another base. Raises GpuprovError where its archive cannot be asked."""
    bases = {site: dict(site_bases) for site, site_bases in lock.bases.items()}
    for name in recipe.targets:
        settings, system = recipe.target(name).disk, lock.groups[name].os
        if settings is None or not is_virtual(recipe, name):
            continue
        newest_packages = newest.packages(system, settings.mirror)
        reason = f"kernel of {system}, and a digest of {counted(len(newest_packages.versions), 'package')}"
        bases.setdefault(recipe.cluster.spec.site_of(name), {})[system] = BaseImage(
            id=newest_packages.identity, why=reason
        )
    return lock.model_copy(update={"bases": bases})


def identity_of(work: Build, name: str) -> Identity:
    """The same for two builds of the same inputs."""
    return Identity.of(digest({"inputs": work.journal.of("", "inputs"), "target": name, "image": work.recipe.name}))


def made_at(work: Build) -> datetime:
    """What a build's file systems say that they were made at."""
    return datetime.strptime(work.id, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)


def captured(work: Build, name: str) -> None:
    """Build on the machine until it is off and of its own disk an image can be made. Raises GpuprovError."""
    journal, report, folder = work.journal, teller(work, name), folder_of(work, name)
    if journal.of(name, "generalised") is None and journal.of(name, "generalising") is not None:
        report("the builder was taken apart already: it is made anew")
        forget(work, name)
        journal.undo(name)
    if journal.of(name, "off") is None:
        _built(work, name, private_dir(folder))
    journal.done(name, "captured", CAPTURED)


def _built(work: Build, name: str, folder: Path) -> None:
    journal, report, disk = work.journal, teller(work, name), folder / RAW
    if journal.of(name, "generalised") is not None:
        report("the builder was switched off before it was written down: it is made anew")
        forget(work, name)
        journal.undo(name)
    journal.done(name, "builder", CAPTURED)
    if not disk.exists():
        report(f"making {work.lock.groups[name].os} to build on")
        _base(work, name, private_dir(folder))
    how = virtual_machine.accelerator(folder)
    slow = ", which is slow: no guest runs with /dev/kvm here" if how == "tcg" else ""
    report(f"building on a virtual machine in QEMU ({how}{slow})")
    user = work.recipe.cluster.spec.user(work.recipe.cluster.spec.site_of(name))
    if not (folder / PUBLIC).exists():
        _write_first_boot(folder, user, _cluster(work, name, 22))
    with virtual_machine.builder(disk, folder / "seed.img", folder / "console.log", how) as guest:
        cluster = _cluster(work, name, guest.port)
        builder = Builder(cluster, name, of_group(work.lock, cluster, name), None)
        guest.wait_for_ssh(BOOT_S[how])
        node = builder.make(work.binary)
        try:
            second_boot.settle(cluster, node, BOOT_S[how], guest.running)
            prepare(work, name, builder, node, lambda: _bootable(work, name, builder, node))
        finally:
            ssh_sockets.disconnect(cluster.paths, [node.name])
        report("switching it off")
        guest.power_off(OFF_S)
    journal.done(name, "off")


def _base(work: Build, name: str, folder: Path) -> None:
    """The disk that it starts from."""
    root, esp, making = folder / "root", folder / "esp", folder / "making"
    for folder_of_disk in (root, esp, making):
        if folder_of_disk.exists():
            remove_tree(folder_of_disk)
    settings = work.recipe.target(name).disk
    assert settings is not None
    base_system.make(work.lock.groups[name].os, settings.mirror, root)
    identity = identity_of(work, name)
    base_system.bootable(root, private_dir(esp), script(), boot_environment(identity))
    disk = layout.make(root, esp, private_dir(making), identity, made_at(work))
    os.truncate(disk, SIZE)
    disk.replace(folder / RAW)
    for folder_of_disk in (root, esp, making):
        remove_tree(folder_of_disk)


def but_consoles(folder: Path) -> None:
    """Remove everything of a folder but what consoles have shown."""
    for file in folder.glob("*"):
        if file.suffix not in (".log", ".qemu"):
            remove_tree(file) if file.is_dir() else file.unlink()


def script() -> str:
    """What makes a root file system bootable."""
    return files("provisioner.lifecycle.images.disk").joinpath("bootable.sh").read_text(encoding="utf-8")


def boot_environment(identity: Identity) -> dict[str, str]:
    """What that is told."""
    return {"GPUPROV_ROOT": identity.root, "GPUPROV_ESP": identity.volume_id}


def _write_first_boot(folder: Path, user: str, cluster: Cluster) -> None:
    """Write what it is told at its first boot, which stays: with another one cloud-init would take it for another
    machine."""
    key = first_boot.host_key(folder)
    login = ssh_keys.ensure_key(cluster.paths, cluster.spec.access.ssh_key)
    first_boot.seed(folder, HOST, first_boot.user_data(user, login, key))
    write_whole(folder / PUBLIC, key.public)


def _cluster(work: Build, name: str, port: int) -> Cluster:
    """The cluster of one machine that exists: the virtual one, at that port of this computer, its host key pinned."""
    folder = folder_of(work, name)
    site: dict[str, Any] = {"hosts": {HOST: {"address": "127.0.0.1", "port": port}}}
    if (folder / PUBLIC).exists():
        key = (folder / PUBLIC).read_text(encoding="utf-8")
        write_whole(folder / "known_hosts", f"[127.0.0.1]:{port} {key}\n")
        site["host_keys"] = str((folder / "known_hosts").absolute())
    return opened(work.recipe, written(work.recipe, work.id, name, BUILD, site))


def _bootable(work: Build, name: str, builder: Builder, node: Node) -> None:
    """Have the initramfs and the boot entries made again: what the roles have written belongs into them."""
    teller(work, name)("making its initramfs again")
    assignments = " ".join(f"{key}={value}" for key, value in boot_environment(identity_of(work, name)).items())
    shell = [*ssh.argv(builder.cluster.paths, node.name), f"sudo -n env {assignments} sh -s"]
    base_system.told_to_be_bootable(shell, script(), node.name)


def sealed(work: Build, name: str, folder: Path) -> Path:
    """The disk of the machine that is off, as small as it goes, in a folder. Raises ProviderError."""
    return layout.sealed(folder_of(work, name) / RAW, folder, identity_of(work, name), made_at(work))


def folder_of(work: Build, name: str) -> Path:
    return work.folder / "machines" / name


def forget(work: Build, name: str) -> None:
    """Remove the machine, which is off: its disk, its seed, its cluster. Its console's log stays."""
    but_consoles(folder_of(work, name))
    file = workplace(work.recipe, work.id, name, BUILD)
    if file.exists():
        remove_tree(file.parent)
