"""The nodes of one run of the checks: their bundles read to facts, on all cores where there are many."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from provisioner.verify import facts_pickle, growth
from provisioner.verify.baseline import Baseline, gpu_identities, measured
from provisioner.verify.bundle import Bundle
from provisioner.verify.check_runner import NodeUnderTest
from provisioner.verify.document import DETAILED
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, read
from provisioner.verify.facts_document import facts_document, facts_entry
from provisioner.verify.peers import Peers

to_json = json.JSONEncoder(default=str).encode


DOCUMENT = 4 << 20
"""Characters of a node's facts as JSON, at most: eight B200 with all that is read of them have a twentieth."""

MANY = 32
"""Nodes from which on reading and judging them is worth a process for each core: 20 ms a node, against 0.1 s to
start."""
TOGETHER = 64
"""Nodes at most whose facts are handed over in one piece, in which what they have in common stands once."""


Position = tuple[Path, int]
"""The file with the nodes, and where one of them begins."""
Reading = tuple[Facts, str, dict[str, Any]]


def cores() -> int:
    """Processes that work at once."""
    return min(len(os.sched_getaffinity(0)), 8)


def nodes_of(input_file: Path) -> Iterator[tuple[NodeUnderTest, str]]:
    """The nodes that pytest_runner.py gives, each with its record as a line for the output. Many are read on all cores;
    records of more than DETAILED have no document (`late_document`)."""
    data = json.loads(input_file.read_bytes())
    expectations = [Expected.from_json(expectation) for expectation in data["expectations"]]
    places = [(input_file.with_suffix(".nodes"), start) for start in data["nodes"]]
    read_one = partial(_read, document=len(places) <= DETAILED)
    several = len(places) >= MANY and cores() > 1
    for facts, line, node in _read_by_several(read_one, places) if several else map(read_one, places):
        expected = expectations[node["expects"]]
        record = Baseline.from_json(node["baseline"]) if node["baseline"] is not None else None
        yield NodeUnderTest(node["node"], facts, expected, node["host"], node["group"], record), line


def _read_by_several(read_one: Callable[[Position], Reading], positions: list[Position]) -> Iterator[Reading]:
    """In several processes. One that ends (out of memory, say) ends them all: what was not read then is read node by
    node, each in a process of its own."""
    size = min(TOGETHER, math.ceil(len(positions) / (4 * cores())))
    parts = [positions[first : first + size] for first in range(0, len(positions), size)]
    done = 0
    with _processes(cores()) as pool:
        pieces = [_submitted(pool, read_one, part) for part in parts]
        while done < len(parts) and (data := _result(pieces[done])) is not None:
            pieces[done], done = None, done + 1  # its bytes are of no more use
            yield from facts_pickle.loads(data)
    for part, piece in zip(parts[done:], pieces[done:], strict=True):
        data = _result(piece)
        yield from facts_pickle.loads(data) if data else (_read_alone(read_one, position) for position in part)


def _processes(number: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("fork"), initializer=gc.disable)


def _submitted(
    pool: ProcessPoolExecutor, read_one: Callable[[Position], Reading], part: list[Position]
) -> Future[bytes] | None:
    """None where no process can be started, or the others have ended."""
    try:
        return pool.submit(_read_several, read_one, part)
    except (OSError, BrokenExecutor):
        return None


def _result(piece: Future[bytes] | None) -> bytes | None:
    try:
        return piece.result() if piece is not None else None
    except BrokenExecutor:
        return None


def _read_alone(read_one: Callable[[Position], Reading], position: Position) -> Reading:
    with _processes(1) as alone:
        data = _result(piece := _submitted(alone, read_one, [position]))
    if data is None and piece is not None:
        return _unread(position, "the process that read its answers was killed")
    reading: Reading = facts_pickle.loads(data)[0] if data is not None else read_one(position)
    return reading


def _unread(position: Position, reason: str) -> Reading:
    """Of a node whose answers nobody can read."""
    with position[0].open("rb") as stream:
        stream.seek(position[1])
        head = json.loads(stream.readline())
    entry = {name: value for name, value in head.items() if name not in ("bundle", "bytes")}
    facts = read(Bundle(error=reason))
    return _reading(facts, entry, to_json(facts_document(facts)), fabric=None, measures={}, looks=None)


def _read_several(read_one: Callable[[Position], Reading], places: list[Position]) -> bytes:
    return facts_pickle.dumps([read_one(position) for position in places])


def _read(position: Position, *, document: bool) -> Reading:
    """Facts of the node that begins at a place of the file, their record as a line, with the `facts` document where
    that is wanted, and what else was given of it."""
    with position[0].open("rb") as stream:
        stream.seek(position[1])
        bundle, data = Bundle.receive(stream)
    facts = read(bundle)
    try:
        entries = {"fabric": facts_entry(facts, "fabric"), "measures": measured(facts), "looks": growth.looks(facts)}
        document_text = to_json(facts_document(facts)) if document or bundle.characters > DOCUMENT else ""
        if len(document_text) <= DOCUMENT:
            return _reading(facts, data, document_text if document else "", **entries)
        reason = f"its answers hold more than {DOCUMENT // 2**20} MiB of facts"
    except Exception as error:
        reason = f"its answers could not be read: {type(error).__name__}: {error}"[:200]
    return _unread(position, reason)


def _reading(facts: Facts, data: dict[str, Any], document_text: str, **entries: Any) -> Reading:
    """`document_text`: the `facts` document, which stays a string in the record: it is parsed if somebody looks at it.
    Empty where the record has none."""
    record = {"kind": "facts", "node": data["node"], **entries}
    record["gpus"] = [asdict(gpu) for gpu in gpu_identities(facts)]
    return facts, to_json(record | ({"facts": document_text} if document_text else {})) + "\n", data


def late_document(node: NodeUnderTest) -> str:
    """The document of a node whose record had none, as a line for the output; "" where it can't be made or is more than
    DOCUMENT: the node was judged all the same."""
    try:
        document_text = to_json(facts_document(node.facts))
    except Exception:
        return ""
    return (
        to_json({"kind": "document", "node": node.name, "facts": document_text}) + "\n"
        if len(document_text) <= DOCUMENT
        else ""
    )


def peers_by_node(nodes: Iterable[NodeUnderTest]) -> dict[str, Peers]:
    """Node name → the nodes of its group, itself among them."""
    groups: dict[str, dict[str, Facts]] = {}
    for node in nodes:
        groups.setdefault(node.group or f"{node.name} alone", {})[node.name] = node.facts
    return {name: peers for members in groups.values() for peers in [Peers(members)] for name in members}
