"""A bundle's texts, read tool by tool into one typed value: what is known of a node before any judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any, Literal, TypeVar

from provisioner.verify.bundle import FILES, Bundle, Output
from provisioner.verify.document import asdict
from provisioner.verify.parsers import (
    Unreadable,
    apt_config,
    dcgm_exporter,
    dcgmi_diag,
    dmesg,
    fabric,
    fi_info,
    fio,
    first_line,
    framework,
    host,
    ibstat,
    images,
    interruption,
    kernel,
    load,
    lsblk,
    lspci,
    nccl_tests,
    nvidia_driver,
    nvidia_smi,
    nvlink,
    nvlink_errors,
    os_release,
    packages,
    pci,
    rdma_sysfs,
    rocm_smi,
    shared,
    stamp,
    systemd,
    topo,
)
from provisioner.verify.watch import TooLong, limited

State = Literal["read", "absent", "missing", "hung", "unreadable"]
T = TypeVar("T")

ANSWERS_IN_ERRORS = {"fi_info.txt", "fabricmanager.txt", "nvidia-smi.xml", "ibstat.txt"}
"""Tools whose complaint on standard error is their answer."""
EMPTY_IS_AN_ANSWER = {"holds.txt", "services.txt", "stamp.json", "reboot.txt"}
NVIDIA_SMI = ("nvidia-smi.xml", "topo.txt", "nvlink.txt", "nvlink-errors.txt")
FILE_S, NODE_S = 2.0, 4.0
"""Seconds of a processor in which one file is read, and all of a node together. A healthy node's take 0.02."""
REASON = 200
"""Characters that a check says of why a node was not looked at; the node's report has all of it, once."""


@dataclass(frozen=True, slots=True)
class Source:
    """How one file of the bundle came out. `reason` is a sentence for everything but "read"."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class After:
    """What counts errors, asked again when the load had ended; None where it did not answer."""

    smi: nvidia_smi.Smi | None
    nvlink_errors: dict[int, dict[int, nvlink_errors.Counters]] | None
    log: dmesg.KernelLog | None
    rdma: tuple[rdma_sysfs.Device, ...] | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What every tool said; None where it did not, and `sources` says why not. GPUs are those that are listed: a lost
    one that is still listed has `lost` set."""

    sources: dict[str, Source]
    outputs: dict[str, Output] = field(repr=False)
    """How each command ended; its text has been read, and is not kept."""
    error: str = ""
    simulated: bool = False
    """The machine says that gpuprov simulates it."""
    collected: float | None = None
    received: float | None = None
    """The clock of the computer that asked, when the answer came."""
    smi: nvidia_smi.Smi | None = None
    smi_failure: nvidia_smi.Failure | None = None
    rocm: rocm_smi.Rocm | None = None
    topo: topo.Topology | None = None
    nvlinks: dict[int, nvlink.Links] | None = None
    nvlink_errors: dict[int, dict[int, nvlink_errors.Counters]] | None = None
    """GPU → link → error counters."""
    module: nvidia_driver.Module | None = None
    module_params: dict[str, str] | None = None
    device_nodes: tuple[nvidia_driver.Node, ...] | None = None
    log: dmesg.KernelLog | None = None
    before: dmesg.KernelLog | None = None
    """The kernel log of the boot before."""
    ib: ibstat.Ibstat | None = None
    efa: fi_info.Efa | None = None
    rdma: tuple[rdma_sysfs.Device, ...] | None = None
    bus: lspci.Pci | None = None
    disks: tuple[lsblk.Disk, ...] | None = None
    nccl: nccl_tests.Nccl | None = None
    diag: dcgmi_diag.Diag | None = None
    dcgm: dcgm_exporter.Exported | None = None
    fabric_manager: systemd.Service | None = None
    failed_units: tuple[str, ...] | None = None
    packages: dict[str, str] | None = None
    holds: tuple[str, ...] | None = None
    images: tuple[images.LocalImage, ...] | None = None
    frameworks: tuple[framework.Framework, ...] | None = None
    kernel: str | None = None
    system: os_release.System | None = None
    modules: tuple[str, ...] | None = None
    unfinished: dict[str, str] | None = None
    """Packages that dpkg began with and did not end, with what it says of each."""
    stamp: stamp.Stamp | None = None
    units: dict[str, systemd.Unit] | None = None
    reboot: str | None = None
    """Why the system asks for a reboot; empty where it does not."""
    unattended: apt_config.Unattended | None = None
    interruption: interruption.Interruption | None = None
    shared: tuple[shared.Shared, ...] | None = None
    """File systems of the network, where any is expected."""
    host: host.Host | None = None
    load: load.Load | None = None
    under_load: nvidia_smi.Smi | None = None
    """nvidia-smi in the middle of the load program's matrix products."""
    after: After | None = None
    fabric: fabric.Fabric | None = None
    """How it did with other nodes of its group."""
    fio: fio.Fio | None = None
    """What scratch reached under fio."""

    def source(self, name: str) -> Source:
        return self.sources.get(name, Source("absent", f"{name} is not in the bundle"))

    @property
    def gpus(self) -> tuple[nvidia_smi.Gpu, ...] | None:
        """GPUs that answer. None where nothing is known of them."""
        return None if self.smi is None else tuple(gpu for gpu in self.smi.gpus if not gpu.lost)

    @property
    def gpus_present(self) -> int | None:
        """How many GPUs answer, by nvidia-smi or rocm-smi."""
        if self.gpus is not None:
            return len(self.gpus)
        return None if self.rocm is None else len(self.rocm.gpus)

    def gone(self, expected: int) -> set[str]:
        """PCI addresses of GPUs that are not among those that answer, where GPUs are short: what the kernel says of
        them belongs to gpu.count. Empty where all are there or nothing is known."""
        if self.gpus is None or len(self.gpus) >= expected or self.smi is None:
            return set()
        answering = {gpu.pci for gpu in self.gpus}
        lost = {gpu.pci for gpu in self.smi.gpus if gpu.lost} | set(self.smi.unreachable)
        named = {pci(x.pci) for x in self.log.xids} | {pci(a) for a in self.log.fallen_off} if self.log else set()
        absent = {address for address in named | lost if address and address not in answering}
        # More strange addresses than missing GPUs: then the kernel speaks of something else, and that is judged.
        known_lost = {address for address in lost if address}
        return absent if len(absent) <= expected - len(self.gpus) else known_lost

    def to_json(self) -> dict[str, Any]:
        """The `facts` document: stable keys, null where the tool did not say."""
        return _document(self)


def read(bundle: Bundle) -> Facts:
    """Read every file of the bundle. Never raises: a file that cannot be read says so in `sources`."""
    sources: dict[str, Source] = {}
    began = process_time()

    def get(name: str, parse: Callable[[str], T]) -> T | None:
        value, sources[name] = read_file(name, bundle, parse, NODE_S - (process_time() - began))
        return value

    smi_output = bundle.files.get("nvidia-smi.xml")
    return Facts(
        smi=get("nvidia-smi.xml", nvidia_smi.parse),
        smi_failure=nvidia_smi.failure(smi_output.text + smi_output.error) if smi_output else None,
        rocm=get("rocm-smi.json", rocm_smi.parse),
        topo=get("topo.txt", topo.parse),
        nvlinks=get("nvlink.txt", nvlink.parse),
        nvlink_errors=get("nvlink-errors.txt", nvlink_errors.parse),
        module=get("nvidia-version.txt", nvidia_driver.parse),
        module_params=get("nvidia-params.txt", nvidia_driver.parse_params),
        device_nodes=get("nvidia-dev.txt", nvidia_driver.parse_nodes),
        log=get("dmesg.txt", dmesg.parse),
        before=get("dmesg-before.txt", dmesg.parse),
        ib=get("ibstat.txt", ibstat.parse),
        efa=get("fi_info.txt", fi_info.parse),
        rdma=get("rdma.json", rdma_sysfs.parse),
        bus=get("lspci.txt", lspci.parse),
        disks=get("lsblk.json", lsblk.parse),
        nccl=get("all_reduce.txt", nccl_tests.parse),
        diag=get("dcgmi-diag.json", dcgmi_diag.parse),
        dcgm=get("dcgm-exporter.prom", dcgm_exporter.parse),
        fabric_manager=get("fabricmanager.txt", systemd.parse),
        failed_units=get("services.txt", systemd.parse_failed),
        packages=get("packages.txt", packages.parse),
        holds=get("holds.txt", packages.parse_holds),
        images=get("container-images.json", images.parse),
        frameworks=get("framework.json", framework.parse),
        kernel=get("kernel.txt", kernel.parse),
        system=get("os-release.txt", os_release.parse),
        modules=get("modules.txt", kernel.parse_modules),
        unfinished=read_file("packages.txt", bundle, packages.parse_unfinished)[0],
        stamp=get("stamp.json", stamp.parse),
        units=get("units.txt", systemd.parse_units),
        reboot=get("reboot.txt", kernel.parse_reboot),
        unattended=get("unattended.txt", apt_config.parse),
        interruption=get("interruption.json", interruption.parse),
        shared=get("shared.json", shared.parse),
        host=get("host.json", host.parse),
        load=get("load.json", load.parse),
        under_load=get("nvidia-smi-load.xml", nvidia_smi.parse),
        after=After(
            get("nvidia-smi-after.xml", nvidia_smi.parse),
            get("nvlink-errors-after.txt", nvlink_errors.parse),
            get("dmesg-after.txt", dmesg.parse),
            get("rdma-after.json", rdma_sysfs.parse),
        ),
        fabric=get("fabric.json", fabric.parse),
        fio=get("fio.json", fio.parse),
        sources=sources,
        outputs={name: replace(output, text="") for name, output in bundle.files.items()},
        error=bundle.error,
        simulated=bundle.simulated,
        collected=bundle.collected,
        received=bundle.received,
    )


def read_file(name: str, bundle: Bundle, parse: Callable[[str], T], seconds: float = NODE_S) -> tuple[T | None, Source]:
    """One file's value, and how that came out; `seconds` of a processor are left for it. Never raises."""
    output = bundle.files.get(name)
    if output is None:
        return None, Source("absent", bundle.error[:REASON] or f"{name} is not in the bundle")
    command = FILES[name]
    if output.unfit:
        return None, Source("unreadable", f"{name} is no file: it is {output.unfit}")
    if output.timed_out:
        waited = f" in {output.seconds:.0f} s" if output.seconds else ""
        return None, Source("hung", f"`{command}` did not answer{waited}")
    if output.missing:
        return None, Source("missing", f"`{command}`: {output.error or 'not installed'}")
    if output.truncated:
        return None, Source("unreadable", f"{name} was cut: more output than is read")
    text = output.text
    if not text.strip():
        if name in ANSWERS_IN_ERRORS and output.error:
            text = output.error
        elif name not in EMPTY_IS_AN_ANSWER or output.rc not in (0, None):
            said = f": {first_line(output.error)}" if output.error else ""
            ended = (
                f"`{command}` printed nothing (exit status {output.rc})"
                if output.rc is not None
                else f"{name} is empty"
            )
            return None, Source("unreadable", ended + said)
    if name.startswith("nvidia-smi") and output.error and "<nvidia_smi_log" in text:
        text += "\n" + nvidia_smi.told(output.error)
    if seconds <= 0:
        return None, Source("unreadable", f"{name} was not read: the files before it took more than {NODE_S:g} s")
    try:
        with limited(min(seconds, FILE_S)):
            return parse(text), Source("read")
    except TooLong:
        return None, Source("unreadable", f"{name} could not be read within {min(seconds, FILE_S):.1f} s")
    except Unreadable as error:
        return None, Source("unreadable", f"{name}: {error}")
    except Exception as error:  # a parser with a bug must cost one file, not the fleet's report
        return None, Source("unreadable", f"{name}: the parser failed: {type(error).__name__}: {error}"[:1000])


def _xid(xid: dmesg.Xid) -> dict[str, Any]:
    return {"code": xid.code, "pci": xid.pci, "count": xid.count, "text": xid.text}


def _links(errors: dict[int, dict[int, nvlink_errors.Counters]] | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {str(gpu): {str(link): counts for link, counts in links.items()} for gpu, links in errors.items()}


def _load(found: load.Load | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return asdict(found) | {
        "busbw": {str(size): rate for size, rate in found.busbw},
        "transports": dict(found.transports),
    }


def _document(facts: Facts) -> dict[str, Any]:
    smi, rocm = facts.smi, facts.rocm
    listed: list[dict[str, Any]] = []
    for gpu in smi.gpus if smi else ():
        record = asdict(gpu) | {"ecc_uncorrectable": gpu.ecc_uncorrectable, "throttle": list(gpu.throttle)}
        listed.append(record)
    for card in rocm.gpus if rocm and not smi else ():
        blank = asdict(nvidia_smi.Gpu(index=card.index)) | {"ecc_uncorrectable": None, "lost": False, "throttle": []}
        listed.append(blank | asdict(card))
    known = smi is not None or rocm is not None
    return ({"simulated": True} if facts.simulated else {}) | {
        "driver_version": smi.driver_version if smi else (rocm.driver_version if rocm else None),
        "cuda_version": smi.cuda_version if smi else None,
        "attached_gpus": smi.attached_gpus if smi else None,
        "gpus": listed if known else None,
        "warnings": list(smi.warnings) if smi else None,
        "topology": facts.topo.cells if facts.topo else None,
        "nvlinks": None if facts.nvlinks is None else {str(i): asdict(v) for i, v in sorted(facts.nvlinks.items())},
        "nvlink_errors": _links(facts.nvlink_errors),
        "module": asdict(facts.module) if facts.module else None,
        "device_nodes": None if facts.device_nodes is None else [asdict(node) for node in facts.device_nodes],
        "nics_near": facts.topo.near if facts.topo else None,
        "numa": facts.topo.numa if facts.topo else None,
        "xids": None if facts.log is None else [_xid(x) for x in facts.log.xids],
        "xids_before": None if facts.before is None else [_xid(x) for x in facts.before.xids],
        "sxids": None if facts.log is None else [_xid(x) | {"fatal": x.fatal} for x in facts.log.sxids],
        "fallen_off": None if facts.log is None else list(facts.log.fallen_off),
        "aer": None
        if facts.log is None
        else {"correctable": facts.log.aer_correctable, "uncorrectable": facts.log.aer_uncorrectable},
        "kernel_events": None if facts.log is None else [asdict(event) for event in facts.log.events],
        "kernel_log_from_boot": facts.log.from_boot if facts.log else None,
        "ib_ports": None if facts.ib is None else [asdict(port) for port in facts.ib.ports],
        "ib_panic": facts.ib.panic if facts.ib else None,
        "efa_devices": None if facts.efa is None else len(facts.efa.devices),
        "rdma": None if facts.rdma is None else [asdict(device) for device in facts.rdma],
        "pci": asdict(facts.bus) if facts.bus else None,
        "disks": None if facts.disks is None else [asdict(disk) for disk in facts.disks],
        "nccl": asdict(facts.nccl) if facts.nccl else None,
        "dcgm_diag": asdict(facts.diag) if facts.diag else None,
        "dcgm": None
        if facts.dcgm is None
        else {
            "gpus": {str(i): uuid for i, uuid in sorted(facts.dcgm.gpus.items())},
            "metrics": list(facts.dcgm.metrics),
            "driver_version": facts.dcgm.driver_version,
            "hostname": facts.dcgm.hostname,
            "xids": {str(i): code for i, code in sorted(facts.dcgm.xids.items())},
        },
        "fabric_manager": asdict(facts.fabric_manager) if facts.fabric_manager else None,
        "failed_units": None if facts.failed_units is None else list(facts.failed_units),
        "packages": facts.packages,
        "holds": None if facts.holds is None else list(facts.holds),
        "images": None if facts.images is None else [asdict(image) for image in facts.images],
        "frameworks": None if facts.frameworks is None else [asdict(report) for report in facts.frameworks],
        "kernel": facts.kernel,
        "os": asdict(facts.system) | {"name": facts.system.name} if facts.system else None,
        "modules": None if facts.modules is None else list(facts.modules),
        "unfinished_packages": facts.unfinished,
        "stamp": asdict(facts.stamp) if facts.stamp else None,
        "units": None if facts.units is None else {name: asdict(unit) for name, unit in facts.units.items()},
        "reboot": facts.reboot,
        "unattended": asdict(facts.unattended) if facts.unattended else None,
        "interruption": asdict(facts.interruption) if facts.interruption else None,
        "shared": None if facts.shared is None else [asdict(one) for one in facts.shared],
        "host": asdict(facts.host) if facts.host else None,
        "load": _load(facts.load),
        "fabric": asdict(facts.fabric) if facts.fabric else None,
        "fio": asdict(facts.fio) if facts.fio else None,
        "error": facts.error or None,
        "unreadable": [
            {"file": name, "reason": source.reason}
            for name, source in facts.sources.items()
            if source.state in ("unreadable", "hung", "missing")
        ],
    }
