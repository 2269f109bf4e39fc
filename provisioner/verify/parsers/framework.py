"""framework.json: what python3 in each locked image says of torch, CUDA and NCCL.

Written by the probe as {"images": [{"reference", "rc", "timed_out", "missing", "output"}]}, where `output` is what the
script printed; one such report as a plain object ({"torch": …}) is read as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Framework:
    """Versions as the image's Python reports them; `gpus` is torch.cuda.device_count(), `error` why it did not run."""

    reference: str | None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    python: str | None = None
    gpus: int | None = None
    error: str = ""


def parse(text: str) -> tuple[Framework, ...]:
    data = _json(text)
    if isinstance(data, dict) and isinstance(data.get("images"), list):
        data = data["images"]
    entries = data if isinstance(data, list) else [data]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise Unreadable("no report of an image in it")
    return tuple(_read_entry(entry) for entry in entries)


def _read_entry(entry: dict[str, Any]) -> Framework:
    reference = _text(entry.get("reference"))
    if "output" not in entry and "rc" not in entry:
        if not {"torch", "cuda", "nccl", "python"} & set(entry):
            raise Unreadable("a report without torch, cuda, nccl or python")
        return _versions(reference, entry)
    output = entry.get("output") if isinstance(entry.get("output"), str) else ""
    if entry.get("timed_out") is True:
        return Framework(reference, error="did not answer within its deadline")
    if entry.get("missing") is True:
        return Framework(reference, error="docker is not installed")
    # Entry points of images print banners: the report is the last line that is an object.
    for line in reversed((output or "").splitlines()):
        if line.strip().startswith("{"):
            try:
                report = _json(line)
            except Unreadable:
                continue
            if isinstance(report, dict):
                return _versions(reference, report)
    error_text = first_line(_text(entry.get("error")) or output or "")
    return Framework(reference, error=f"exit status {entry.get('rc')}: {error_text}")


def _versions(reference: str | None, report: dict[str, Any]) -> Framework:
    gpus = report.get("gpus", report.get("device_count"))
    return Framework(
        reference=reference,
        torch=_text(report.get("torch")),
        cuda=_text(report.get("cuda")),
        nccl=_text(report.get("nccl")),
        python=_text(report.get("python")),
        gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None,
        error=_text(report.get("error")) or "",
    )


def _text(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(part, int) for part in value):
        return ".".join(str(part) for part in value)  # torch.cuda.nccl.version() is a tuple
    return value.strip()[:200] if isinstance(value, str) and value.strip() else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error


TOOLS = (
    Tool(
        file="framework.json",
        field="frameworks",
        parse=parse,
        asked="load",
        label="python3 in each locked image",
    ),
)
