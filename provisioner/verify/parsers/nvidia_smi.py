"""`nvidia-smi -q -x`: what the driver says of every GPU, DTD v10 to v13 or without a DOCTYPE. In a bundle its other
forms are read too (nvidia_smi_text.py).

Traps: `attached_gpus` can disagree with the number of <gpu> elements; "GPU is lost" sits inside values while the
ECC mode stays Enabled; ECC counters are single_bit/double_bit (Pascal), sram/dram (Ampere) or split parity/SEC-DED;
idle GPUs stand at PCIe generation 1; two GPUs can share a board serial; throttle reasons, power readings and the
remapper moved between branches; messages of the library stand among the elements.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal
from xml.etree import ElementTree

from provisioner.verify.parsers import Unreadable, first_line, nvidia_smi_text, nvidia_smi_xml, pci, whole_number
from provisioner.verify.parsers.nvidia_smi_facts import Gpu, Process, Smi
from provisioner.verify.parsers.nvidia_smi_gpu import ALARMING, THROTTLE, read_gpu, reported_text
from provisioner.verify.tool import Tool, further_looks, nvidia

__all__ = ["THROTTLE", "Failure", "Gpu", "Process", "Smi", "failure", "joined", "parse"]

UNREACHABLE = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU)[ :]*(?:(?:[0-9]{1,3}: *)?"
    r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b|([0-9]{1,3}): )"
)
"""A GPU's address, in newer branches behind its index; in some there is no space before either. Where the driver has
forgotten the address there is the index alone."""

COMPLAINT = re.compile(
    r"inforom|^\W*(?:warning|error):|^(?:NVIDIA-SMI has |nvidia-smi: )?(?:unable|failed) to\b|\bis lost\b"
    r"|\breboot the system\b",
    re.I,
)
"""A line of nvidia-smi's own beside its answer; prompts, titles and what people write around it are none."""
Failure = Literal["mismatch", "no-driver"]


def failure(text: str) -> Failure | None:
    """nvidia-smi answered, but could not speak with the driver."""
    low = text.lower()
    if "driver/library version mismatch" in low:
        return "mismatch"
    if "communicate with the nvidia driver" in low or "driver not loaded" in low:
        return "no-driver"
    return None


def joined(text: str, error: str) -> str:
    """The document with what nvidia-smi says of its GPUs on standard error; complaints of others are left out."""
    if not error or "<nvidia_smi_log" not in text:
        return text
    complaints = [line for line in error.splitlines() if UNREACHABLE.search(line) or "inforom" in line.lower()]
    return text + "\n" + "\n".join(complaints)


def parse(text: str) -> Smi:
    low = text.lower()
    if "no devices were found" in low and "<gpu" not in text:
        return Smi(None, None, 0, (), unreachable=_unreachable(text))
    # The prologue is left out: nothing in it is needed, and an encoding or an entity in it could only do harm.
    start = max(text.find("<nvidia_smi_log"), 0)
    end = text.rfind("</nvidia_smi_log>")
    if "<nvidia_smi_log" not in text:
        return _other_form(text)
    if end < 0:
        raise Unreadable(f"no complete XML document, it was cut after: {first_line(text.rstrip().splitlines()[-1])}")
    end += len("</nvidia_smi_log>")
    try:
        document = nvidia_smi_xml.read(text[start:end])
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"not XML: {error}") from error
    except RecursionError as error:
        raise Unreadable("elements within elements without an end") from error
    # A reference can stand for any character of a word.
    alarming = "&" in text or any(term in low for term in ALARMING)
    return _smi(document, [text[:start], text[end:]], alarming=alarming)


def _other_form(text: str) -> Smi:
    """`nvidia-smi -q`, its table, -L, --query-gpu …; or only what the library says of GPUs that it cannot open."""
    if (listed := nvidia_smi_text.read(text)) is not None and listed.root.find("gpu") is not None:
        smi = _smi(nvidia_smi_xml.walk(listed.root), ["\n".join(listed.stray)])
        return replace(smi, made_by=listed.made_by, excerpt=listed.excerpt)
    if unreachable := _unreachable(text):  # nvidia-smi has ended there: of the others it says nothing
        return Smi(None, None, None, (), unreachable=unreachable, excerpt=True)
    raise Unreadable(f"it lists no GPUs: {first_line(text)}")


def _smi(document: nvidia_smi_xml.Document, around: list[str], *, alarming: bool = True) -> Smi:
    """The document, and the texts around it; `alarming` as for read_gpu."""
    around = [*around, *document.stray]
    top, indexes = document.top.texts, _indexes(document.gpus, around)
    gpus = [read_gpu(index, gpu, alarming=alarming) for index, gpu in zip(indexes, document.gpus, strict=True)]
    blank_characters = " \t\r\x00\ufeff"
    messages = [
        line.strip(blank_characters)[:200]
        for part in around
        for line in part.splitlines()
        if line.strip(blank_characters)
    ]
    messages = [line for line in messages if COMPLAINT.search(line)]
    return Smi(
        driver_version=_version(reported_text(top, "driver_version") or reported_text(top, "kmd_version")),
        cuda_version=_version(reported_text(top, "cuda_version") or reported_text(top, "cuda_umd_version")),
        attached_gpus=whole_number(reported_text(top, "attached_gpus")),
        gpus=tuple(gpus),
        warnings=tuple(dict.fromkeys(line for line in messages if not UNREACHABLE.search(line))),
        unreachable=_unreachable("\n".join(messages)),
    )


def _version(text: str | None) -> str | None:
    """A version without what newer branches say behind it ("590.48.01. [Deprecated …]")."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", text or "")
    return match[0] if match else None


def _unreachable(text: str) -> tuple[str, ...]:
    """Addresses, or else numbers ("GPU 2"), of GPUs that the library names and cannot open."""
    return tuple(
        dict.fromkeys(pci(match[1]) if match[1] else f"GPU {int(match[2])}" for match in UNREACHABLE.finditer(text))
    )


def _indexes(gpus: list[nvidia_smi_xml.Walked], around: list[str]) -> list[int]:
    """nvidia-smi's own numbers of the listed GPUs. It counts all by their addresses, those that it cannot open too."""
    unreachable = set(_unreachable("\n".join(around)))
    addresses = [pci(gpu.id or gpu.texts.get("pci/pci_bus_id") or "") for gpu in gpus]
    if not unreachable or len(set(addresses)) != len(addresses) or unreachable & {*addresses}:
        return list(range(len(gpus)))
    if numbered := {name for name in unreachable if name.startswith("GPU ")}:
        free = (n for n in range(len(gpus) + len(numbered)) if f"GPU {n}" not in numbered)
        return [next(free) for _ in gpus]
    return [i + sum(lost < address for lost in unreachable) for i, address in enumerate(addresses)]


COMMAND = ("nvidia-smi", "-q", "-x")
CLOCKS = r"<supported_clocks>.*?</supported_clocks>\s*"
"""The lists of clocks that a GPU could have: nine tenths of the document."""
LOOK = Tool(
    file="nvidia-smi.xml",
    field="smi",
    parse=parse,
    command=COMMAND,
    seconds=30,
    when=nvidia,
    omit=CLOCKS,
    momentary=r"<clocks_(?:event|throttle)_reason_hw_\w*slowdown>\s*Active\s*<",
    training=r"<fabric>\s*<state>\s*In Progress\s*<",
    complaint_answers=True,
    joined=joined,
    document={
        "cuda_version": lambda smi: smi.cuda_version,
        "attached_gpus": lambda smi: smi.attached_gpus,
        "warnings": lambda smi: list(smi.warnings),
        "unreachable": lambda smi: list(smi.unreachable),
        "listed_by": lambda smi: smi.made_by or None,
    },
)
TOOLS = (
    LOOK,
    *further_looks(LOOK),
    replace(LOOK, file="nvidia-smi-load.xml", field="under_load", asked="during", complaint_answers=False,
            label="nvidia-smi -q -x under load", document={}, momentary="", training=""),
    replace(LOOK, file="nvidia-smi-after.xml", field="after.smi", asked="after", complaint_answers=False,
            label="nvidia-smi -q -x after the load", document={}, momentary="", training=""),
)  # fmt: skip
