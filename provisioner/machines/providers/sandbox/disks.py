"""Container images of this machine as root file systems of disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from provisioner.sandbox import disk_layer
from provisioner.sandbox.runtime import find_podman, ulimit_options

RUN_S = 1200.0
"""Seconds for an initramfs of every kernel on a slow disk."""


class SandboxDisks:
    """See providers/images.py for the contract."""

    @contextmanager
    def root(self, image: str, esp: Path, environment: Mapping[str, str], script: str) -> Iterator[Path]:
        podman, name = find_podman(), f"gpuprov.image.{os.getpid()}.root"
        environment_arguments = [
            argument for key, value in environment.items() for argument in ("--env", f"{key}={value}")
        ]
        try:
            podman.run(
                "run", "--interactive", "--name", name, "--network", "none", *ulimit_options(), *environment_arguments,
                "--volume", f"{esp.absolute()}:/boot/efi", image, "sh", "-s",
                stdin=disk_layer.AS_A_MACHINE + script, deadline=RUN_S,
            )  # fmt: skip
            tree = Path(podman.run("mount", name).strip())
            try:
                yield tree
            finally:
                podman.run("umount", name, check=False)
        finally:
            podman.run("rm", "--force", "--ignore", name, check=False)
