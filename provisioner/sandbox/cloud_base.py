"""Nodes as bare as a cloud's own image is: what the roles take from the distribution is not there.

Everyday sandboxes start from nodes that have it (image.py), because fetching it for each node is minutes. With
GPUPROV_SANDBOX_BASE=cloud the roles fetch it from Debian's mirror and install it, on every node, as on a new machine.
"""

from __future__ import annotations

import hashlib
import json
import os

from provisioner.common.errors import GpuprovError
from provisioner.sandbox import image
from provisioner.sandbox.deb import tar
from provisioner.sandbox.node_layer import node_files
from provisioner.sandbox.runtime import Podman

VARIABLE = "GPUPROV_SANDBOX_BASE"
KINDS = ("prepared", "cloud")
NAME = "localhost/gpuprov-sandbox-cloud"
LACKS = (
    "docker.io", "mdadm", "xfsprogs", "fio", "nvme-cli", "dmidecode", "rdma-core", "infiniband-diags",
    "ibverbs-providers", "ibverbs-utils", "docker-registry", "busybox-static", "python3-debian",
)  # fmt: skip
"""Packages of image.PACKAGES that Debian's cloud images do not have (package_config of its debian-cloud-images,
bookworm: they have unattended-upgrades and python3-apt)."""
PACKAGES = tuple(name for name in image.PACKAGES if name not in LACKS)


def boots_bare_image() -> bool:
    """Whether machines boot the bare image. Raises GpuprovError for a kind that there is none of."""
    kind = os.environ.get(VARIABLE) or KINDS[0]
    if kind not in KINDS:
        raise GpuprovError(f"{kind!r} is not a base for the sandbox", where=VARIABLE, hint=f"one of {', '.join(KINDS)}")
    return kind == "cloud"


def machine_reference() -> str:
    """The image that machines of a plain distribution boot."""
    return reference() if boots_bare_image() else image.node_reference()


def reference() -> str:
    content = _base().encode() + tar(node_files(prepared=False)) + image.setup(prepared=False).encode()
    return f"{NAME}:{hashlib.sha256(content).hexdigest()[:16]}"


def prepare(podman: Podman) -> str:
    """The image that machines of a plain distribution boot: made where it is missing, but for that of everyday. Raises
    ProviderError where that fails; the caller holds the cache's lock."""
    image_name = machine_reference()
    if not boots_bare_image() or image.exists(podman, image_name):
        return image_name
    if not image.exists(podman, _base()):
        image.build_base(podman, PACKAGES, _base())
    image.build_node(podman, _base(), image_name, prepared=False)
    return image_name


def _base() -> str:
    content = json.dumps([image.SUITE, image.mirrors(), PACKAGES, image.LEFT_OUT, 1])
    return f"{NAME}-base:{hashlib.sha256(content.encode()).hexdigest()[:16]}"
