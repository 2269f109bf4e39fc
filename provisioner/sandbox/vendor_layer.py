"""The nodes' image with simulated packages of what a cloud's own GPU image brings (`base: vendor-hpc`): one layer upon
the node image, named after a hash of what goes in."""

from __future__ import annotations

import hashlib
import os

from provisioner.common.paths import data
from provisioner.sandbox import image, packages
from provisioner.sandbox.deb import File, tar
from provisioner.sandbox.package_files import program
from provisioner.sandbox.runtime import Podman, ulimit_options
from provisioner.sandbox.sources import unit_file
from provisioner.stack.models import Stack, VendorImage

NAME = "localhost/gpuprov-sandbox-vendor"
AZURE = "microsoft-dsvm:ubuntu-hpc:"
"""How the names of Azure's GPU images begin."""
EFA_RECORD = "opt/amazon/efa_installed_packages"
"""What AWS's installer leaves behind; its first line has the installer's version."""
INSTALL = """\
set -e
tar -C / -xf -
dpkg --force-depends --install /var/tmp/gpuprov-vendor/*.deb >/dev/null
rm -r /var/tmp/gpuprov-vendor
"""
DEADLINE_S = 300.0


def contents(vendor: VendorImage, architecture: str) -> dict[str, File]:
    """What the layer is made of: each package of the image as a .deb, and the record of EFA's installer."""
    files = {}
    for package in vendor.packages:
        deb = packages.build(package, vendor.packages, architecture)
        files[f"var/tmp/gpuprov-vendor/{deb.filename}"] = File(deb.build())
    if vendor.name.startswith(AZURE):
        files |= _azure()
    if "efa" in vendor.parts:
        files[EFA_RECORD] = File(f"# EFA installer version: {vendor.parts['efa']}\n".encode())
    return files


def _azure() -> dict[str, File]:
    """The service that writes /etc/nccl.conf at every boot, with the topology files that it names."""
    unit = "etc/systemd/system/sku-customizations.service"
    files = {
        unit: File(unit_file("sku-customizations.service").encode()),
        "etc/systemd/system/multi-user.target.wants/sku-customizations.service": File(link=f"/{unit}"),
        "usr/sbin/gpuprov-sku-customizations": program("sku-customizations", "1"),
    }
    for family, name in (("ndv4", "azure-nd-v4"), ("ndv5", "azure-nd-v5")):
        topology = data("ansible") / "roles" / "nccl" / "files" / f"{name}.xml"
        files[f"opt/microsoft/{family}-topo.xml"] = File(topology.read_bytes())
    return files


def prepare(podman: Podman, stack: Stack, architecture: str) -> str:
    """The image that a stack's nodes boot: made where it is missing. Raises ProviderError where that fails."""
    if stack.vendor is None:
        return image.node_reference()
    content = tar(contents(stack.vendor, architecture))
    digest = hashlib.sha256(image.node_reference().encode() + INSTALL.encode() + content).hexdigest()[:16]
    reference = f"{NAME}:{digest}"
    if image.exists(podman, reference):
        return reference
    name = f"gpuprov.image.{os.getpid()}.vendor"  # image.sweep removes what a killed build leaves
    try:
        podman.run(
            "run", "--name", name, "--interactive", "--network", "none", *ulimit_options(), "--env", "LC_ALL=C",
            image.node_reference(), "sh", "-c", INSTALL, stdin=content, deadline=DEADLINE_S,
        )  # fmt: skip
        podman.run(
            "commit", "--quiet", "--change", 'CMD ["/sbin/init"]', "--change", "STOPSIGNAL SIGRTMIN+3", "--change",
            "LABEL org.gpuprov.simulated=true", name, reference, deadline=DEADLINE_S,
        )  # fmt: skip
    finally:
        podman.run("rm", "--force", "--ignore", name, check=False)
    return reference
