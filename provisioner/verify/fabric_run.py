"""Several nodes at work: runs the rounds that fabric.py asks for, on all groups at once; each node's verdict.

A set of nodes is one run of load/multi_node_launcher.py on each of them, in the locked image, over the probe's own way
(collect.py). The rendezvous is on the first node's address in the group's network, at a port that is drawn for each
run. What a node did comes back as its part of fabric.json; what this module makes of all parts is the fabric.json of
its bundle, which parsers/fabric.py reads.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files as resources
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from provisioner.events import Events
from provisioner.text import counted
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.collect import collect
from provisioner.verify.expectations import Expected
from provisioner.verify.fabric import Met, Search, Verdict, most_rounds, wrong_way
from provisioner.verify.facts import read_file
from provisioner.verify.parsers.load import Load, parse
from provisioner.verify.probe.perftest import RAILS_S
from provisioner.verify.request import load_request

if TYPE_CHECKING:
    from provisioner.verify.run import Subject

FILE = "fabric.json"
OPTIONS: Mapping[str, Mapping[str, int]] = {
    "standard": {"budget": 10, "largest": 2},
    "stress": {"budget": 40, "largest": 4},
}
"""Of the load program by level: seconds for the messages, and the largest in GiB; most limits were measured with 1 or
2 (limits.yaml)."""
SET_S, MORE_S = 180.0, 2.0
"""Deadline of a set: a first import of PyTorch from a cold disk takes a minute, NCCL's start seconds and for each
further node some more, the messages OPTIONS' budget."""
REHEARSED_S = 30.0
WAY_S = 45.0
"""For the connection, and for killing and removing what did not end."""
CARD_BY_CARD_S = RAILS_S + 10.0
"""For the rails of two nodes, at level stress."""
TOTAL_S = 1800.0
"""After that no further run begins: half an hour of a fleet is what this is worth."""
AT_ONCE = 256
"""Nodes that run at once: each costs this computer an ssh of some megabytes. More take turns, set by set."""
PORTS = range(20_000, 30_000)
"""Below Linux's ports for outgoing connections (ip_local_port_range: 32768 and up)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that takes part: how to run a shell command on it, and its address in the group's network."""

    name: str
    reach: Sequence[str]
    address: str
    expected: Expected


def fabric(
    subjects: Sequence[Subject], bundles: Mapping[str, Bundle], *, events: Events, total_s: float = TOTAL_S
) -> dict[str, Bundle]:
    """The bundles of those nodes that their level lets meet others, with what came of it: at stress each group that has
    a network for jobs of several nodes, at standard those with RDMA, in pairs alone and for seconds."""
    told: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[str, str], list[Member]] = {}
    for subject in subjects:
        bundle, level = bundles[subject.name], _level(subject.expected)
        if not level or bundle.error:
            continue
        if subject.way is None:  # a bundle that was there already has its fabric.json, or never will
            if FILE not in bundle.files and level == "standard":
                said = "judged from its bundle, without the other nodes of its group"
                told[subject.name] = _verdict_of_none("alone", said)
        elif (reason := _not_now(subject, bundle)) is not None:
            told[subject.name] = reason
        else:
            member = Member(subject.name, subject.way, subject.address, subject.expected)
            groups.setdefault((subject.site, subject.group), []).append(member)
    for members in groups.values():
        if len(members) == 1:
            told[members[0].name] = _verdict_of_none("alone", "no other node of its group could be tested in this run")
    told |= _searched([members for members in groups.values() if len(members) > 1], events, total_s)
    return {
        name: replace(bundles[name], files={**bundles[name].files, FILE: Output(json.dumps(verdict), rc=0)})
        for name, verdict in told.items()
    }


def _level(expected: Expected) -> str:
    """The level at which a node meets others, a key of OPTIONS; "" where it meets nobody."""
    if expected.level == "stress" and expected.fabric:
        return "stress"
    return "standard" if expected.level == "standard" and expected.fabric == "rdma" else ""


def _not_now(subject: Subject, bundle: Bundle) -> dict[str, Any] | None:
    """Why a node meets nobody; None where it does."""
    if not subject.group:
        return _verdict_of_none("alone", "verified alone, without the other nodes of its group")
    if not any(image.get("torch") for image in subject.expected.images or ()):
        return _verdict_of_none("alone", "no locked image has PyTorch")
    if not subject.address:
        return _verdict_of_none("untested", "its address in the group's network is not known")
    load = _read(bundle, "load.json")
    if load is not None and load.state == "busy":
        return _verdict_of_none("busy", f"not tested: a job is using the GPUs: {', '.join(load.busy[:3])}")
    if load is None or not load.finished:
        return _verdict_of_none("untested", "its own load test did not complete, so none with other nodes was started")
    if load.ranks is not None and load.ranks < subject.expected.gpu_count:
        # Its partners would be told that a path is bad, and it is this node that lacks a GPU.
        took = f"{load.ranks} of {counted(subject.expected.gpu_count, 'GPU')} took part in its own load"
        return _verdict_of_none("untested", f"only {took}, so no test with other nodes was started")
    return None


def _verdict_of_none(state: str, why: str) -> dict[str, Any]:
    return {"state": state, "why": why}


def _read(bundle: Bundle, name: str) -> Load | None:
    """load.json, or a node's part of fabric.json, which says the same; None where it says nothing."""
    return read_file(name, bundle, parse)[0]


def _searched(groups: Sequence[Sequence[Member]], events: Events, total_s: float) -> dict[str, dict[str, Any]]:
    """Rounds until every group's search has ended or the time is up; each node's verdict."""
    if not groups:
        return {}
    members = {member.name: member for group in groups for member in group}
    searches = [_search(group) for group in groups]
    brief = all(search.brief for search in searches)
    rounds = max(most_rounds(len(group), rings=not brief) for group in groups)
    longest = max(_deadline(tuple(group)) + CARD_BY_CARD_S + WAY_S for group in groups)
    # The last round may begin just before the end.
    turns = rounds * len(list(_batches([tuple(group[i : i + 2]) for group in groups for i in range(0, len(group), 2)])))
    doing = f"{counted(len(members), 'node')} in pairs{'' if brief else ' and rings'}, at most {rounds} rounds"
    events("verify", "started", doing, until=time() + min(turns * longest, total_s + longest))
    begun, turn, late = monotonic(), 0, False
    while not late and (wanted := [(search, sets) for search in searches if (sets := search.next_round())]):
        turn += 1
        sizes = [len(nodes) for _, sets in wanted for nodes in sets]
        what = (
            f"{counted(len(sizes), 'pair')}"
            if max(sizes) == 2
            else f"{counted(len(sizes), 'ring')} of up to {counted(max(sizes), 'node')}"
        )
        events("verify", "progress", f"{doing}; round {turn}: {what}")
        found: dict[tuple[str, ...], Met] = {}
        for batch in _batches([tuple(members[name] for name in nodes) for _, sets in wanted for nodes in sets]):
            late = late or monotonic() - begun > total_s
            if not late:
                found |= _run(batch)
        for search, sets in wanted:
            search.report([found[nodes] for nodes in sets if nodes in found])
    if late:
        events("verify", "warning", f"after {total_s / 60:.0f} min no further run was begun")
    return {name: _verdict(search, name, v, late) for search in searches for name, v in search.verdict().items()}


def _batches(sets: Sequence[tuple[Member, ...]]) -> Iterator[list[tuple[Member, ...]]]:
    """Sets that run at once; a set is never divided."""
    batch: list[tuple[Member, ...]] = []
    for nodes in sets:
        if batch and sum(map(len, batch)) + len(nodes) > AT_ONCE:
            yield batch
            batch = []
        batch.append(nodes)
    yield batch


def _search(group: Sequence[Member]) -> Search:
    expected = group[0].expected
    # Where NVLink joins some nodes and the network others, two pairs are not alike.
    name = "fabric.pair_spread" if expected.fabric == "rdma" else "fabric.socket_spread"
    spread = 1.0 if expected.nvlink_across else expected.most.get(name, 1.0)
    fall = 1.0 if expected.nvlink_across else expected.most.get("fabric.ring_fall", 1.0)
    floor = expected.least.get("fabric")
    names, brief = [member.name for member in group], _level(expected) == "standard"
    return Search(names, floor=floor, spread=spread, ring_fall=fall, brief=brief)


def _deadline(nodes: Sequence[Member]) -> float:
    """Seconds for a set."""
    return REHEARSED_S if nodes[0].expected.simulated else SET_S + MORE_S * len(nodes)


def _run(sets: Sequence[tuple[Member, ...]]) -> dict[tuple[str, ...], Met]:
    """Run disjoint sets at once; every node of a set has to run for it to begin, so none waits for its turn."""
    requests, targets = {}, {}
    load = resources("provisioner.verify") / "load"
    launcher = (load / "multi_node_launcher.py").read_text(encoding="utf-8")
    draw = random.SystemRandom()
    for nodes in sets:
        seconds, port = _deadline(nodes), draw.choice(PORTS)
        for place, member in enumerate(nodes):
            together = {
                "launcher": launcher, "nodes": len(nodes), "node": place, "address": nodes[0].address,
                "own": member.address, "port": port,
            }  # fmt: skip
            request = load_request(member.expected)
            assert request is not None and request.load is not None
            asked = {**request.load, "options": dict(OPTIONS[_level(member.expected)]), "together": together}
            requests[member.name] = replace(request, files={FILE: seconds}, load=asked)
            targets[member.name] = member.reach
    longest = max(map(_deadline, sets))
    railed = any(request.load is not None and "rails" in request.load for request in requests.values())
    more = CARD_BY_CARD_S if railed and any(len(nodes) == 2 for nodes in sets) else 0.0
    came = collect(targets, requests, deadline_s=longest + more + WAY_S, parallel=len(targets))
    return {tuple(m.name for m in nodes): met(nodes, came) for nodes in sets}


def met(nodes: Sequence[Member], came: Mapping[str, Bundle]) -> Met:
    """What the parts of a set's nodes say together."""
    names = tuple(member.name for member in nodes)
    parts: dict[str, Load] = {}
    for name in names:
        part = _read(came[name], FILE)
        if part is None:
            output = came[name].files.get(FILE)
            why = came[name].error or (output.error if output else "") or "the probe gave no answer"
            return Met(names, False, why=why, absent=(name,))
        if part.state != "ran":
            why = f"a job is using the GPUs: {', '.join(part.busy[:3])}" if part.state == "busy" else part.why
            return Met(names, False, why=why, absent=(name,))
        parts[name] = part
    first, expected = parts[names[0]], nodes[0].expected
    if why := _failure(nodes, parts):
        return Met(names, False, why=why, result=first, parts=parts)
    rate, way = first.best_busbw, _strayed(first, expected)
    return Met(names, True, rate[1] if rate else None, way, bool(way), result=first, parts=parts)


def _strayed(first: Load, expected: Expected) -> str:
    return wrong_way(dict(first.transports), rdma=expected.fabric == "rdma", gpudirect=expected.gpudirect)


def _failure(nodes: Sequence[Member], parts: Mapping[str, Load]) -> str:
    """Why a set did not work; "" where it did."""
    first = parts[nodes[0].name]
    if not first.finished or any(part.timed_out or part.rc != 0 for part in parts.values()):
        if all(part.timed_out for part in parts.values()):
            return f"no end within {first.seconds or 0:.0f} s, in its part {first.phase or 'start'!r}"
        # The node that failed first says more than those that it took along.
        said = [(name, part.error) for name, part in parts.items() if part.error and part.rc not in (0, None)]
        said.sort(key=lambda row: any(word in row[1] for word in TAKEN_ALONG))
        return f"{said[0][0]}: {said[0][1]}" if said else f"exit status {first.rc}, without a word"
    wanted = sum(member.expected.gpu_count for member in nodes)
    if first.ranks != wanted:
        return f"{first.ranks} GPUs took part, {wanted} expected"
    return f"{first.wrong} wrong values" if first.wrong else ""


TAKEN_ALONG = ("on another node", "closed by peer", "Connection reset", "remote process exited")


def _verdict(search: Search, name: str, verdict: Verdict, late: bool) -> dict[str, Any]:
    """fabric.json of one node."""
    why, state = verdict.why, str(verdict.state)
    # What it had failed before a job came stays: a program that hangs can look like a job.
    if state == "untested" and why.startswith("a job is using the GPUs"):
        state, why = "busy", f"not tested, because {why}"
    pairs = [(met, met in verdict.good) for met in search.pairs if name in met.nodes]
    ring = next((m for m in search.rings if m.nodes == verdict.ring), None)
    return {
        "state": state,
        "why": f"{why} (the time was up)" if late and state in ("undecided", "untested") else why,
        "nodes": len(search.nodes),
        "rounds": search.asked,
        "wrong_way": verdict.wrong_way,
        "floor_gbps": search.floor,
        "usual_gbps": search.usual,
        "pairs": [
            {"partner": m.partner(name), "good": good, "why": "" if good else search.described(m), **_reached(m)}
            for m, good in pairs
        ],
        "paths": list(verdict.paths),
        "ring": ring
        and {"nodes": list(ring.nodes), "good": verdict.ring_ok, "why": verdict.ring_why, **_reached(ring)},
        "simulated": any(m.result is not None and m.result.simulated for m, _ in pairs),
        "grown": _grown([m.parts[name].grown for m in (*search.pairs, *search.rings) if name in m.parts]),
    }


def _grown(runs: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """By how much the counters of a node's ports grew in all of them together."""
    found: dict[str, Counter[str]] = {}
    for run in runs:
        for port, more in run.items():
            found.setdefault(port, Counter()).update(more)
    return {port: dict(more) for port, more in found.items()}


def _reached(m: Met) -> dict[str, Any]:
    load = m.result
    if not isinstance(load, Load):
        return {}
    best = load.best_busbw
    return {
        "gbps": m.gbps,
        "bytes": best[0] if best else None,
        "sizes": [{"bytes": size, "gbps": rate} for size, rate in load.busbw],
        "latency_us": load.latency_us,
        "seconds": load.seconds,
        "transports": dict(load.transports),
        "rails": [asdict(card) for part in m.parts.values() for card in part.rails],
    }
