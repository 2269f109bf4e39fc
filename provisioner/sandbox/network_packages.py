"""Contents of packages for networks, and of those that build a kernel module of their own."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.sandbox.deb import File
from provisioner.sandbox.package_files import LIBRARIES, Content, fact, placeholder, program, unit
from provisioner.sandbox.sources import DATA


def ofed(version: str, _architecture: str) -> Content:
    tools = ("ibv_devinfo", "ibdev2netdev", "ofed_info", "ib_write_bw")
    files = diagnostics(version, _architecture).files
    files |= {f"usr/bin/{tool}": program(tool, version) for tool in tools}
    return Content("DOCA OFED", files | unit("openibd.service"))


def diagnostics(version: str, _architecture: str) -> Content:
    files = {f"usr/sbin/{tool}": program(tool, version) for tool in ("ibstat", "ibstatus")}
    return Content("InfiniBand diagnostics", files)


def dkms(module: str, source: str) -> Callable[[str, str], Content]:
    """A package that builds a kernel module: its source for dkms, and the module once it is installed."""

    def content(version: str, _architecture: str) -> Content:
        conf = f'PACKAGE_NAME="{source}"\nPACKAGE_VERSION="{version}"\n'
        files = {f"usr/src/{source}-{version}/dkms.conf": File(conf.encode())}
        files |= fact(f"module-{module}", version=version, flavour="dkms", size=36864)
        return Content(f"{source} kernel module", files)

    return content


def ofi_nccl(_version: str, architecture: str) -> Content:
    folder = f"opt/amazon/ofi-nccl/lib/{LIBRARIES[architecture].rpartition('/')[2]}"
    files = placeholder(f"{folder}/libnccl-net-ofi.so", f"{folder}/libnccl-net.so")
    return Content("NCCL plugin for libfabric", files)


def libfabric(version: str, _architecture: str) -> Content:
    folder = "opt/amazon/efa"
    files = placeholder(f"{folder}/lib/libfabric.so.{version}", f"{folder}/lib/libfabric.so.1")
    return Content("libfabric with EFA", files | {f"{folder}/bin/fi_info": program("fi_info", version)})


def efa_config(_version: str, _architecture: str) -> Content:
    """Huge pages for EFA's endpoints, now and at each boot (data/sources.yaml, efa-config)."""
    script = DATA.joinpath("efa-hugepages-reserve.sh").read_bytes()
    files = {"opt/amazon/bin/efa-hugepages-reserve.sh": File(script, 0o755)}
    reserve = "#!/bin/sh\nset -e\n/opt/amazon/bin/efa-hugepages-reserve.sh\n"
    link_path = "usr/lib/systemd/system/multi-user.target.wants/efa-hugepages.service"
    files[link_path] = File(link="../efa-hugepages.service")
    return Content("EFA's configuration", files | unit("efa-hugepages.service"), scripts=(("postinst", reserve),))


def efa_profile(_version: str, _architecture: str) -> Content:
    text = b"# simulated by gpuprov\nPATH=/opt/amazon/efa/bin:$PATH\n"
    return Content("EFA on everybody's path", {"etc/profile.d/zippy_efa.sh": File(text)})
