"""Driver, CUDA, NCCL and packages: what is loaded and installed against what the lock says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provisioner.common.text import few
from provisioner.verify.check import NO_LOCK, check, compare, fail, saw, skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import NVIDIA_SMI, Facts
from provisioner.verify.tool import LOOKS, look_file

LOOKS_OF_SMI = tuple(look_file(name, number) for name in NVIDIA_SMI for number in range(2, LOOKS + 1))
SILENT = (*NVIDIA_SMI, "load.json", "fabric.json", "all_reduce.txt", "dcgmi-diag.json", "dcgmi-health.json",
          "nvidia-smi-load.xml",          "nvidia-smi-after.xml", "nvlink-errors-after.txt")  # fmt: skip
"""What cannot be read without a driver that answers; nothing is loaded then (verify/run.py)."""


@check(
    "driver.responds",
    severity="fatal",
    documented="github leptonai/gpud, Azure/azurehpc-health-checks: nvidia-smi that hangs or fails takes the node out",
    action="reboot",
    vendor="nvidia",
    follows=("driver.nouveau_absent",),
    says="nvidia-smi hangs or finds no driver. A hung driver needs a reboot; a missing one needs `gpuprov up` again.",
    silences=SILENT,
)
def test_responds(node: Facts) -> None:
    sources = {name: node.source(name) for name in (*NVIDIA_SMI, *LOOKS_OF_SMI)}
    hung = [source.reason for source in sources.values() if source.state == "hung"]
    saw(expected="answers within its deadline", actual=sources["nvidia-smi.xml"].reason or "answered")
    if hung:
        fail("; ".join(hung))
    if node.smi_failure == "no-driver":
        fail(sources["nvidia-smi.xml"].reason, action="reconfigure")
    main = sources["nvidia-smi.xml"]
    if main.state == "missing":
        fail("nvidia-smi is not installed", action="reconfigure")
    if main.state != "read" and node.smi_failure != "mismatch":
        unknown(main.reason)


@check(
    "driver.version",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="reboot",
    vendor="nvidia",
    follows=("driver.responds",),
    lock="the version is the lock's",
    without_lock="module and library of different versions",
    says="Another driver is loaded than the lock says, often the old one until the next reboot.",
    silences=SILENT,
)
def test_driver(node: Facts, expected: Expected) -> None:
    saw(expected=expected.driver, actual=node.smi.driver_version if node.smi else None)
    if node.smi_failure == "mismatch":
        fail(f"loaded module and installed library differ: {node.source('nvidia-smi.xml').reason}")
    if expected.driver is None:
        skip("no lock names a driver")
    if node.smi is None:
        unknown(node.source("nvidia-smi.xml").reason, "nvidia-smi.xml")
    loaded = node.smi.driver_version
    compare(expected.driver, loaded, f"driver {loaded} is loaded, the lock says {expected.driver}")


@check(
    "cuda.version",
    severity="fatal",
    measured="nvidia_smi/h100-sxm-8gpu-580",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    follows=("driver.version",),
    applies=lambda e: e.cuda,
    otherwise="no lock names a CUDA version",
    lock="each driver offers the CUDA version that it was built for: another one is wrong only for a lock",
    says="The driver offers another CUDA version than the lock says. Run `gpuprov up` again.",
)
def test_cuda(node: Facts, expected: Expected) -> None:
    compare(expected.cuda, node.smi.cuda_version if node.smi else None)


@check(
    "nccl.version",
    severity="fatal",
    documented="dpkg-query(1); cluster.lock",
    action="reconfigure",
    needs=("packages.txt",),
    vendor="nvidia",
    applies=lambda e: e.nccl or e.packages is None,
    otherwise="the lock names no NCCL version",
    lock="the version is the lock's",
    without_lock="a library for a newer CUDA than the driver offers warns",
    says="Another NCCL is installed than the lock says, or one for a newer CUDA than the driver offers. Run "
    "`gpuprov up` again.",
)
def test_nccl(node: Facts, expected: Expected) -> None:
    assert node.packages is not None
    installed = node.packages.get("libnccl2")
    if expected.nccl is None:
        _fits_the_driver(node, installed)
        return
    saw(expected=expected.nccl, actual=installed)
    if installed is None:
        fail("libnccl2 is not installed")
    if installed.split(":")[-1].split("-")[0] != expected.nccl:
        fail(f"libnccl2 is {installed}, the lock says {expected.nccl}")


def _fits_the_driver(node: Facts, installed: str | None) -> None:
    """A library for a newer major version of CUDA than the driver's needs packages for compatibility, as NVIDIA's CUDA
    Compatibility guide says (minor versions of one major fit)."""
    offered = node.smi.cuda_version if node.smi else None
    built = re.search(r"\+cuda(\d+)", installed or "")
    saw(expected=f"for CUDA {offered} or older", actual=installed)
    if built is None or offered is None:
        skip("no lock names an NCCL version, and no package of it says for which CUDA it is")
    if node.collected is None:
        skip("no lock, and the list of packages may be a part: cuda-compat would make an older driver do")
    bridged = any(name.startswith("cuda-compat-") for name in node.packages or ())
    if int(built[1]) > int(offered.split(".")[0]) and not bridged:
        fail(f"libnccl2 is {installed}, the driver offers CUDA {offered}", unverified=(NO_LOCK,))


@check(
    "packages.locked",
    severity="fatal",
    documented="dpkg-query(1); cluster.lock",
    action="reconfigure",
    needs=("packages.txt",),
    follows=("nccl.version",),
    applies=lambda e: e.packages,
    otherwise="no lock names a package",
    lock="the versions that packages have to have are the lock's",
    says="Packages differ from the lock. Run `gpuprov up` again; if they moved by themselves, see kernel.hold.",
)
def test_packages(node: Facts, expected: Expected) -> None:
    assert node.packages is not None
    locked = expected.packages or {}
    wrong = {name: node.packages.get(name) for name, version in locked.items() if node.packages.get(name) != version}
    saw(expected={name: locked[name] for name in wrong} or f"{len(locked)} packages", actual=wrong or "all")
    if wrong:
        lines = [f"{name} is {have or 'not installed'}, locked {locked[name]}" for name, have in wrong.items()]
        fail(few(lines, 5))


@check(
    "image.parts",
    severity="fatal",
    documented="dpkg-query(1); the versions that the image's makers publish (stack/data/vendor_images.yaml)",
    action="replace",
    needs=("packages.txt", "host.json"),
    follows=("nccl.version",),
    applies=lambda e: e.brought,
    otherwise="the machine boots the distribution's own image",
    lock="what the cloud's GPU image has to hold is what was locked",
    says="The cloud's GPU image holds another version than the lock says, or lacks a part. Lock again with a newer "
    "gpuprov, or leave out `base: vendor-hpc`; a node that was changed by hand is replaced.",
)
def test_image_parts(node: Facts, expected: Expected) -> None:
    rows = {part: row for part, row in (expected.brought or {}).items() if part != "driver"}  # driver.version's
    locked_versions = {part: str(row["version"]) for part, row in rows.items()}
    installed = {part: image_versions(node, part, row["packages"]) for part, row in rows.items()}
    saw(expected=locked_versions, actual={part: list(some) for part, some in installed.items()})
    wrong = [
        part
        for part, some in installed.items()
        if not any(is_version(version, locked_versions[part]) for version in some)
    ]
    if node.host is None or node.host.vendor is None:
        unread = [part for part in wrong if not installed[part]]
        wrong = [part for part in wrong if installed[part]]
    else:
        unread = []
    lines = [f"{part} is {', '.join(installed[part]) or 'not there'}, locked {locked_versions[part]}" for part in wrong]
    if lines:
        fail("; ".join(lines))
    if unread:
        unknown("what the image brings without a package was not looked at", "host.json")


def image_versions(node: Facts, part: str, names: Sequence[str]) -> tuple[str, ...]:
    """The versions of a part that a cloud's GPU image has: of its packages, and of what came without one."""
    packages = {name: (node.packages or {}).get(name) for name in names}
    first = next((_upstream(version) for version in packages.values() if version), None)
    return (*((first,) if first else ()), *((node.host.vendor if node.host else None) or {}).get(part, ()))


def is_version(version: str, locked: str) -> bool:
    """Whether a version is the one that an image's makers tell, who tell some by their series alone (CUDA 13.0)."""
    return version == locked or version.startswith(f"{locked}.")


def _upstream(version: str) -> str:
    """4.6.0 of "1:4.6.0-1", 2.30.4 of "2.30.4-1+cuda13.0"."""
    return version.rpartition(":")[2].partition("-")[0]


@check(
    "packages.held",
    severity="warn",
    action="reconfigure",
    needs=("holds.txt",),
    applies=lambda e: e.held,
    otherwise="no lock names a package to hold",
    lock="which packages have to be held is the lock's to say",
    says="Locked packages are not on hold: an automatic upgrade would tear driver and libraries apart.",
)
def test_held(node: Facts, expected: Expected) -> None:
    expected_holds = expected.held or ()
    free = [name for name in expected_holds if name not in (node.holds or ())]
    saw(expected=f"{len(expected_holds)} packages on hold", actual={"not held": free} if free else "all")
    if free:
        fail(f"not on hold: {', '.join(free[:8])}" + (f" and {len(free) - 8} more" if len(free) > 8 else ""))


@check(
    "os.release",
    severity="fatal",
    measured="os_release/ubuntu-24.04",
    action="replace",
    needs=("os-release.txt",),
    applies=lambda e: e.system,
    otherwise="no lock names a distribution",
    lock="the distribution is the one that was locked for",
    says="The node runs another distribution than its packages are for. Boot the right image, or lock for what runs.",
)
def test_system(node: Facts, expected: Expected) -> None:
    assert node.system is not None
    name = node.system.name
    compare(expected.system, name, f"{node.system.pretty or name} ({name}) runs, the lock is for {expected.system}")


@check(
    "image.build",
    severity="info",
    action="none",
    needs=("image.json",),
    applies=lambda e: e.image,
    otherwise="the lock names no golden image",
    lock="the golden image is the one that it names",
    says="The node was made of another golden image than the lock names; what is on it is judged for itself.",
)
def test_image(node: Facts, expected: Expected) -> None:
    assert node.image is not None
    actual_image = f"{node.image.image} {node.image.build}".strip()
    compare(
        expected.image, actual_image, f"made of {actual_image or 'no golden image'}, the lock names {expected.image}"
    )


@check(
    "kernel.hold",
    severity="warn",
    action="reconfigure",
    needs=("kernel.txt", "packages.txt", "holds.txt"),
    applies=lambda e: e.packages is not None,
    otherwise="without a lock nothing is held",
    lock="kernel and driver are held where it has both; `host.kernel_next` tells of a kernel that the next boot brings",
    says="The running kernel's package is not on hold: an upgrade would boot a kernel without the driver.",
)
def test_kernel_hold(node: Facts) -> None:
    image = f"linux-image-{node.kernel}"
    if image not in (node.packages or {}):
        skip("the kernel is not a package of this system (a container, or a kernel of the provider's)")
    saw(expected=f"{image} on hold", actual="on hold" if image in (node.holds or ()) else "not on hold")
    if image not in (node.holds or ()):
        fail(f"{image} is not on hold")
