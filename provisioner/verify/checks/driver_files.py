"""What of NVIDIA's driver lies on the disk: its libraries where programs look, its module for the next boot."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, told
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host_platform import OnDisk

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What CUDA's runtime and every monitor load by name."""
SIMULATED = "a rehearsed node has no libraries of the driver, and this computer's kernel"


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
    there = told(host_of(node).libraries, "the libraries that ldconfig knows")
    missing = [name for name in LIBRARIES if name not in there]
    saw(expected=list(LIBRARIES), actual=[name for name in LIBRARIES if name in there])
    if missing:
        fail(f"ldconfig does not know {', '.join(missing)}")


def _module(node: Facts) -> OnDisk:
    found = host_of(node).driver_on_disk
    return found if found is not None and found.asked else skip("modinfo finds no module of the driver")


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
    says="Secure Boot is on and the driver's module on disk bears no signature: the kernel refuses it at the next "
    "boot. Take signed modules, or enrol a key and sign it.",
)
def test_signature(node: Facts) -> None:
    if not host_of(node).secure_boot:
        skip("Secure Boot is off")
    module = _module(node)
    saw(expected="a signer", actual=module.signer)
    if module.signer is None:
        fail("the module nvidia has no signer")
