"""What people keep of nvidia-smi beside its XML: `-q`, the table, `-L`, `--query-gpu` as CSV; and lists of GPUs of
other tools (`dcgmi discovery -l`, `nvidia-container-cli info`). Each becomes the element that the XML would have been.

Traps: `-q` names its keys otherwise than the XML, and other branches otherwise again; the table cuts names ("Tesla
V100-SXM2..."), and has ERR! in every cell of a GPU that is lost; ECC's cell is "On" in MIG mode; a CSV can lack its
header; deprecated keys append a sentence to their value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement

from provisioner.verify.parsers import ELIDED, LONGEST, lines
from provisioner.verify.parsers.nvidia_smi_keys import CSV, QUERY

BUS = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_BLOCK = re.compile(rf"^GPU ({BUS})\s*$", re.M)
SECTION = re.compile(
    r"^(?: {4})?(?:Remapped Rows|Retired Pages|ECC (?:Mode|Errors)|Clocks (?:Throttle|Event) Reasons|Fabric|MIG Mode|"
    r"(?:GPU|Module) Power Readings|Power Readings|Temperature|FB Memory Usage|GPU Reset Status) *\n {4}(?: {4})?\S"
    r"|^ {4}(?:Product Name|GPU Recovery Action) +: ",
    re.M,
)
"""The first line of a part of `-q`, which people paste without its head."""
_PAIR = re.compile(r"^( *)(\S.*?) *:(?: (.*))?$")
_HEADING = re.compile(r"^( +)([A-Z][A-Za-z0-9 ./()-]*?) *$")
_DEPRECATED = re.compile(r"\s{0,20}\[Deprecated[^\]]*\]?.*$|^Deprecated,.*$")
_VERSIONS = re.compile(r"(Driver|KMD|CUDA(?: UMD)?) Version: *([0-9][0-9.]*[0-9])")
_FIRST = re.compile(
    rf"^\| {{1,9}}([0-9]{{1,3}}) {{1,60}}(\S.{{0,60}}?) {{1,60}}(On|Off|N/A|ERR!) {{0,9}}\| {{0,60}}({BUS}|N/A|ERR!)"
    r" {1,60}(On|Off|N/A|ERR!) {0,60}\| {0,80}(\S{1,20}) {0,60}\|$"
)
"""Bounded everywhere, as the next ones: a line of thousands of spaces is no table's."""
FIRST_ROW = re.compile(_FIRST.pattern, re.M)
_SECOND = re.compile(
    r"^\| {0,60}(?:\S{1,20}) {1,60}(\S{1,20}) {1,60}(\S{1,20}) {1,60}(\S{1,20}) {0,9}/ {1,60}(\S{1,20}) {0,60}\|"
    r" {0,60}([0-9]{1,9}MiB|N/A|ERR!) {0,9}/ {1,60}([0-9]{1,9}MiB|N/A|ERR!) {0,60}\|"
    r" {0,60}(\S{1,20}) {1,60}(\S.{0,60}?) {0,60}\|$"
)
_LOST = re.compile(
    r"^\| {0,60}(?:\S{1,20} {1,60}ERR! {1,60}ERR!|.{0,200}\|) .{0,200}?"
    r"(?:(GPU is lost|GPU requires reset)|ERR! {0,9}/ {1,60}ERR!) {0,60}\|"
)
"""The second line of a GPU that does not answer: heat and level of performance are ERR!, and in place of its memory
stands why, or ERR! again. ERR! of the fan alone is of a GPU that works (github utkuozdemir/nvidia_gpu_exporter#393)."""
_STUCK = re.compile(r"^\| *\S+ +ERR! +ERR! +N/A */ +N/A *\|")
"""That of a GPU which branch 580 wants reset: it still knows its memory."""
_MIG = re.compile(r"^\| +\| +\| +(Enabled|Disabled|N/A|ERR!)(\*?) *\|$")
"""With a star where another mode waits for a reset."""
_PROCESS = re.compile(
    r"^\| {1,60}([0-9]{1,3}) {1,60}(?:(?:N/A|[0-9]{1,9}) {1,60}(?:N/A|[0-9]{1,9}) {1,60})?([0-9]{1,9}) {1,60}"
    r"([CGM+]{1,3}) {1,60}(\S.{0,200}?) {1,99}([0-9]{1,9}MiB|N/A) {0,60}\|$"
)
_LISTED = re.compile(r"^GPU ([0-9]{1,3}): (\S.*?) \(UUID: (GPU-[0-9a-fA-F-]{36})\)$")
_INSTANCE = re.compile(r"^\s+MIG \S+\s+Device\s+[0-9]+: \(UUID: ")
_DISCOVERED = re.compile(r"^\|\s*(?:([0-9]{1,3})\s*)?\|\s*(Name|PCI Bus ID|Device UUID): (\S.*?)\s*\|$")
_STATES = ("gpu is lost", "gpu requires reset")
_AGAIN = re.compile(r"^=+NVSMI LOG=+[ \t]*$|^\| NVIDIA-SMI \S+ .*(?:Driver|KMD) Version:", re.M)
"""What `-q` and the table begin with, each time that they are printed (`-l`, `watch`)."""
_CONTAINER = re.compile(r"^(NVRM version|CUDA version|Device Index|Model|GPU UUID|Bus Location):\s+(\S.*?)\s*$")


@dataclass
class Listed:
    """The document, how it was made in words where that is less than `-q -x` tells ("" where it is as much), and
    whether it is only a part of what was printed."""

    root: Element
    made_by: str = ""
    excerpt: bool = False
    stray: list[str] = field(default_factory=list)
    """Lines that belong to none of it: what the library complains of."""


def read(text: str) -> Listed | None:
    """The document that any of these texts stands for, or None. Of one that was printed again and again the last time
    counts, but one that tells all before a table, and one that shows a GPU which does not answer before all others."""
    starts = [match.start() for match in _AGAIN.finditer(text)][1:]
    parts = [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]
    documents = [listed for part in parts if (listed := _read(part)) is not None]
    return max(reversed(documents), key=_worth, default=None)


def _worth(listed: Listed) -> tuple[bool, bool, bool]:
    """What makes one of several lists the one to take: it lists GPUs (`-q --unit` lists none), it shows one that does
    not answer, it tells all."""
    return listed.root.find("gpu") is not None, _silent(listed.root), not listed.made_by


def _silent(root: Element) -> bool:
    """Whether a GPU of it says that it is lost or has to be reset."""
    return any((value.text or "").strip("[]").lower() in _STATES for value in root.iterfind("gpu/else/value"))


def _read(text: str) -> Listed | None:
    for form in (_query, _table, _csv, _discovery, _container, _list):
        document = form(text)
        if document is not None and (len(document.root.findall("gpu")) or document.stray):
            messages = [line for line in document.stray if not ELIDED.fullmatch(line)]
            document.excerpt = document.excerpt or len(messages) < len(document.stray)
            document.stray = messages
            return document
    return None


def put(element: Element, path: str, value: str) -> None:
    """Set the text at a path below an element; what is there first stays."""
    for name in path.split("/"):
        below = element.find(name)
        element = SubElement(element, name) if below is None else below
    if element.text is None:
        element.text = value


def _query(text: str) -> Listed | None:
    headed = "NVSMI LOG" in text or re.search(r"^Attached GPUs +:", text, re.M) is not None
    if not headed and not SECTION.search(text):
        return None
    document = Listed(Element("nvidia_smi_log"), excerpt=not headed)
    gpu: Element | None = None
    if not headed and _BLOCK.search(text[:HEAD]) is None:  # a part of one GPU's
        gpu, text = SubElement(document.root, "gpu"), _as_in_a_block(text)
    open_keys: list[tuple[int, str]] = []
    process: Element | None = None
    has_names: list[bool] = [] if gpu is None else [False]
    elided = False
    for line in lines(text):
        if match := _BLOCK.match(line):
            gpu = SubElement(document.root, "gpu", id=match[1])
            open_keys, process = [], None
            has_names.append(False)
        elif match := _PAIR.match(line):
            depth, key = len(match[1]), match[2]
            value = _DEPRECATED.sub("", match[3] or "").strip()
            if gpu is None or depth == 0:
                _top(document.root, key, value)
                continue
            path = [*_above(open_keys, depth), key]
            has_names[-1] = has_names[-1] or key == "Product Name"
            process = _put_pair(gpu, path, value, process)
        elif gpu is not None and (match := _HEADING.match(line)):
            above = _above(open_keys, len(match[1]))
            open_keys = [*open_keys[: len(above)], (len(match[1]), match[2])]
            if match[2] == "MIG Device":
                put(SubElement(_child(gpu, "mig_devices"), "mig_device"), "index", "")
        elif ELIDED.fullmatch(line):
            elided = True
        elif line.strip() and "NVSMI LOG" not in line:
            document.stray.append(line.strip())
    attached = document.root.findtext("attached_gpus") or ""
    short = attached.isdigit() and int(attached) > len(has_names)
    document.excerpt = elided or not headed or (short and not document.stray)
    if document.excerpt or not all(has_names):
        document.made_by = "a part of `nvidia-smi -q`"
    if document.excerpt and (top := document.root.find("attached_gpus")) is not None:
        document.root.remove(top)
    return document


def _as_in_a_block(text: str) -> str:
    """A part of a GPU's block with the block's four blanks before each of its keys."""
    depth = min((len(line) - len(line.lstrip(" ")) for line in text.splitlines() if line.strip()), default=0)
    return text if depth else re.sub(r"^(?=.)", "    ", text, flags=re.M)


def _above(open_keys: list[tuple[int, str]], depth: int) -> list[str]:
    return [key for at, key in open_keys if at < depth]


def _child(element: Element, name: str) -> Element:
    below = element.find(name)
    return SubElement(element, name) if below is None else below


def _elsewhere(gpu: Element, value: str) -> None:
    """A value that says of the GPU itself that it is lost or has to be reset counts wherever it stands."""
    SubElement(_child(gpu, "else"), "value").text = value


def _top(root: Element, key: str, value: str) -> None:
    names = {"Driver Version": "driver_version", "KMD Version": "kmd_version", "CUDA Version": "cuda_version",
             "CUDA UMD Version": "cuda_umd_version", "Attached GPUs": "attached_gpus"}  # fmt: skip
    if key in names and value:
        put(root, names[key], value.rstrip("."))


def _put_pair(gpu: Element, path: list[str], value: str, process: Element | None) -> Element | None:
    """Put one pair where the XML has it. Gives the process that further pairs are of."""
    if path[0] == "MIG Device":
        return None
    if path[0] == "Processes" and len(path) > 1:
        names = {"Process ID": "pid", "Type": "type", "Name": "process_name", "Used GPU Memory": "used_memory"}
        name = names.get(path[-1])
        if name == "pid" or (process is None and name):
            process = SubElement(_child(gpu, "processes"), "process_info")
        if name and process is not None:
            put(process, name, value)
        return process
    key = "/".join(part.lower() for part in path)
    put(gpu, QUERY.get(key, "else/value"), value)
    if key not in QUERY:
        _elsewhere(gpu, value)
    return process


def _table(text: str) -> Listed | None:
    if "NVIDIA-SMI" not in text and not FIRST_ROW.search(text[:HEAD]):
        return None
    document = Listed(Element("nvidia_smi_log"), made_by="nvidia-smi's table")
    gpus: dict[str, Element] = {}
    gpu: Element | None = None
    heading = is_complete = False
    for line in map(str.strip, lines(text)):
        is_complete = is_complete or line.startswith("| Processes:")
        if "NVIDIA-SMI" in line and (versions := _VERSIONS.findall(line)):
            heading = True
            for name, value in versions:
                put(document.root, {"Driver": "driver_version", "KMD": "kmd_version", "CUDA": "cuda_version",
                                 "CUDA UMD": "cuda_umd_version"}[name], value)  # fmt: skip
        elif match := _FIRST.match(line):
            gpu = gpus[match[1]] = SubElement(document.root, "gpu", id=match[4] if ":" in match[4] else "")
            put(gpu, "product_name", match[2])
            put(gpu, "persistence_mode", {"On": "Enabled", "Off": "Disabled"}.get(match[3], match[3]))
            if match[6].isdigit():
                put(gpu, "ecc_mode/current_ecc", "Enabled")
                put(gpu, "ecc_errors/volatile/uncorrectable", match[6])
            elif match[6] == "Off":
                put(gpu, "ecc_mode/current_ecc", "Disabled")
        elif gpu is not None and (match := _LOST.match(line)):
            _elsewhere(gpu, match[1] or "GPU is lost")
        elif gpu is not None and _STUCK.match(line):
            _elsewhere(gpu, "GPU requires reset")
        elif gpu is not None and (match := _SECOND.match(line)):
            put(gpu, "temperature/gpu_temp", match[1].rstrip("C"))
            put(gpu, "gpu_power_readings/current_power_limit", match[4])
            put(gpu, "fb_memory_usage/used", match[5])
            put(gpu, "fb_memory_usage/total", match[6])
            put(gpu, "compute_mode", {"E. Process": "Exclusive_Process"}.get(match[8], match[8]))
        elif gpu is not None and (match := _MIG.match(line)):
            put(gpu, "mig_mode/current_mig", match[1])
            if match[2]:
                put(gpu, "mig_mode/pending_mig", {"Enabled": "Disabled"}.get(match[1], "Enabled"))
            gpu = None
        elif (match := _PROCESS.match(line)) and match[1] in gpus:
            process = SubElement(_child(gpus[match[1]], "processes"), "process_info")
            for name, value in zip(("pid", "type", "process_name", "used_memory"), match.groups()[1:], strict=True):
                put(process, name, value)
        elif line and line[0] not in "|+" and not re.match(r"\w{3} \w{3} +\d", line):
            document.stray.append(line)
    # NVML counts the GPUs that answer from 0 on: another row was asked for by `-i`.
    lost = any("Unable to determine the device handle" in line or "lost" in line for line in document.stray)
    # Every table ends with the processes: one without them was cut, and may have had more GPUs.
    document.excerpt = not (heading and is_complete) or ({*map(int, gpus)} != {*range(len(gpus))} and not lost)
    return document if heading or gpus else None


def _list(text: str) -> Listed | None:
    if not re.search(r"^\s*GPU \d{1,3}: ", text[:HEAD], re.M):
        return None
    document = Listed(Element("nvidia_smi_log"), made_by="`nvidia-smi -L`")
    gpu: Element | None = None
    for line in lines(text):
        if match := _LISTED.match(line.strip()):
            gpu = SubElement(document.root, "gpu")
            put(gpu, "product_name", match[2])
            put(gpu, "uuid", match[3])
        elif gpu is not None and _INSTANCE.match(line):
            put(gpu, "mig_mode/current_mig", "Enabled")
            SubElement(_child(gpu, "mig_devices"), "mig_device")
        elif line.strip():
            document.stray.append(line.strip())
    return document if gpu is not None else None


_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("pci.bus_id", re.compile(BUS)),
    ("uuid", re.compile(r"GPU-[0-9a-fA-F-]{36}")),
    ("name", re.compile(r"(?:NVIDIA|Tesla|GeForce|Quadro|GRID|A100|A10)\b.*")),
)
"""What values of a CSV without a header are."""


HEAD = 65_536
"""Characters in which a list has its first GPU."""
_NUMBERED = re.compile(r"^ *index, *[a-z]", re.M)
_IDENTITY = {"pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid"}
_ROW = re.compile(rf"^(?:[^\n]{{0,400}}, *)?(?:{BUS}|GPU-[0-9a-fA-F]{{8}}-)", re.M)


def _csv(text: str) -> Listed | None:
    if not _ROW.search(text[:HEAD]) and not _NUMBERED.search(text[:HEAD]):
        return None
    document = Listed(Element("nvidia_smi_log"), made_by="`nvidia-smi --query-gpu`")
    header: list[str] = []
    for row in _rows(text):
        column_names = [re.sub(r" \[[A-Za-z/%]+\]$", "", cell) for cell in row]
        if not header and sum(name in CSV for name in column_names) >= 2:
            header = column_names
            continue
        names = header or [next((n for n, shape in _SHAPES if shape.fullmatch(cell)), "") for cell in row]
        if len(row) < 2 or len(row) != len(names) or not {*_IDENTITY, "index"} & {*names}:
            document.stray.append(", ".join(row))
            continue
        gpu = SubElement(document.root, "gpu")
        for name, value in zip(names, row, strict=True):
            if name in ("driver_version", "kmd_version"):
                put(document.root, name, value)
            elif path := CSV.get(name):
                put(gpu, path, value)
            elif value.strip("[]").lower() in _STATES:
                _elsewhere(gpu, value)
        gpu.set("id", gpu.findtext("pci/pci_bus_id") or "")
        for total in gpu.findall("totals/*"):  # the sum counts where its parts are not there
            if gpu.find(f"ecc_errors/{total.tag}/dram_uncorrectable") is None:
                put(gpu, f"ecc_errors/{total.tag}/uncorrectable", total.text or "")
    numbers = {gpu.findtext("else/index") for gpu in document.root.iterfind("gpu")}
    if header and not _IDENTITY & {*header}:  # of rows that have a number alone `-i` may have asked for
        document.excerpt = numbers != {str(n) for n in range(len(numbers))}
    return document if len(document.root) else None


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():  # all columns that there are make a header of 5 KiB
        if line.strip() and len(line) <= LONGEST:
            yield [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]


def _discovery(text: str) -> Listed | None:
    """The table of `dcgmi discovery -l`."""
    if not re.search(r"^\d+ GPUs? found\.", text, re.M):
        return None
    document = Listed(Element("nvidia_smi_log"), made_by="`dcgmi discovery -l`")
    return _blocks(text, document, _DISCOVERED, lambda m: (m[2], m[3]),
                   {"Name": "product_name", "PCI Bus ID": "id", "Device UUID": "uuid"}, "Name")  # fmt: skip


def _container(text: str) -> Listed | None:
    """`nvidia-container-cli info`."""
    if "NVRM version:" not in text or "Device Index:" not in text:
        return None
    document = Listed(Element("nvidia_smi_log"), made_by="`nvidia-container-cli info`")
    names = {"Model": "product_name", "Bus Location": "id", "GPU UUID": "uuid",
             "NVRM version": "/driver_version", "CUDA version": "/cuda_version"}  # fmt: skip
    return _blocks(text, document, _CONTAINER, lambda m: (m[1], m[2]), names, "Device Index")


def _blocks(
    text: str,
    document: Listed,
    pattern: re.Pattern[str],
    pair: Callable[[re.Match[str]], tuple[str, str]],
    names: dict[str, str],
    first: str,
) -> Listed:
    gpu: Element | None = None
    for line in lines(text):
        if (match := pattern.match(line.strip())) is None:
            continue
        key, value = pair(match)
        if key == first:
            gpu = SubElement(document.root, "gpu")
        path = names.get(key)
        if path and path.startswith("/"):
            put(document.root, path[1:], value)
        elif path == "id" and gpu is not None:
            gpu.set("id", value)
        elif path and gpu is not None:
            put(gpu, path, value)
    return document
