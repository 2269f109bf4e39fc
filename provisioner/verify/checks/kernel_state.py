"""The kernel that runs and those that are installed, against the lock and the driver's modules."""

from __future__ import annotations

import re

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.kernel import is_kernel

BUILT = re.compile(r"nvidia-(?:kernel-open-dkms|kernel-dkms|dkms-\d+(?:-server)?(?:-open)?|open-dkms)")
"""Packages of the driver that build its module on the node."""


@check(
    "host.kernel",
    severity="fatal",
    documented="github imbue-ai/cluster-health, ROCm/cvs preflight: exactly the kernel that was proven",
    action="reboot",
    needs=("kernel.txt",),
    applies=lambda e: e.kernel,
    otherwise="no lock names a kernel, or it is a sandbox, whose nodes have this computer's",
    lock="the kernel is the one that was locked; whether the module fits the one that runs is `driver.vermagic`",
    says="The running kernel is not the one that the driver's modules are locked for. Reboot into the locked one; "
    "`gpuprov up` installs it if it is missing.",
)
def test_kernel(node: Facts, expected: Expected) -> None:
    running, locked = node.kernel or "", expected.kernel or ""
    saw(expected=locked, actual=running)
    if not is_kernel(running, locked):
        fail(f"kernel {running} is running, locked {locked}")


@check(
    "driver.headers",
    severity="warn",
    action="reconfigure",
    needs=("kernel.txt", "packages.txt"),
    vendor="nvidia",
    says="The headers of the running kernel are not installed. The next driver update cannot build its module.",
)
def test_headers(node: Facts) -> None:
    packages = node.packages or {}
    if not (built := sorted(name for name in packages if BUILT.fullmatch(name))):
        skip("no package of the driver builds its module on the node")
    package = f"linux-headers-{node.kernel}"
    saw(expected=package, actual=packages.get(package))
    if package not in packages:
        fail(f"{package} is not installed, {built[0]} needs it")


# Told, and no more: the boot loader takes the newest (host.kernel_next), older ones are a person's choice.
@check(
    "driver.kernels",
    severity="info",
    action="reconfigure",
    needs=(*NEEDS, "packages.txt"),
    vendor="nvidia",
    follows=("host.kernel_next",),
    says="An installed kernel lacks the driver's module. A boot into that kernel has no GPU.",
)
def test_kernels(node: Facts) -> None:
    packages = node.packages or {}
    told_by = any(name.startswith("linux-image-") for name in packages)
    kernels = reported(host_of(node).kernels, "its kernels") if told_by else {}
    bootable = {name: has_module for name, has_module in kernels.items() if f"linux-image-{name}" in packages}
    if not bootable:
        skip("the kernel is not a package of this system (a container, or a kernel of the provider's)")
    saw(expected="the module for each kernel", actual=bootable)
    if without := sorted(name for name, has_module in bootable.items() if not has_module):
        fail(f"no module nvidia for {', '.join(without[:4])}")
