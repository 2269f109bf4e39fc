"""`nvidia-smi nvlink -e`: error counters of each NVLink.

Traps: NVLink 2 to 4 count Replay, Recovery and CRC (whole, or flit and data apart), NVLink 5 counts other things and
mixes bit error rates among them; blank lines between links; MIG answers nothing; a link that is down has no counter.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool, nvidia

_GPU = re.compile(r"^\s*GPU ([0-9]{1,3}): ")
_COUNTER = re.compile(r"^\s*Link ([0-9]{1,3}): ([A-Za-z][A-Za-z0-9 /_-]{0,60}?): ([0-9]{1,20})$")

Counters = dict[str, int]
"""Counter name as printed, in lower case and without "errors" → count."""


def parse(text: str) -> dict[int, dict[int, Counters]]:
    """GPU index → link → counters. A GPU that answers nothing has no link. Rates and words in a counter's place are
    left out."""
    rows = lines(text)
    heads = [(index, int(match[1])) for index, row in enumerate(rows) if "GPU" in row and (match := _GPU.match(row))]
    if not heads:
        raise Unreadable(f"no GPU in it: {first_line(text)}")
    below: dict[int, tuple[str, ...]] = {}
    for (index, gpu), end in zip(heads, [*(index for index, _ in heads[1:]), len(rows)], strict=True):
        below[gpu] = below.get(gpu, ()) + tuple(rows[index + 1 : end])
    links_by_gpu = {gpu: _links(printed) for gpu, printed in below.items()}
    # Every link counts the same things: the last one lacks some where the output was cut.
    last = heads[-1][1]
    links = list(links_by_gpu[last].values())
    if links and len(links[-1]) < len(links[0]):
        raise Unreadable(f"link {list(links_by_gpu[last])[-1]} of GPU {last} counts less than others: it was cut")
    return links_by_gpu


@lru_cache(64)
def _links(rows: tuple[str, ...]) -> dict[int, Counters]:
    """Link → counters, of one GPU's rows. Those of GPUs that count the same are one object."""
    counters_by_link: dict[int, Counters] = {}
    for row in rows:
        if match := _COUNTER.match(row):
            link, printed, count = match.groups()
            name = _name(printed)
            counters = counters_by_link.setdefault(int(link), {})
            counters[name] = max(counters.get(name, 0), int(count))
    return counters_by_link


@lru_cache(256)
def _name(printed: str) -> str:
    return re.sub(r"\s*\berrors?\b", "", printed.lower()).strip() or "errors"


def _document(errors: dict[int, dict[int, Counters]]) -> dict[str, Any]:
    return {str(gpu): {str(link): counts for link, counts in links.items()} for gpu, links in errors.items()}


LOOK = Tool(
    file="nvlink-errors.txt",
    added_later=True,
    field="nvlink_errors",
    parse=parse,
    command=("nvidia-smi", "nvlink", "-e"),
    seconds=30,
    when=nvidia,
    merge=True,
    document={"nvlink_errors": _document},
)
TOOLS = (
    LOOK,
    replace(LOOK, file="nvlink-errors-after.txt", field="after.nvlink_errors", asked="after",
            label="nvidia-smi nvlink -e after the load", document={}),
)  # fmt: skip
