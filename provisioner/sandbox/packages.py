"""What the simulated packages hold: NVIDIA's names and versions, programs that call the simulator.

A package that is not known here becomes an installable package without files, so that any lock can run in the sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from provisioner.sandbox import network_packages as network
from provisioner.sandbox.deb import Deb, File
from provisioner.sandbox.package_files import LIBRARIES, Content, fact, placeholder, program, programs, unit, upstream
from provisioner.sandbox.sources import unit_file
from provisioner.stack.models import Package


def _kernel(flavour: str) -> Callable[[str, str], Content]:
    def content(version: str, _architecture: str) -> Content:
        sizes = {
            "nvidia": 14376960,
            "nvidia_uvm": 2076672,
            "nvidia_modeset": 1744896,
            "nvidia_drm": 139264,
            "nvidia_peermem": 16384,
        }
        files: dict[str, File] = {}
        for name, size in sizes.items():
            files |= fact(f"module-{name}", version=version, flavour=flavour, size=size)
        files[f"usr/src/nvidia-{version}/dkms.conf"] = File(
            f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\n'.encode()
        )
        return Content(f"NVIDIA {flavour} kernel modules", files, ("nvidia-kernel-support",))

    return content


def _driver(name: str, *kernels: str) -> Callable[[str, str], Content]:
    def content(version: str, _architecture: str) -> Content:
        branch = version.split(".", maxsplit=1)[0]
        tools = (
            "nvidia-driver-cuda",
            "nvidia-utils",
            "nvidia-utils-{branch}",
            "nvidia-persistenced",
            "nvidia-modprobe",
        )
        depends = tuple(name.format(branch=branch) for name in (*kernels, *tools))
        return Content(f"NVIDIA driver ({name})", {}, depends)

    return content


def _pinning(version: str, _architecture: str) -> Content:
    names = (
        "nvidia-driver-* nvidia-open* nvidia-kernel-* cuda-drivers* libcuda1 "
        "libnvidia-* nvidia-modprobe nvidia-persistenced nvidia-fabricmanager*"
    )
    text = f"Package: {names}\nPin: version {version}-*\nPin-Priority: 1000\n"
    return Content("pins the driver", {"etc/apt/preferences.d/nvidia-driver-pin": File(text.encode())})


def _driver_cuda(version: str, _architecture: str) -> Content:
    return Content(
        "NVIDIA driver's tools for CUDA",
        {"usr/bin/nvidia-smi": program("nvidia-smi", version)},
        ("libcuda1", "libnvidia-ml1", "libnvidia-compute", f"libnvidia-compute-{version.split('.', maxsplit=1)[0]}"),
    )


def _compute(version: str, architecture: str) -> Content:
    """What Ubuntu puts into one package and Debian into two: libcuda and NVML."""
    parts = (_library("cuda", "libcuda.so"), _library("nvml", "libnvidia-ml.so"))
    files = {path: file for part in parts for path, file in part(version, architecture).files.items()}
    return Content("NVIDIA libraries for CUDA", files)


def _library(part: str, file: str) -> Callable[[str, str], Content]:
    def content(version: str, architecture: str) -> Content:
        folder = LIBRARIES[architecture]
        files = placeholder(f"{folder}/{file}.{version}", f"{folder}/{file}.1")
        return Content(f"NVIDIA {file}", files | fact(part, version=version))

    return content


def _imex(version: str, _architecture: str) -> Content:
    files = {f"usr/bin/{tool}": program(tool, version) for tool in ("nvidia-imex", "nvidia-imex-ctl")}
    return Content("nvidia-imex", files | unit("nvidia-imex.service"))


def _persistenced(version: str, _architecture: str) -> Content:
    """As on Ubuntu; Debian's brings NVIDIA's own unit (`OF_DEBIAN`)."""
    return _with_persistence_unit(version, "nvidia-persistenced.ubuntu.service")


def _with_persistence_unit(version: str, text: str) -> Content:
    tool = "nvidia-persistenced"
    return Content(tool, {f"usr/bin/{tool}": program(tool, version)} | unit(f"{tool}.service", text))


def _modprobe(version: str, _architecture: str) -> Content:
    return Content("loads the NVIDIA module", {"usr/bin/nvidia-modprobe": program("nvidia-modprobe", version)})


def _fabric_manager(version: str, _architecture: str) -> Content:
    files = {
        "usr/bin/nv-fabricmanager": program("nv-fabricmanager", version),
        "usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"# simulated by gpuprov\nLOG_LEVEL=4\nDAEMONIZE=1\n"),
    }
    return Content("NVIDIA fabric manager", files | unit("nvidia-fabricmanager.service"))


def _support(_version: str, _architecture: str) -> Content:
    text = b"# simulated by gpuprov\nblacklist nouveau\noptions nouveau modeset=0\n"
    return Content("NVIDIA kernel support files", {"usr/lib/modprobe.d/nvidia.conf": File(text)})


def _toolkit(version: str, _architecture: str) -> Content:
    short = ".".join(version.split(".")[:2])
    number = short.replace(".", "")
    text = json.dumps({"cuda": {"name": "CUDA SDK", "version": version}, "simulated": "gpuprov"}, indent=3)
    link = f"update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{short} {number}\n"
    drop = f'[ "$1" = upgrade ] || update-alternatives --remove cuda /usr/local/cuda-{short}\n'
    return Content(
        f"CUDA toolkit {short}",
        {f"usr/local/cuda-{short}/version.json": File(text.encode())},
        (f"cuda-nvcc-{short.replace('.', '-')}", f"cuda-cudart-{short.replace('.', '-')}"),
        (("postinst", "#!/bin/sh\nset -e\n" + link), ("prerm", "#!/bin/sh\nset -e\n" + drop)),
    )


def _nvcc(version: str, _architecture: str) -> Content:
    short = ".".join(version.split(".")[:2])
    return Content("CUDA compiler", {f"usr/local/cuda-{short}/bin/nvcc": program("nvcc", version)})


def _cudart(version: str, _architecture: str) -> Content:
    short = ".".join(version.split(".")[:2])
    return Content("CUDA runtime", placeholder(f"usr/local/cuda-{short}/lib64/libcudart.so.{version}"))


def _nccl(version: str, architecture: str) -> Content:
    folder = LIBRARIES[architecture]
    return Content("NCCL", placeholder(f"{folder}/libnccl.so.{version}", f"{folder}/libnccl.so.2"))


def _nccl_dev(version: str, _architecture: str) -> Content:
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=False)
    text = "/* simulated by gpuprov */\n" + "".join(f"#define NCCL_{name} {number}\n" for name, number in numbers)
    return Content("NCCL headers", {"usr/include/nccl.h": File(text.encode())}, ("libnccl2",))


def _dcgm(version: str, _architecture: str) -> Content:
    files = {"usr/bin/dcgmi": program("dcgmi", version), "usr/bin/nv-hostengine": program("nv-hostengine", version)}
    return Content("DCGM", files | unit("nvidia-dcgm.service"))


def _profiling(version: str, architecture: str) -> Content:
    folder = LIBRARIES[architecture]
    library = f"{folder}/libdcgmmoduleprofiling.so"
    return Content("DCGM's profiling module", placeholder(f"{library}.{version}", f"{library}.4"))


def _exporter(version: str, _architecture: str) -> Content:
    from provisioner.sandbox.node.exporter import counters_csv

    text = counters_csv().encode()
    files = {
        "usr/bin/dcgm-exporter": program("dcgm-exporter", version),
        "etc/dcgm-exporter/default-counters.csv": File(text),
        "etc/dcgm-exporter/dcp-metrics-included.csv": File(text),
    }
    return Content("DCGM exporter", files | unit("nvidia-dcgm-exporter.service"))


def _grafana(version: str, _architecture: str) -> Content:
    """Its postinst makes the user and starts nothing, as the real one."""
    files = {
        "usr/share/grafana/bin/grafana": program("grafana", version),
        "usr/sbin/grafana-server": File(b'#!/bin/sh\nexec /usr/share/grafana/bin/grafana server "$@"\n', 0o755),
        "etc/default/grafana-server": File(unit_file("grafana-server.default").encode()),
        "etc/grafana/grafana.ini": File(b"# simulated by gpuprov: nothing is set\n"),
    }
    user = (
        "#!/bin/sh\nset -e\n"
        "getent group grafana >/dev/null || groupadd --system grafana\n"
        "id grafana >/dev/null 2>&1 || useradd --system --no-create-home --home-dir /usr/share/grafana --gid grafana "
        "--shell /bin/false grafana\n"
        "install -d -o grafana -g grafana /var/lib/grafana /var/log/grafana\n"
    )
    return Content("Grafana", files | unit("grafana-server.service"), scripts=(("postinst", user),))


def _container_base(version: str, _architecture: str) -> Content:
    files = {f"usr/bin/{tool}": program(tool, version) for tool in ("nvidia-ctk", "nvidia-container-runtime")}
    return Content("NVIDIA container toolkit", files)


KNOWN: tuple[tuple[str, Callable[[str, str], Content]], ...] = (
    (r"nvidia-driver-pinning-[\d.]+", _pinning),
    (
        r"nvidia-open(-\d+)?",
        _driver("open", "nvidia-kernel-open-dkms", "nvidia-dkms-open", "nvidia-dkms-{branch}-open"),
    ),
    (r"cuda-drivers(-\d+)?", _driver("proprietary", "nvidia-kernel-dkms", "nvidia-dkms", "nvidia-dkms-{branch}")),
    (r"nvidia-kernel-open-dkms", _kernel("open")),
    (r"nvidia-kernel-dkms", _kernel("proprietary")),
    (r"nvidia-dkms-(\d+-)?open", _kernel("open")),
    (r"nvidia-dkms(-\d+)?", _kernel("proprietary")),
    (r"nvidia-utils(-\d+)?", _driver_cuda),
    (r"libnvidia-compute(-\d+)?", _compute),
    (r"nvidia-kernel-(support|common(-\d+)?)", _support),
    (r"nvidia-driver-cuda", _driver_cuda),
    (r"libcuda1", _library("cuda", "libcuda.so")),
    (r"libnvidia-ml1", _library("nvml", "libnvidia-ml.so")),
    (r"libnvidia-nscq(-\d+)?", _library("nscq", "libnvidia-nscq.so")),
    (r"nvidia-modprobe", _modprobe),
    (r"nvidia-persistenced", _persistenced),
    (r"nvidia-fabricmanager(-\d+)?", _fabric_manager),
    (r"nvidia-imex(-\d+)?", _imex),
    (r"nvlsm", lambda *_: Content("NVLink subnet manager", placeholder("opt/nvidia/nvlsm/sbin/nvlsm"))),
    (r"cuda-toolkit-\d+-\d+", _toolkit),
    (r"cuda-nvcc-\d+-\d+", _nvcc),
    (r"cuda-cudart-\d+-\d+", _cudart),
    (r"libnccl2", _nccl),
    (r"libnccl-dev", _nccl_dev),
    (r"datacenter-gpu-manager-4-core", _dcgm),
    (r"datacenter-gpu-manager-4-proprietary", _profiling),
    (r"datacenter-gpu-manager-exporter", _exporter),
    (r"grafana", _grafana),
    (r"nvidia-container-toolkit-base", _container_base),
    (r"nvidia-container-toolkit", programs("NVIDIA container runtime hook", "usr/bin/nvidia-container-runtime-hook")),
    (r"libnvidia-container-tools", programs("NVIDIA container tools", "usr/bin/nvidia-container-cli")),
    (r"doca-ofed", network.ofed),
    (r"infiniband-diags", network.diagnostics),
    (r"libfabric-aws-bin", network.libfabric),
    (r"efa", network.dkms("efa", "efa")),
    (r"efa-config", network.efa_config),
    (r"efa-profile", network.efa_profile),
    (r"libnccl-ofi", network.ofi_nccl),
    (r"gdrdrv-dkms", network.dkms("gdrdrv", "gdrdrv")),
    (r"mlnx-ofed-kernel-dkms", network.dkms("mlx5_core", "mlnx-ofed-kernel")),
    (r"amdgpu-dkms", network.dkms("amdgpu", "amdgpu")),
    (r"rocm-smi(-lib)?|rocm-smi-lib\d*", programs("ROCm SMI", "usr/bin/rocm-smi")),
)

DEPENDS = {
    "nvidia-container-toolkit": ("nvidia-container-toolkit-base", "libnvidia-container-tools"),
    "libnvidia-container-tools": ("libnvidia-container1",),
    "nvidia-persistenced": ("nvidia-kernel-support",),
    "datacenter-gpu-manager-exporter": ("datacenter-gpu-manager-4-core",),
    "libfabric-aws-bin": ("efa-config",),
    "efa": ("efa-config", "efa-profile", "libfabric-aws-bin"),
    "doca-ofed": ("mlnx-ofed-kernel-dkms", "ofed-scripts"),
}

OF_DEBIAN: dict[str, Callable[[str, str], Content]] = {
    "nvidia-persistenced": lambda version, _: _with_persistence_unit(version, "nvidia-persistenced.nvidia.service"),
}
"""Packages that hold something else where the driver is packaged Debian's way."""

ALONE = (
    (r"nvidia-driver-pinning-.*", "nvidia-driver-pinning"),
    (r"nvidia-kernel(-open)?-dkms|nvidia-dkms(-\d+)?(-open)?", "nvidia-kernel-modules"),
)
"""Packages of which a node has one: another version or flavour takes its place, and its files."""

REPLACES = {"doca-ofed": "infiniband-diags, ibverbs-utils, perftest"}
"""Packages of the distribution whose files one takes over; DOCA brings newer ones of the same names."""


def build(package: Package, siblings: Iterable[Package], architecture: str) -> Deb:
    """The simulated package; of its dependencies those that are in the lock too, at the lock's versions."""
    version = upstream(package.version)
    siblings = tuple(siblings)
    debian = OF_DEBIAN.get(package.name) if any(other.name == "nvidia-kernel-support" for other in siblings) else None
    known = debian or next((make for pattern, make in KNOWN if re.fullmatch(pattern, package.name)), None)
    content = known(version, architecture) if known else Content(f"{package.name}, without content", {})
    versions = {other.name: other.version for other in siblings}
    depends = [f"{n} (= {versions[n]})" for n in (*content.depends, *DEPENDS.get(package.name, ())) if n in versions]
    fields = {"Depends": ", ".join(depends)} if depends else {}
    alone = next((name for pattern, name in ALONE if re.fullmatch(pattern, package.name)), None)
    if alone:
        fields |= dict.fromkeys(("Provides", "Conflicts", "Replaces"), alone)
    if package.name in REPLACES:
        fields["Replaces"] = REPLACES[package.name]
    files = {
        **content.files,
        f"usr/share/doc/{package.name}/simulated": File(b"This package is simulated by gpuprov.\n"),
    }
    return Deb(package.name, package.version, architecture, content.description, files, fields, dict(content.scripts))
