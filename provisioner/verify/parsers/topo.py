"""`nvidia-smi topo -m`: how every two GPUs of a node reach each other, their network cards and their NUMA nodes.

Traps: tabs or spaces, terminal escapes in the header, NICs as mlx5_* or NICn, with or without their own rows, a
legend or none, empty affinity cells, names that have grown together in the header ("NIC11NIC12") and cells that have
("PH0-115", "168-2231"): of these nothing is known, nor of what follows. `-mp` leaves NVLink out of the matrix, and its
row out of the legend. Columns are split at white space and named by the header, never by offset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool, nvidia

CELL = re.compile(r"^(NV[0-9]{1,2}|SYS|NODE|PHB|PXB|PIX|PSB|C2C|XGMI)$")
GPU = re.compile(r"^GPU[0-9]{1,3}$")
FUSED = re.compile(r"^(?:(?:GPU|NIC)[0-9]{1,3}){2,}$")
COLUMN = re.compile(
    r"^(GPU[0-9]{1,3}|NIC[0-9]{1,3}|[a-z][A-Za-z0-9]*_[A-Za-z0-9_]+|(?:ib|roce|rdma|hfi)[a-z]{0,3}[0-9][a-z0-9]*)$"
)
"""GPUs and network cards, these as NICn or by their device's name: mlx5_0, ibp26s0, rocep68s0, rdmap79s0."""
PEERS = {"OK", "NS", "CNS", "GNS", "TNS", "DR"}
"""Cells of `topo -p2p`, whose matrix looks alike (p2p.py)."""
CPUS = re.compile(r"^[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*$")
NUMA = re.compile(r"^(N/A|[0-9]{1,3}(?:[-,][0-9]{1,3})*)$")
PIX, NVLINK = re.compile(r"^[ \t]*PIX +(?:= *)?Connection", re.M), re.compile(r"^[ \t]*NV#? ", re.M)
"""The last row of the legend that `-mp` has, and the one after it, which only `-m` has."""
NAMED = re.compile(r"^\s*(NIC[0-9]{1,3}):\s+(\S{1,60})$")


@dataclass(frozen=True, slots=True)
class Topology:
    """`cells["GPU0"]["GPU1"]` is NV12, SYS, …, or None where the two halves of the matrix disagree or say nothing."""

    cells: dict[str, dict[str, str | None]]
    nics: tuple[str, ...]
    near: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """`near["GPU0"]["NIC0"]`: the path to a network card."""
    names: dict[str, str] = field(default_factory=dict)
    """What the legend calls each NIC column."""
    numa: dict[str, str | None] = field(default_factory=dict)
    """NUMA node of each GPU as printed ("0", "0-1", "N/A"); None where the row has no such cell."""


def parse(text: str) -> Topology:
    columns: list[str] = []
    rows: dict[str, list[str]] = {}
    strangers: list[str] = []
    names: dict[str, str] = {}
    titles = ""
    for line in lines(text):
        tokens = line.split()
        if not tokens:
            continue
        if not columns:
            # The header is the first line of column names; a row has a cell in second place.
            names_read, remaining = _leading_columns(tokens)
            if names_read and GPU.match(names_read[0]) and (not remaining or remaining[0] in ("CPU", "NUMA")):
                columns = names_read
                titles = " ".join(remaining)
        elif GPU.match(tokens[0]) and tokens[0] in columns and tokens[0] not in rows:
            rows[tokens[0]] = tokens[1:]
        elif GPU.match(tokens[0]) and tokens[0] not in columns:
            strangers.append(tokens[0])
        elif match := NAMED.match(line):
            names[match[1]] = match[2]
    if not columns:
        raise Unreadable(f"no matrix: {first_line(text)}")
    gpus = [c for c in columns if GPU.match(c)]
    readable_rows = {a: row for a, row in rows.items() if all(c == "X" or CELL.match(c) for c in row[: len(columns)])}
    raw = {a: {b: _cell(rows.get(a), columns.index(b)) for b in gpus if b != a} for a in gpus}
    agreed = {a: {b: (v if raw[b][a] == v else None) for b, v in row.items()} for a, row in raw.items()}
    if not rows:
        raise Unreadable("the matrix has a header and no rows")
    if any(PEERS & {*row} for row in rows.values()):
        raise Unreadable("a matrix of `topo -p2p`, not of `topo -m`")
    linked = any((cell or "").startswith("NV") for row in agreed.values() for cell in row.values())
    if PIX.search(text) and not NVLINK.search(text) and not linked:
        # The path by PCIe is no proof that there is none by NVLink.
        agreed = {a: dict.fromkeys(row) for a, row in agreed.items()}
    if strangers:
        raise Unreadable(f"the matrix has a row {strangers[0]} and no such column: its header was cut or wrapped")
    nics = tuple(c for c in columns if not GPU.match(c))
    return Topology(
        cells=agreed,
        nics=nics,
        near={gpu: {nic: _cell(_till_fused(rows.get(gpu)), columns.index(nic)) for nic in nics} for gpu in gpus},
        names=names,
        numa={gpu: _numa(readable_rows.get(gpu, [])[len(columns) :], titles) for gpu in gpus},
    )


def _leading_columns(tokens: list[str]) -> tuple[list[str], list[str]]:
    """The names of columns that a line begins with, and its other words."""
    names: list[str] = []
    for position, token in enumerate(tokens):
        if FUSED.match(token):
            names += re.findall(r"[A-Z]+[0-9]+", token)
        elif COLUMN.match(token):
            names.append(token)
        else:
            return names, tokens[position:]
    return names, []


def _cell(row: list[str] | None, position: int) -> str | None:
    if row is None or position >= len(row):
        return None
    return row[position] if CELL.match(row[position]) else None


def _till_fused(row: list[str] | None) -> list[str] | None:
    """A row up to a cell that has run together with the next ("PH0-115"): what follows stands in another column."""
    if row is None:
        return None
    end = next((at for at, cell in enumerate(row) if cell != "X" and not CELL.match(cell)), len(row))
    return row[:end]


def _numa(cells: list[str], titles: str) -> str | None:
    """What stands under "NUMA Affinity": the cell after the CPU list. Empty cells leave no trace, so that a row is
    only believed where both are there."""
    if "NUMA Affinity" not in titles or not cells:
        return None
    if not titles.startswith("CPU Affinity"):
        return cells[0] if NUMA.match(cells[0]) else None
    # With a third title two cells may be three that have run together ("168-2231" is 168-223 and node 1).
    if (
        len(cells) < (3 if "GPU NUMA ID" in titles else 2)
        or not (CPUS.match(cells[0]) or cells[0] == "N/A")
        or not NUMA.match(cells[1])
    ):
        return None
    return cells[1]


TOOLS = (
    Tool(
        file="topo.txt",
        field="topo",
        parse=parse,
        command=("nvidia-smi", "topo", "-m"),
        seconds=30,
        when=nvidia,
        merge=True,
        document={
            "topology": lambda topology: topology.cells,
            "nics_near": lambda topology: topology.near,
            "numa": lambda topology: topology.numa,
            "nic_names": lambda topology: topology.names,
        },
    ),
)
