"""A bundle's texts, read tool by tool into one typed value: what is known of a node before any judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from time import process_time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers import (
    Unreadable,
    apt_config,
    bmc,
    dcgm_exporter,
    dcgmi_diag,
    dcgmi_health,
    dgx_release,
    dmesg,
    dmidecode,
    ethtool_modules,
    fabric,
    fabric_manager_log,
    fi_info,
    fio,
    first_line,
    framework,
    gds,
    gpu_samples,
    host,
    host_software,
    ib_switches,
    ibstat,
    image_identity,
    images,
    imex,
    interruption,
    kernel_unknown,
    last_look,
    load,
    lsblk,
    lspci,
    maintenance,
    mdstat,
    mlxlink,
    nccl_log,
    nccl_ras,
    nccl_tests,
    nvidia_driver,
    nvidia_smi,
    nvlink,
    nvlink_errors,
    os_release,
    pci,
    perftest,
    rdma_sysfs,
    reach,
    roce_qos,
    rocm_smi,
    shared,
    stamp,
    systemd,
    topo,
)
from provisioner.verify.tool import Tool
from provisioner.verify.tools import FILES, TOOLS
from provisioner.verify.watch import TooLong, limited

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

State = Literal["read", "absent", "missing", "hung", "unreadable"]
T = TypeVar("T")

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


READ = Source("read")


@cache
def not_given(name: str) -> Source:
    """Of a file that nobody has collected or copied."""
    return Source("absent", f"{name} is not in the bundle")


@dataclass(frozen=True, slots=True)
class After:
    """What counts errors, asked again when the load had ended; None where it did not answer."""

    smi: nvidia_smi.Smi | None
    nvlink_errors: dict[int, dict[int, nvlink_errors.Counters]] | None
    log: dmesg.KernelLog | None
    rdma: tuple[rdma_sysfs.Device, ...] | None
    interfaces: tuple[host_software.Interface, ...] | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """A further look at what may be momentary (tool.py: further_looks); None where none was made, or gave nothing."""

    smi: nvidia_smi.Smi | None = None
    nvlinks: dict[int, nvlink.Links] | None = None
    ib: ibstat.Ibstat | None = None


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
    p2p: dict[int, tuple[str, ...]] | None = None
    """GPU → whether it can read each GPU's memory, in the driver's words."""
    nvlinks: dict[int, nvlink.Links] | None = None
    nvlink_errors: dict[int, dict[int, nvlink_errors.Counters]] | None = None
    """GPU → link → error counters."""
    last_look: last_look.Looks | None = None
    """What counters stood at when it was looked at before; None where it was not."""
    module: nvidia_driver.Module | None = None
    module_params: dict[str, str] | None = None
    device_nodes: tuple[nvidia_driver.Node, ...] | None = None
    log: dmesg.KernelLog | None = None
    before: dmesg.KernelLog | None = None
    """The kernel log of the boot before."""
    strange: tuple[kernel_unknown.Strange, ...] | None = None
    """What the kernel calls errors and no check knows."""
    ib: ibstat.Ibstat | None = None
    ib_mtu: dict[tuple[str, int], tuple[int, int]] | None = None
    """(device, port) → bytes of an RDMA packet: now, at most."""
    efa: fi_info.Efa | None = None
    rdma: tuple[rdma_sysfs.Device, ...] | None = None
    bus: lspci.Pci | None = None
    disks: tuple[lsblk.Disk, ...] | None = None
    arrays: tuple[mdstat.Array, ...] | None = None
    """Software RAID; empty where there is none."""
    nccl: nccl_tests.Nccl | None = None
    nccl_log: nccl_log.NcclLog | None = None
    """What NCCL warned of in a job's log, where somebody gave one."""
    cables: mlxlink.Cables | None = None
    optics: tuple[ethtool_modules.Module, ...] | None = None
    """Transceivers of Ethernet ports that are up."""
    roce_qos: roce_qos.RoceQos | None = None
    """How RoCE traffic is marked and queued."""
    gds: gds.Gds | None = None
    """GPUDirect Storage, as gdscheck sees it."""
    ib_links: tuple[ib_switches.Link, ...] | None = None
    """The switch at the other end of each InfiniBand cable."""
    lldp: tuple[ib_switches.Link, ...] | None = None
    """The same of Ethernet cables, as the switches announce it."""
    nccl_ras: nccl_ras.NcclRas | None = None
    """What NCCL says of the job on the node."""
    loopback: perftest.Loopback | None = None
    """Each RDMA card with itself."""
    diag: dcgmi_diag.Diag | None = None
    dcgm: dcgm_exporter.Exported | None = None
    dcgm_health: dcgmi_health.Health | None = None
    """What DCGM's background watches have seen."""
    fabric_manager: systemd.Service | None = None
    fabric_log: fabric_manager_log.FabricLog | None = None
    failed_units: tuple[str, ...] | None = None
    packages: dict[str, str] | None = None
    package_sources: dict[str, str] | None = None
    """Package → source package and its version, where they are not the package's own."""
    holds: tuple[str, ...] | None = None
    images: tuple[images.LocalImage, ...] | None = None
    frameworks: tuple[framework.Framework, ...] | None = None
    kernel: str | None = None
    system: os_release.System | None = None
    modules: tuple[str, ...] | None = None
    unfinished: dict[str, str] | None = None
    """Packages that dpkg began with and did not end, with what it says of each."""
    stamp: stamp.Stamp | None = None
    image: image_identity.ImageIdentity | None = None
    dgx: dgx_release.DgxOs | None = None
    units: dict[str, systemd.Unit] | None = None
    reboot: str | None = None
    """Why the system asks for a reboot; empty where it does not."""
    unattended: apt_config.Unattended | None = None
    imex: imex.Domain | None = None
    """The IMEX domain, as this node's daemon sees it."""
    interruption: interruption.Interruption | None = None
    reach: reach.Reached | None = None
    """What packages and images come from."""
    maintenance: tuple[maintenance.Event, ...] | None = None
    """Scheduled events of the machine, as its cloud lists them."""
    metadata_openly: int | None = None
    """Status with which the metadata service answers who has no token."""
    shared: tuple[shared.Shared, ...] | None = None
    """File systems of the network, where any is expected."""
    host: host.Host | None = None
    dimms: dmidecode.Modules | None = None
    """The memory modules that its firmware has found."""
    load: load.Load | None = None
    under_load: nvidia_smi.Smi | None = None
    """nvidia-smi in the middle of the load program's matrix products."""
    samples: tuple[gpu_samples.Samples, ...] | None = None
    """What the GPUs showed from then to the end of the load, every few seconds."""
    after: After | None = None
    second: Again | None = None
    third: Again | None = None
    fabric: fabric.Fabric | None = None
    """How it did with other nodes of its group."""
    fio: fio.Fio | None = None
    """What scratch reached under fio."""
    bmc: bmc.Bmc | None = None
    """What its management controller shows."""

    def never_asked(self, file: str) -> bool:
        """Whether gpuprov collected the bundle and did not ask for a file: an older one that did not know it."""
        return self.collected is not None and self.source(file) == not_given(file)

    def source(self, name: str) -> Source:
        return self.sources.get(name, not_given(name))

    def looks(self, field: str) -> tuple[Any, ...]:
        """What every look at one thing ("smi", "nvlinks", "ib") found, the first one first; without those that were not
        made, or gave nothing."""
        first = getattr(self, field)
        further = [getattr(repeated, field) for repeated in (self.second, self.third) if repeated is not None]
        return tuple(look for look in (first, *further) if look is not None)

    @property
    def gpus(self) -> tuple[nvidia_smi.Gpu, ...] | None:
        """GPUs that answer. None where nothing is known of them."""
        return None if self.smi is None else tuple(gpu for gpu in self.smi.gpus if not gpu.lost)

    @property
    def gpus_present(self) -> int | None:
        """How many GPUs answer, by nvidia-smi or rocm-smi; None where a part of its output is all there is."""
        if self.smi is not None and self.smi.excerpt:
            return None
        if self.gpus is not None:
            return len(self.gpus)
        return None if self.rocm is None else len(self.rocm.gpus)

    def gone(self, expected: Expected) -> set[str]:
        """PCI addresses of GPUs that are not among those that answer, where GPUs are short: what the kernel says of
        them belongs to gpu.count. Empty where all are there or nothing is known."""
        if self.gpus is None or self.smi is None or not expected.knows("gpu_count"):
            return set()
        if len(self.gpus) >= expected.gpu_count:
            return set()
        answering = {gpu.pci for gpu in self.gpus}
        lost = {gpu.pci for gpu in self.smi.gpus if gpu.lost} | set(self.smi.unreachable)
        logged = {pci(x.pci) for x in self.log.xids} | {pci(a) for a in self.log.fallen_off} if self.log else set()
        absent = {address for address in logged | lost if address and address not in answering}
        # More strange addresses than missing GPUs: then the kernel speaks of something else, and that is judged.
        known_lost = {address for address in lost if address}
        return absent if len(absent) <= expected.gpu_count - len(self.gpus) else known_lost

    @property
    def listed_by(self) -> str:
        """What listed the GPUs, where that says less of them than the probe's command: a check that finds nothing wrong
        there has found nothing right either."""
        return (self.smi.made_by if self.smi else "") or (self.rocm.made_by if self.rocm else "")

    @property
    def listed_alone(self) -> str:
        """That such a list does not tell, and what does."""
        command = "nvidia-smi -q" if self.smi else "rocm-smi --json"
        return f"the GPUs are known from {self.listed_by} alone, which does not tell: `{command}` does"

    def value(self, field: str) -> Any:
        """What a tool's `field` has, "after.log" too; None where that is not known."""
        outer, _, inner = field.partition(".")
        result = getattr(self, outer)
        return getattr(result, inner) if inner and result is not None else result


NESTED: Mapping[str, type[After] | type[Again]] = {"after": After, "second": Again, "third": Again}
"""Fields of Facts that hold fields of their own, which tools name as "after.log"."""


def _in_order() -> tuple[Tool, ...]:
    """The tools in the order of the fields, in which they are read. LookupError for a field that is not there."""
    order: list[str] = []
    for outer in fields(Facts):
        nested = NESTED.get(outer.name)
        order += [f"{outer.name}.{inner.name}" for inner in fields(nested)] if nested else [outer.name]
    for tool in TOOLS:
        if tool.field not in order:
            raise LookupError(f"facts.Facts has no field {tool.field!r}, which the tool {tool.file} fills")
    return tuple(sorted(TOOLS, key=lambda tool: order.index(tool.field)))


ORDERED = _in_order()


def read(bundle: Bundle) -> Facts:
    """Read every file of the bundle. Never raises: a file that cannot be read says so in `sources`."""
    sources: dict[str, Source] = {}
    values: dict[str, Any] = {}
    began = process_time()
    for tool in ORDERED:
        value, source = read_file(tool.file, bundle, tool.parse, NODE_S - (process_time() - began))
        sources.setdefault(tool.file, source)
        values[tool.field] = value
    for outer, kind in NESTED.items():
        values[outer] = kind(**{inner.name: values.pop(f"{outer}.{inner.name}") for inner in fields(kind)})
    smi_output = bundle.files.get("nvidia-smi.xml")
    if smi_output is not None and smi_output.partial and values["smi"] is not None:
        values["smi"] = replace(values["smi"], excerpt=True)
    return Facts(
        **values,
        smi_failure=nvidia_smi.failure(smi_output.text + smi_output.error) if smi_output else None,
        sources=sources,
        outputs={name: output.without_text() for name, output in bundle.files.items()},
        error=bundle.error,
        simulated=bundle.simulated,
        collected=bundle.collected,
        received=bundle.received,
    )


def read_file(name: str, bundle: Bundle, parse: Callable[[str], T], seconds: float = NODE_S) -> tuple[T | None, Source]:
    """One file's value, and how that came out; `seconds` of a processor are left for it. Never raises."""
    output = bundle.files.get(name)
    if output is None:
        return None, Source("absent", bundle.error[:REASON]) if bundle.error else not_given(name)
    tool = FILES[name]
    command = tool.source
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
        if tool.complaint_answers and output.error:
            text = output.error
        elif not tool.empty or output.rc not in (0, None):
            error_text = f": {first_line(output.error)}" if output.error else ""
            ended = (
                f"`{command}` printed nothing (exit status {output.rc})"
                if output.rc is not None
                else f"{name} is empty"
            )
            return None, Source("unreadable", ended + error_text)
    if tool.joined is not None:
        text = tool.joined(text, output.error)
    if (parse, text) in _known:
        return _remembered(parse, text, _known.pop((parse, text))), READ
    if seconds <= 0:
        return None, Source("unreadable", f"{name} was not read: the files before it took more than {NODE_S:g} s")
    try:
        with limited(min(seconds, FILE_S)):
            value = parse(text)
        return _remembered(parse, text, value), READ
    except TooLong:
        return None, Source("unreadable", f"{name} could not be read within {min(seconds, FILE_S):.1f} s")
    except Unreadable as error:
        return None, Source("unreadable", f"{name}: {error}")
    except Exception as error:  # a parser with a bug must cost one file, not the fleet's report
        return None, Source("unreadable", f"{name}: the parser failed: {type(error).__name__}: {error}"[:1000])


ALIKE, LARGE = 64, 256 * 1024
"""Texts of which it is remembered what they say, and the length up to which: nodes of a group have the same packages,
the same wiring, the same units, and a log after the load is mostly the one before it."""
_known: dict[tuple[Callable[[str], Any], str], Any] = {}


def _remembered(parse: Callable[[str], T], text: str, value: T) -> T:
    """The value, known until ALIKE other texts were read. Parsers are pure, and nobody changes facts."""
    if len(text) <= LARGE:
        if len(_known) >= ALIKE:
            del _known[next(iter(_known))]
        _known[parse, text] = value
    return value
