"""What of NVIDIA's driver lies on the disk: its libraries where programs look, its module for the next boot."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host_platform import OnDisk

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What CUDA's runtime and every monitor load by name."""
SIMULATED = "a sandbox node has no libraries of the driver, and this computer's kernel"


@check(
    "driver.libraries",
    severity="fatal",
    documented="ld.so(8); NVIDIA driver README, Installed components; github leptonai/gpud library component",
    action="reconfigure",
    needs=NEEDS,
    vendor="nvidia",
    follows=("driver.responds", "driver.version", "packages.locked"),
    applies=lambda e: not e.simulated,
    otherwise=SIMULATED,
    says="A library of the driver is not where programs look for it: CUDA finds no GPU outside of containers. "
    "`ldconfig` as root, or `gpuprov up`.",
)
def test_libraries(node: Facts) -> None:
    if not host_of(node).libraries_asked:
        skip("an older probe, which did not look for them")
    libraries = reported(host_of(node).libraries, "the libraries that ldconfig knows")
    missing = [name for name in LIBRARIES if name not in libraries]
    saw(expected=list(LIBRARIES), actual=[name for name in LIBRARIES if name in libraries])
    if missing:
        fail(f"ldconfig does not know {', '.join(missing)}")


def _module(node: Facts) -> OnDisk:
    module = host_of(node).driver_on_disk
    return module if module is not None and module.asked else skip("modinfo finds no module of the driver")


# Warnings: the module that runs is another one's to judge (driver.version), these two are about the next boot.
@check(
    "driver.vermagic",
    severity="warn",
    action="reconfigure",
    needs=(*NEEDS, "kernel.txt"),
    vendor="nvidia",
    follows=("host.kernel", "host.kernel_next"),
    applies=lambda e: not e.simulated,
    otherwise=SIMULATED,
    says="The driver's module on disk was built for another kernel than the one that runs: it cannot be loaded again.",
)
def test_vermagic(node: Facts) -> None:
    module = _module(node)
    saw(expected=node.kernel, actual=module.kernel)
    if module.kernel is not None and module.kernel != node.kernel:
        fail(f"the module is built for {module.kernel}, {node.kernel} runs")


@check(
    "driver.signature",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    vendor="nvidia",
    applies=lambda e: not e.simulated,
    otherwise=SIMULATED,
    documented="kernel_lockdown(7); linux kernel/module/signing.c (module with unavailable key); dkms(8)",
    says="The kernel takes signed modules alone (Secure Boot). The driver's module on disk has no signature, or one "
    "by a key unknown to the kernel: it does not load at the next boot. DKMS signs with a key of the "
    "machine's own: enrol it (`gpuprov docs images 'Secure Boot'`), or switch Secure Boot off.",
)
def test_signature(node: Facts) -> None:
    host = host_of(node)
    if not host.signed_only:
        skip("the kernel takes modules without a signature: Secure Boot is off, or its validation")
    module = _module(node)
    known = host.kernel_keys
    saw(expected="a key that the kernel knows", actual=module.signer)
    if module.signer is None:
        fail("the module nvidia has no signer")
    if known is None:
        skip(f"signed by {module.signer}; an older probe, which did not ask for the kernel's keys")
    # a certificate's name, or "organisation: name"
    if not any(name == module.signer or name.endswith(f": {module.signer}") for name in known):
        fail(f"the module nvidia is signed by {module.signer}, a key that the kernel does not know")
