"""The nodes of one run of the checks: their bundles read to facts, on all cores where there are many."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from provisioner.verify import facts_pickle, growth
from provisioner.verify.baseline import Baseline, measured
from provisioner.verify.bundle import Bundle
from provisioner.verify.check_runner import NodeUnderTest
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.peers import Peers

to_json = json.JSONEncoder(default=str).encode


DOCUMENT = 4 << 20
"""Characters of a node's facts as JSON, at most: eight B200 with all that is read of them have a twentieth."""

MANY = 32
"""Nodes from which on reading them is worth a process for each core: 20 ms a node, against 0.1 s to start."""
TOGETHER = 8
"""Nodes whose facts are handed over in one piece, in which what they have in common stands once."""


def nodes_of(given: Path) -> Iterator[tuple[NodeUnderTest, str]]:
    """The nodes that pytest_runner.py gives, with their `facts` documents as lines for the output. Facts of many nodes
    are read on all cores."""
    data = json.loads(given.read_bytes())
    expectations = [Expected.from_json(one) for one in data["expectations"]]
    places = [(given.with_suffix(".nodes"), start) for start in data["nodes"]]
    cores = min(len(os.sched_getaffinity(0)), 8)
    with ExitStack() as stack:
        found: Iterable[tuple[Facts, str, dict[str, Any]]] = map(_read, places)
        if len(places) >= MANY and cores > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(cores, gc.disable))
            parts = [places[first : first + TOGETHER] for first in range(0, len(places), TOGETHER)]
            found = chain.from_iterable(map(facts_pickle.loads, pool.imap(_read_several, parts)))
        for facts, document, node in found:
            expected = expectations[node["expects"]]
            record = Baseline.from_json(node["baseline"]) if node["baseline"] is not None else None
            yield NodeUnderTest(node["node"], facts, expected, node["host"], node["group"], record), document


def _read_several(places: list[tuple[Path, int]]) -> bytes:
    return facts_pickle.dumps([_read(place) for place in places])


def _read(place: tuple[Path, int]) -> tuple[Facts, str, dict[str, Any]]:
    """Facts of the node that begins at a place of the file, their document as a line, and what else was given of it."""
    with place[0].open("rb") as stream:
        stream.seek(place[1])
        bundle, data = Bundle.receive(stream)
    facts = read(bundle)
    try:
        document, reached, looks = to_json(facts_document(facts)), measured(facts), growth.looks(facts)
        why = f"its answers hold more than {DOCUMENT // 2**20} MiB of facts" if len(document) > DOCUMENT else ""
    except Exception as error:
        why = f"its answers could not be read: {type(error).__name__}: {error}"[:200]
    if why:
        facts = read(Bundle(error=why))
        document, reached, looks = to_json(facts_document(facts)), {}, None
    # The document is a string in this record: it is parsed if somebody looks at it.
    found = {"kind": "facts", "node": data["node"], "facts": document, "measures": reached, "looks": looks}
    return facts, to_json(found) + "\n", data


def peers_by_node(nodes: Iterable[NodeUnderTest]) -> dict[str, Peers]:
    """Node name → the nodes of its group, itself among them."""
    groups: dict[str, dict[str, Facts]] = {}
    for node in nodes:
        groups.setdefault(node.group or f"{node.name} alone", {})[node.name] = node.facts
    return {name: peers for members in groups.values() for peers in [Peers(members)] for name in members}
