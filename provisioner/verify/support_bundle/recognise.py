"""Which file of a bundle a text is, told by what is in it. The parser has the last word: what it cannot read is not
placed, and said with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from provisioner.verify.parsers.nvidia_smi_text import SECTION

HEAD = 65_536
"""Characters in which a text has to show what it is."""
LOOKS = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """What a text of one kind has. `rank` orders the forms of one file: the lowest tells the most."""

    file: str
    pattern: re.Pattern[str]
    rank: int = 0
    without: re.Pattern[str] | None = None
    """What it must not have."""
    take: Callable[[str], str] | None = None
    """Makes the parser's text of it."""
    is_additional: bool = False
    """Whether a text is this too where it is another file: a run of nccl-tests is a log of NCCL."""


def _look(
    file: str,
    pattern: str,
    rank: int = 0,
    without: str = "",
    take: Callable[[str], str] | None = None,
    *,
    is_additional: bool = False,
) -> Look:
    return Look(
        file, re.compile(pattern, re.M), rank, re.compile(without, re.M) if without else None, take, is_additional
    )


def _release(text: str) -> str:
    """The release in `uname -a`, or in the head of a bug report."""
    match = re.search(r"^(?:uname: )?Linux \S+ (\S+)", text, re.M)
    return match[1] if match else text


def _service(text: str) -> str:
    """The status of fabric manager among those of other services."""
    blocks = re.split(r"(?m)^(?=[●○×*] )", text)
    return next((block for block in blocks if "nvidia-fabricmanager" in block[:200]), text)


def _failed(text: str) -> str:
    """The rows of a list of units that have failed."""
    rows = [line for line in text.splitlines() if re.match(r"^[●○× *]*\S+\.\w+\s+\S+\s+failed\s", line)]
    return "\n".join(rows) + "\n"


LOOK = (
    _look("nvidia-smi.xml", r"<nvidia_smi_log"),
    _look("nvidia-smi.xml", r"NVSMI LOG=|^Attached GPUs +: \d", 1),
    _look("nvidia-smi.xml", r"^\| NVIDIA-SMI \S+ .*(?:Driver|KMD) Version:", 3),
    _look("nvidia-smi.xml", r"^\| +\d{1,3} +\S.*(?:On|Off|N/A|ERR!) *\| *(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:", 3),
    _look("nvidia-smi.xml", SECTION.pattern, 5, without=r"NVRM|^GPU\[|<nvidia_smi_log"),
    _look("nvidia-smi.xml", r"^[ \t]*index, *|^(?:.*, )?(?:uuid|gpu_uuid|pci\.bus_id|gpu_bus_id)(?:,|$)", 2),
    _look(
        "nvidia-smi.xml",
        r"^(?:\d+, )?(?:GPU-[0-9a-f]{8}-|[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)[^,\n]*, ",
        2,
    ),
    _look("nvidia-smi.xml", r"^\d+ GPUs? found\.", 4),
    _look("nvidia-smi.xml", r"^NVRM version: +[0-9.]+\n(?:.*\n){1,4}Device Index:", 5),
    _look(
        "nvidia-smi.xml", r"^GPU \d+: .* \(UUID: GPU-", 6, without=r"Link \d+:|all links are|[Nn]v[Ll]ink|Replay Err"
    ),
    _look(
        "nvidia-smi.xml",
        r"^Unable to determine the device handle|^(?:NVIDIA-SMI has failed|Failed to initialize NVML)|"
        r"^No devices were found",
        7,
    ),
    _look(
        "nvlink.txt",
        r"^[ \t]*GPU \d+: .*\n[ \t]*(?:NVML: ?Unable|Link \d+: (?:<?in-?active|[\d.]+ GB/s)|Nvlink queries are not|"
        r"Device does not have)",
        without="Replay",
    ),
    _look("nvlink.txt", r"^\|  NvLink Link Status ", 1),
    _look("nvlink-errors.txt", r"^[ \t]+Link \d+: (?:Replay|CRC|Recovery)|^[ \t]+Link \d+: .*Errors?:"),
    _look("dmidecode.txt", r"^Handle 0x[0-9A-Fa-f]{4}, DMI type 17, "),
    _look("topo.txt", r"^[ \t]*(?:(?:\x1b\[\d*m)+[ \t]*)?GPU0\s.*\n(?:.*\n){0,3}GPU0\s+(?:X|\x1b)"),
    _look("nvidia-version.txt", r"^NVRM version: NVIDIA UNIX"),
    _look("nvidia-params.txt", r"^(?:ResmanDebugLevel|RegistryDwords|EnableMSI): "),
    _look("nvidia-dev.txt", r"^c\S{9}.? .*\d+, +\d+ .* /dev/nvidia(?:ctl|\d)"),
    _look("ibstat.txt", r"^CA '[^']+'$"),
    _look("ibstat.txt", r"^Infiniband device '", 1),
    _look("ibstat.txt", r"^[ \t]*hca_id:\s*\S", 2),
    _look("ibstat.txt", r"^link \S+/\d+\s(?:.* )?state \S+ physical_state", 3),
    _look("fi_info.txt", r"^provider: efa"),
    _look(
        "lspci.txt",
        r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [^:\n]*: ",
        without=r"^[ |]*[-+]-\[|^-\[",
    ),
    _look("lsblk.json", r'"blockdevices"\s*:'),
    _look("lsblk.json", r'^(?:[A-Z:-]+="[^"]*" )*NAME="[^"]*" +[A-Z:-]+="', 1),
    _look("lsblk.json", r"^NAME +MAJ:MIN +RM +SIZE +RO +TYPE +MOUNTPOINT", 2),
    _look("lsblk.json", r'^Node +(?:Generic +)?SN +Model +Namespace|"(?:DevicePath|Subsystems)"\s*:', 3),
    _look("mdstat.txt", r"^Personalities ?:|^md\d\S* : (?:active|inactive)"),
    _look("dcgmi-diag.json", r'"DCGM (?:GPU )?Diagnostic"'),
    _look("dcgmi-diag.json", r"^\| Diagnostic  |^[+|]-----  (?:Deployment|Integration|Hardware|Stress)  -", 1),
    _look(
        "dcgmi-health.json",
        r'^\| Health Monitor Report|^\| Overall Health  |"Health Monitor Report"|^Error: Health watches not enabled',
    ),
    _look(
        "imex.json",
        r'^Connectivity Table Legend:|^Domain State: (?:UP|DEGRADED|DOWN)\s*$|"connections"\s*:\s*\{\s*"\d+"\s*:\s*\{',
    ),
    _look("dcgm-exporter.prom", r"^DCGM_FI_DEV_\w+\{"),
    _look(
        "all_reduce.txt",
        r"^(?:\S+: )?#?[ \t]*size\s+count\s+type\s+redop|# nThread \d+ nGpus|^#\s+\(B\)\s+\(elements\)|"
        r"^[ \t]*\d{1,12}\s+\d{1,12}\s+(?:float|half|bfloat16)\s+sum\s|not enough slots available|"
        r"Test NCCL failure|Test CUDA failure",
    ),
    _look("nccl.log", r"\bNCCL (?:WARN|INFO) |\bNCCL error in: |\bunhandled (?:system|cuda) error", is_additional=True),
    _look("rocm-smi.json", r'"card\d+"\s*:|"gpu_data"\s*:|"market_name"\s*:'),
    _look("rocm-smi.json", r"^GPU\[\d+\]\s*:|^Device +\[Model : Revision\]|ROCm System Management Interface", 1),
    _look("rocm-smi.json", r"^\| AMD-SMI \S+ +amdgpu version:", 1),
    _look("rocm-smi.json", r"^GPU: \d+\n\s+[A-Z_]+:", 1),
    _look("fabricmanager.txt", r"nvidia-fabricmanager\.service", take=_service, without=r"\A(?:.*\n){4000}"),
    _look("fabricmanager.log", r"^\[\w{3} \d\d \d{4} [\d:]{8}\] \[(?:INFO|ERROR|WARNING|FATAL|CRITICAL)\] \[tid \d+\]"),
    _look("fabricmanager.log", r"\b(?:nv-fabricmanager|nvidia-fabricmanager-start\.sh)\[\d+\]: ", 1),
    _look("services.txt", r"^[ \t]*UNIT\s+LOAD\s+ACTIVE\s+SUB", take=_failed),
    _look("dgx-release.txt", r"^DGX_(?:SWBUILD|OTA)_VERSION=", without=r"^ID="),
    _look("os-release.txt", r"^(?:NAME|ID|PRETTY_NAME)=\S(?:.*\n){1,60}?(?:VERSION_ID|ID)="),
    _look(
        "modules.txt",
        r"^Module\s+Size\s+Used by|^(?:nvidia|nvidia_uvm|mlx5_core|amdgpu|drm)\s+\d{4,10}\s+\d+(?: |$)|"
        r"^\w+ \d+ \d+ (?:\S+ )?(?:Live|Loading) 0x",
    ),
    _look("packages.txt", r"^[a-z0-9][a-z0-9+.-]+(?::\w+)?\t\d\S*(?:\t\w{2}.*)?\n[a-z0-9]"),
    _look("kernel.txt", r"^(?:uname: )?Linux \S+ \d+\.\d+\S* #\d", take=_release, without=r"NVRM|Linux version"),
    _look("kernel.txt", r"\A\s*[3-9]\.\d+\.\d+[-.+]\S+\s*\Z", 1),
)
_STAMPED = (
    r"NVRM: |\bkernel: |\bkernel:\[ *\d|\bLinux version \d|^\[ *\d+\.\d{6}\] |^<\d+>\[ *\d+\.|^\d+,\d+,\d+,\S*;"
    r"|^\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] |SXid \(|^\d{4}-\d\d-\d\dT\S{5,40} \S{1,255} kernel|^\[\w{3}\d+ [\d:]{5}\] "
)
MCELOG = r"^Hardware event\. This is not a software error\.|^(?:Unc|C)orrected error\s*$"
"""What mcelog writes of an event, as far as it is judged."""
LINE = re.compile(f"{_STAMPED}|{MCELOG}")
"""A line that can be nobody's but the kernel's, among the output of another tool too."""
KERNEL = re.compile(
    _STAMPED + r"|NVRM:|^NVRM|SXid|AER: |systemd-networkd\[\d+\]: \S+: lost carrier"
    r"|^nvidia-\w+ |has fallen off the bus"
    # dmesg without stamps, as people paste a line or two of it
    r"|^(?:mlx[45]_core|amdgpu|efa|pcieport|nvme \w+:|nvidia) [0-9a-fA-F]{4}:[0-9a-fA-F]{2}:|^INFO: task \S+ blocked"
    rf"|{MCELOG}"
    r"|^(?:Out of memory: Killed|Memory cgroup out of memory: Killed|oom-kill:constraint=)",
    re.M,
)
"""A kernel's line, in whatever it stands."""
JOURNAL = re.compile(r'^\{.*"__CURSOR"|^__CURSOR=', re.M)


def kinds(text: str) -> list[Look]:
    """The kinds that a text looks like, the likeliest first; kernel logs are journals.py's."""
    head = text[:HEAD]
    return [look for look in LOOK if look.pattern.search(head) and not (look.without and look.without.search(head))]


def parts(text: str) -> dict[str, str]:
    """Where outputs of several tools follow each other in one text: for each file the lines from where it looks like
    that one to where it looks like the next."""
    starts: dict[str, int] = {}
    for look in kinds(text):
        if not look.is_additional and (match := look.pattern.search(text[:HEAD])):
            start = text.rfind("\n", 0, match.start() + 1) + 1
            starts[look.file] = min(start, starts.get(look.file, start))
    ends = {file: min((s for s in starts.values() if s > start), default=len(text)) for file, start in starts.items()}
    return {file: text[start : ends[file]] for file, start in starts.items()}


def divided(text: str) -> tuple[str, str]:
    """The lines that the kernel has written, without what they are indented or quoted by, and the others."""
    kernel, other_lines = list[str](), list[str]()
    for line in text[:LOOKS].splitlines(keepends=True):
        plain = line.lstrip(" \t>")
        is_kernel = LINE.search(plain) is not None
        (kernel if is_kernel else other_lines).append(plain if is_kernel else line)
    return "".join(kernel), "".join(other_lines)


def is_kernel_log(text: str) -> bool:
    """Whether the kernel's lines are in it."""
    return bool(KERNEL.search(text[:LOOKS]))


def is_page(text: str) -> bool:
    """Whether it is a web page, XML or JSON, which may quote a kernel's lines: a report of gpuprov's does."""
    return bool(re.match(r'\s*(?:<!|<\?|<[a-zA-Z]|\{\s*"|\[\s*[\[{"])', text[:4096])) and not is_journal(text)


def is_journal(text: str) -> bool:
    return bool(JOURNAL.search(text[:4096]))
