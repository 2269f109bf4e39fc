"""`nvidia-smi -q`: what `-q -x` has, with the labels of the real text (smi_q.shape)."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree import ElementTree

HIDDEN = frozenset(("supported_gpu_target_temp", "power_state", "accounted_processes", "supported_clocks"))
"""Elements that the text has not."""
RETIRED = (
    ("multiple_single_bit_retirement/retired_count", "Single Bit ECC"),
    ("double_bit_retirement/retired_count", "Double Bit ECC"),
    ("pending_retirement", "Pending Page Blacklist"),
)
INITIALS = {"gpu": "GPU", "ecc": "ECC", "mig": "MIG", "vbios": "VBIOS", "fb": "FB", "bar1": "BAR1", "sram": "SRAM"}
INITIALS |= {"dram": "DRAM", "sm": "SM", "cuda": "CUDA", "gpus": "GPUs", "pci": "PCI"}
WIDE_SINCE = 570
"""Branch since which the labels take 55 columns: captures of 510 and 535 have 42, those of 580, 590 and 610 have 55;
of the branches between there is none."""


def text(document: str, branch: int) -> str:
    """`document`: what `-q -x` prints with a driver of that branch."""
    from xml.etree import ElementTree  # only here

    root = ElementTree.fromstring(document)  # noqa: S314 - our own text
    width = 55 if branch >= WIDE_SINCE else 42
    out = "\n==============NVSMI LOG==============\n(simulated by gpuprov)\n\n"
    labels = _labels() if branch >= WIDE_SINCE else _labels() | {"gpu_util": "Gpu"}
    for element in root:
        if element.tag == "attached_gpus":
            out += "\n"
        if element.tag != "gpu":
            out += f"{_label(labels, '', element.tag):<{width}}: {element.text}\n"
    for gpu in root.findall("gpu"):
        lines = (f"{label:<{width}}: {value}\n" if value else f"{label}\n" for label, value in _lines(labels, gpu, 1))
        out += f"GPU {gpu.get('id')}\n" + "".join(lines) + "\n"
    return out


def _labels() -> dict[str, str]:
    with open(os.path.join(os.path.dirname(__file__), "smi_q.shape"), encoding="utf-8") as stream:
        rows = [line.rstrip("\n").partition(" ") for line in stream if not line.startswith("#")]
    return {tag: label for tag, _, label in rows}


def _label(labels: dict[str, str], parent: str, tag: str) -> str:
    terms = (INITIALS.get(part, part.capitalize()) for part in tag.split("_"))
    return labels.get(f"{parent}/{tag}") or labels.get(tag) or " ".join(terms)


def _lines(labels: dict[str, str], element: ElementTree.Element, depth: int) -> Iterator[tuple[str, str]]:
    """Label with its indent, and value; a heading has none."""
    pad = "    " * depth
    for child in element:
        if child.tag == "mig_devices":
            yield from _lines(labels, child, depth)
        elif child.tag == "retired_pages":
            yield f"{pad}Retired Pages", ""
            for path, label in RETIRED:
                yield f"{pad}    {label}", child.findtext(path) or "N/A"
        elif child.tag not in HIDDEN:
            value = (child.text or "").strip()
            yield pad + _label(labels, element.tag, child.tag), "" if len(child) else value or "None"
            yield from _lines(labels, child, depth + 1)
