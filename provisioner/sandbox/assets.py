"""Everything that a sandbox needs on this machine: the nodes' image and a mirror with packages and container images.

Kept in the cache and named after what went in; whole or not there at all. Two that prepare at once take turns.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from provisioner.common.errors import LockedError
from provisioner.common.events import Events
from provisioner.common.paths import cache, private_dir, write_whole
from provisioner.common.text import counted
from provisioner.sandbox import cloud_base, disk_layer, registry, repository, vendor_layer
from provisioner.sandbox import image as node_image
from provisioner.sandbox.keys import MIRROR_HOST, Keys, keys
from provisioner.sandbox.runtime import ARCHITECTURES, Podman, find_podman
from provisioner.stack.models import Archive, Image, Repository, Stack

WAIT = 900
"""Seconds that a second caller waits for the first: a cold build with a slow network."""


@dataclass(frozen=True, slots=True)
class Assets:
    """What `prepare` made. `image` is what the mirror runs, and every machine but those of `image_of`; `mirror` is a
    directory to mount read-only; `registry_ca` is PEM text."""

    image: str
    mirror: Path
    podman: Podman
    fingerprint: str
    registry_ca: str
    architecture: str
    busybox: bytes
    vendor_images: Mapping[str, str] = field(default_factory=dict)
    """Name of a cloud's own GPU image → the nodes' image that stands for it."""
    plain: str = ""
    """What machines of a plain distribution boot, where that is not `image`."""

    def image_of(self, stack: Stack) -> str:
        """What the nodes of a stack boot."""
        return (self.plain or self.image) if stack.vendor is None else self.vendor_images[stack.vendor.name]

    def localise(self, stack: Stack) -> Stack:
        """The same stack, to be had from the mirror: repositories with the sandbox's key, images with their digests."""
        archives = {r.name: repository.archive(r, stack, self.architecture) for r in stack.repositories if r.archives}
        repositories = tuple(
            _archived(r, archives[r.name])
            if r.name in archives
            else r.model_copy(
                update={
                    "uri": f"http://{MIRROR_HOST}/{repository.folder(r.name, stack.os)}",
                    "key_url": f"http://{MIRROR_HOST}/keys/{r.name}.asc",
                    "fingerprint": self.fingerprint,
                }
            )
            for r in stack.repositories
        )
        packages = tuple(
            p.model_copy(
                update={"sha256": archives[p.repository].hashes[p.name, p.version] if p.repository in archives else ""}
            )
            for p in stack.packages
        )
        # Nodes share this computer's kernel; whatever a lock names runs in the sandbox on that one.
        kernel = platform.release() if stack.kernel else None
        images = tuple(map(self._image, stack.images))
        return stack.model_copy(
            update={"repositories": repositories, "packages": packages, "images": images, "kernel": kernel}
        )

    def _image(self, image: Image) -> Image:
        built = registry.build(image, self.busybox, self.architecture)
        return image.model_copy(update={"digest": built.digest, "pull": registry.pull_name(built)})


def _archived(known: Repository, built: repository.Made) -> Repository:
    """A vendor's archives as the mirror's one; how a real one is trusted is nothing that a sandbox can show."""
    url = f"http://{MIRROR_HOST}/{repository.ARCHIVES}/{built.sha256}.tar.gz"
    archive = Archive(
        url=url, folder=repository.FOLDER, sha256=built.sha256, size=len(built.content), basis="simulated"
    )
    return known.model_copy(update={"key_url": "", "fingerprint": "", "archives": (archive,)})


def prepare(stacks: Iterable[Stack], events: Events) -> Assets:
    """Make what is missing and say where it is. `stacks` may be localised already or not.

    Raises `GpuprovError` for a tool that is missing (with the apt command), `ProviderError` when a build fails.
    """
    requested = tuple(stacks)
    podman = find_podman()
    architecture = ARCHITECTURES[platform.machine()]
    home = private_dir(cache() / "sandbox")
    started = time.monotonic()
    try:
        with FileLock(home / "lock", timeout=WAIT):
            _sweep(home)
            _images(podman, events)
            secrets = keys(home / "keys")
            busybox = _busybox(home, podman)
            mirror = _mirror(home, requested, secrets, busybox, architecture, events)
            plain = cloud_base.prepare(podman)
            vendors = {s.vendor.name: vendor_layer.prepare(podman, s, architecture) for s in requested if s.vendor}
    except Timeout as error:
        raise _busy(home) from error
    reference = node_image.node_reference()
    events("sandbox", "done", f"image {reference}", data={"seconds": round(time.monotonic() - started, 2)})
    return Assets(reference, mirror, podman, secrets.fingerprint, secrets.ca, architecture, busybox, vendors, plain)


def disk_image(podman: Podman) -> str:
    """The image of nodes of which a disk is made. Raises ProviderError where it cannot be made."""
    home = private_dir(cache() / "sandbox")
    try:
        with FileLock(home / "lock", timeout=WAIT):
            return disk_layer.prepare(podman)
    except Timeout as error:
        raise _busy(home) from error


def _busy(home: Path) -> LockedError:
    return LockedError("another gpuprov has been preparing the sandbox for 15 minutes", where=str(home / "lock"))


def _sweep(home: Path) -> None:
    # The lock is held: whatever is half made was left by somebody who was killed.
    for leftover in home.glob(".making-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _images(podman: Podman, events: Events) -> None:
    if node_image.exists(podman, node_image.node_reference()):
        return
    node_image.sweep(podman)
    if not node_image.exists(podman, node_image.base_reference()):
        events("sandbox", "started", "making the nodes' Debian image, half a minute, once")
        node_image.build_base(podman)
    events("sandbox", "progress", "adding the simulated hardware to the image")
    node_image.build_node(podman)


def _busybox(home: Path, podman: Podman) -> bytes:
    cached = home / f"busybox-{node_image.base_reference().rpartition(':')[2]}"
    if not cached.exists():
        write_whole(cached, node_image.busybox(podman))
    return cached.read_bytes()


def _mirror(
    home: Path, stacks: tuple[Stack, ...], secrets: Keys, busybox: bytes, architecture: str, events: Events
) -> Path:
    """The directory that the mirror container serves, for exactly these stacks; one for each set, none is ever
    changed."""
    target = private_dir(home / "mirrors") / _mirror_key(stacks, secrets, busybox, architecture)
    if target.is_dir():
        os.utime(target)
        return target
    making = Path(tempfile.mkdtemp(dir=home, prefix=".making-"))
    (making / "http").mkdir()
    count = repository.write_repositories(making / "http", stacks, secrets, architecture)
    images = {b.digest: b for s in stacks for i in s.images for b in [registry.build(i, busybox, architecture)]}
    registry.write(making / "registry", images.values())
    (making / "registry").mkdir(exist_ok=True)
    (making / "registry.yml").write_text(registry.CONFIG, encoding="utf-8")
    (making / "registry.pem").write_text(secrets.registry_certificate, encoding="utf-8")
    (making / "registry.key").write_text(secrets.registry_key, encoding="utf-8")
    (making / "registry.key").chmod(0o600)
    making.chmod(0o755)
    making.rename(target)
    events("sandbox", "progress", f"made {count} simulated packages and {counted(len(images), 'image')}")
    return target


def _mirror_key(stacks: tuple[Stack, ...], secrets: Keys, busybox: bytes, architecture: str) -> str:
    content = {
        "packages": sorted({(s.os, p.repository or "", p.name, p.version) for s in stacks for p in s.packages}),
        "sets": sorted(json.dumps([s.os, *sorted((p.name, p.version) for p in s.packages)]) for s in stacks),
        "layouts": sorted(
            {(s.os, r.name, r.suite, r.components, bool(r.archives)) for s in stacks for r in s.repositories}
        ),
        "images": sorted(
            {i.model_copy(update={"digest": "", "pull": ""}).model_dump_json() for s in stacks for i in s.images}
        ),
        "keys": [secrets.fingerprint, secrets.registry_certificate],
        "busybox": hashlib.sha256(busybox).hexdigest(),
        "architecture": architecture,
        "code": _code(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _code() -> str:
    """A hash of the modules that decide what is in a package or an image."""
    folder = Path(__file__).parent
    makers = ("deb.py", "package_files.py", "packages.py", "network_packages.py")
    names = (*makers, "multi_node.py", "registry.py", "repository.py", "sources.py", "node/exporter.py")
    data_files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in (*map(folder.joinpath, names), *data_files))
    ).hexdigest()
