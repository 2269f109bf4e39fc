"""The driver itself: which modules are loaded, of which flavour, with which parameters and device nodes."""

from __future__ import annotations

import re

from provisioner.common.gpu_drivers import OTHER_DRIVERS
from provisioner.verify.check import check, compare, fail, saw, skip, unknown
from provisioner.verify.checks.gpu import answering
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

PARTS = re.compile(
    r"nvidia-open|nvidia-driver(?:-cuda|-libs|-\d+)?(?:-server)?(?:-open)?|libnvidia-(?:compute|cfg1|ml1|gl)(?:-\d+)?"
    r"(?:-server)?"
    r"|libcuda1|nvidia-(?:kernel|dkms|utils|compute-utils|kernel-common|kernel-source|kernel-open-dkms|kernel-dkms"
    r"|kernel-support)(?:-\d+)?(?:-server)?(?:-open)?|nvidia-fabricmanager(?:-\d+)?|nvidia-imex"
)
"""Packages that carry the driver's own version (Ubuntu's and NVIDIA's names). nvidia-modprobe, nvidia-settings and the
container toolkit go their own ways."""
GLOBAL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
MAJOR = 195
"""Of nvidia<n> and nvidiactl (admin-guide/devices.rst of the kernel)."""


@check(
    "driver.module_flavour",
    severity="warn",
    action="reconfigure",
    needs=("nvidia-version.txt",),
    vendor="nvidia",
    applies=lambda e: e.kernel_modules,
    otherwise="no lock names the flavour of the driver's modules, and these GPUs take both",
    lock="most GPUs take both flavours",
    without_lock="the flavour of GPUs that take one alone",
    says="The other flavour of kernel modules is loaded (open, proprietary) than locked, or than these GPUs need. Run "
    "`gpuprov up` and reboot.",
)
def test_flavour(node: Facts, expected: Expected) -> None:
    compare(expected.kernel_modules, node.module.flavour if node.module else None)


@check(
    "driver.loaded_is_installed",
    severity="fatal",
    documented="NVIDIA driver README: kernel module and libraries must be of one version (API mismatch)",
    action="reboot",
    needs=("packages.txt",),
    vendor="nvidia",
    follows=("driver.responds", "driver.version", "packages.locked"),
    says="Packages of the driver are of another version than the module that runs: half an upgrade. Reboot.",
)
def test_installed(node: Facts) -> None:
    assert node.packages is not None
    loaded = node.module.version if node.module else (node.smi.driver_version if node.smi else None)
    installed = {name: _upstream(version) for name, version in node.packages.items() if PARTS.fullmatch(name)}
    saw(expected=loaded, actual=installed)
    if node.smi and node.smi.driver_version and node.module and node.smi.driver_version != node.module.version:
        fail(f"module {node.module.version} is loaded, the library is {node.smi.driver_version}")
    if loaded is None:
        for file in ("nvidia-smi.xml", "nvidia-version.txt"):
            if reason := node.source(file).reason:
                unknown(reason, file, action="none" if node.source(file).state == "absent" else None)
        unknown("no tool reports the driver's version")
    disk = node.host.driver_on_disk if node.host else None
    if disk is not None and disk.version not in (None, loaded):
        fail(f"{loaded} is loaded, the module on disk is {disk.version}: the next boot runs that one")
    if not installed:
        skip("the driver was not installed from packages")
    other = [f"{name} {version}" for name, version in installed.items() if version != loaded]
    if other:
        fail(f"{loaded} is loaded, installed: {', '.join(other[:4])}")


def _upstream(version: str) -> str:
    """2:580.105.08-0ubuntu1 → 580.105.08."""
    return re.split(r"[-+~]", version.rpartition(":")[2], maxsplit=1)[0]


# A warning: nvidia_uvm loads by itself where nvidia-modprobe is installed; without its device node CUDA finds nothing,
# and driver.dev_nodes condemns. nvidia_modeset is for screens. Without gdrdrv (GDRCopy) programs copy another way.
@check(
    "driver.modules",
    severity="warn",
    action="reconfigure",
    needs=("modules.txt",),
    vendor="nvidia",
    follows=("driver.responds", "driver.nouveau_absent"),
    says="A module of the driver is not loaded: CUDA finds no GPU before nvidia_uvm is there. `modprobe` it.",
)
def test_modules(node: Facts, expected: Expected) -> None:
    required = ("nvidia", "nvidia_uvm", *(("gdrdrv",) if "gdrdrv-dkms" in (expected.packages or {}) else ()))
    missing = [name for name in required if name not in (node.modules or ())]
    saw(expected=list(required), actual=[name for name in required if name not in missing])
    if missing:
        fail(f"not loaded: {', '.join(missing)}")


@check(
    "driver.nouveau_absent",
    severity="warn",
    action="reboot",
    needs=("modules.txt",),
    vendor="nvidia",
    says="nouveau (or nova) is loaded, or may be at the next boot, and holds GPUs that NVIDIA's driver needs. Run "
    "`gpuprov up` and reboot.",
)
def test_nouveau(node: Facts) -> None:
    loaded = [name for name in OTHER_DRIVERS if name in (node.modules or ())]
    saw(expected="not loaded", actual=loaded or "not loaded")
    if loaded:
        fail(f"{', '.join(loaded)} is loaded")
    host = node.host
    if host is None or host.denied is None or "nouveau" not in (host.kernel_modules or {}).get(node.kernel or "", ()):
        return
    if "nouveau" not in host.denied and not any(
        "blacklist=" in argument and "nouveau" in argument for argument in host.cmdline or ()
    ):
        fail("nouveau is on disk and on no deny list of modprobe's: the next boot may load it")


@check(
    "driver.params",
    severity="warn",
    action="reconfigure",
    needs=("nvidia-params.txt",),
    vendor="nvidia",
    applies=lambda e: e.module_params,
    otherwise="gpuprov sets no parameter of the driver on this machine",
    lock="the parameters are those that role nvidia_driver sets",
    says="The driver runs without a parameter that was set for it: it was loaded before. Reboot, or load it again.",
)
def test_params(node: Facts, expected: Expected) -> None:
    current = {name: (node.module_params or {}).get(name) for name in expected.module_params or {}}
    saw(expected=dict(expected.module_params or {}), actual=current)
    other = [f"{name} is {current[name]}, not {value}" for name, value in (expected.module_params or {}).items()
             if current[name] is not None and current[name] != value]  # fmt: skip
    if other:
        fail("; ".join(other))
    if None in current.values():
        unknown("this driver does not show that parameter")


@check(
    "driver.dev_nodes",
    severity="fatal",
    documented="NVIDIA driver README, Device nodes: a program opens /dev/nvidiactl, /dev/nvidia<n> and /dev/nvidia-uvm",
    action="reboot",
    reads=("nvidia-dev.txt",),
    vendor="nvidia",
    follows=("gpu.count", "driver.responds", "driver.modules"),
    says="A device node of the driver is missing, or is not a device: programs and containers do not see that GPU.",
)
def test_nodes(node: Facts, expected: Expected) -> None:
    source = node.source("nvidia-dev.txt")
    if source.state == "absent":
        skip("older bundles do not have nvidia-dev.txt")
    if node.device_nodes is None:
        unknown(source.reason, "nvidia-dev.txt")
    entries = {entry.name: entry for entry in node.device_nodes}
    numbers = [g.minor_number for g in node.gpus or () if g.minor_number is not None] or list(range(expected.gpu_count))
    required = [*(f"nvidia{number}" for number in numbers), *GLOBAL_NODES]
    missing = [name for name in required if name not in entries]
    wrong = [name for name in required if name in entries and entries[name].kind != "c"]
    other = {name: entries[name].major for name in required if name in entries and not name.startswith("nvidia-")}
    strange = [f"/dev/{name} has major {major}" for name, major in other.items() if major not in (None, MAJOR)]
    saw(expected=required, actual=sorted(entries))
    if missing:
        fail(f"/dev/{', /dev/'.join(missing)} is missing")
    if wrong:
        fail(f"/dev/{', /dev/'.join(wrong)} is not a character device")
    if strange:
        fail(f"{'; '.join(strange[:3])}, not the driver's {MAJOR}")


@check(
    "gpu.gsp_firmware",
    severity="warn",
    action="reboot",
    needs=("gpus",),
    vendor="nvidia",
    follows=("driver.version", "driver.module_flavour"),
    says="A GPU runs other system processor firmware than the driver's own, or none. Reboot the node.",
)
def test_gsp(node: Facts, expected: Expected) -> None:
    gpus, flavour = answering(node), expected.kernel_modules or (node.module.flavour if node.module else None)
    if flavour != "open":
        skip("only the open modules need the GPU system processor" if flavour else "no tool says which modules run")
    loaded = node.smi.driver_version if node.smi else None
    versions = sorted({str(gpu.gsp_firmware) for gpu in gpus})
    saw(expected=loaded, actual=versions)
    if loaded is None:
        unknown("nvidia-smi reports no driver version")
    other = [f"GPU {gpu.index}: {gpu.gsp_firmware or 'none'}" for gpu in gpus if gpu.gsp_firmware != loaded]
    if other:
        fail("; ".join(other))
