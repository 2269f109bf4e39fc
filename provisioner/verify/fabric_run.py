"""Several nodes at work: runs the rounds that fabric.py asks for, on all groups at once; each node's verdict.

A set of nodes is one run of load/multi_node_launcher.py on each of them, in the locked image, over the probe's own way
(collect.py). The rendezvous is on the first node's address in the group's network, at a port that is drawn for each
run. What a node did comes back as its part of fabric.json; what this module makes of all parts is the fabric.json of
its bundle, which parsers/fabric.py reads.

A node that finds no other of its group in the run borrows: the first neighbours of the file that are proven and idle,
asked at that moment, are the other end, and are not judged. Where there is none, its network cards are worked against
each other, and what was not reached is told as unreached.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files as resources
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from provisioner.common.events import Events
from provisioner.common.text import counted
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.collect import collect
from provisioner.verify.expectations import Expected
from provisioner.verify.fabric import Met, Search, Verdict, most_rounds, wrong_way
from provisioner.verify.facts import read_file
from provisioner.verify.parsers.fabric import idle_answer
from provisioner.verify.parsers.load import Load, parse
from provisioner.verify.parsers.perftest import OwnCards, own_cards_answer
from provisioner.verify.probe.perftest import RAILS_S
from provisioner.verify.request import ProbeRequest, cards_request, load_request

if TYPE_CHECKING:
    from provisioner.verify.subject import Subject

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
SANDBOX_S = 30.0
WAY_S = 45.0
"""For the connection, and for killing and removing what did not end."""
CARD_BY_CARD_S = RAILS_S + 10.0
"""For the rails of two nodes, at level stress."""
TOTAL_S = 1800.0
"""After that no further run begins: half an hour of a fleet is what this is worth."""
AT_ONCE = 256
"""Nodes that run at once: each costs this computer an ssh of some megabytes. More take turns, set by set."""
LENT = 2
"""Neighbours that one node borrows at most: with two of them a node can be told from a path."""
IDLE_S = 60.0
"""For the answer whether a node is idle: nvidia-smi and squeue, one after the other."""
IDLE_AT_ONCE = 8
"""Neighbours that are asked at the same time whether they are idle."""
OWN_CARDS_S = 120.0
"""For ib_write_bw over all cards of one node: eight pairs of at most 15 s (probe/perftest.py)."""
PORTS = range(20_000, 30_000)
"""Below Linux's ports for outgoing connections (ip_local_port_range: 32768 and up)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that takes part: how to run a shell command on it, and its address in the group's network."""

    name: str
    reach: Sequence[str]
    address: str
    expected: Expected
    lent: bool = False
    """It is the other end alone: it takes part only while it is idle, and is not judged."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Which other nodes of its group a node could meet. `candidates` are proven, in service and not part of the run, in
    the order of cluster.yaml; `refused` has the reason of each other one. `proven`: a run has proven the node's machine
    before; `command` proves it later."""

    candidates: Sequence[Subject] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    proven: bool = False
    command: str = ""


FindNeighbours = Callable[["Subject"], Neighbours]


@dataclass(slots=True)
class _Alone:
    """A node that found no partner in the run, with what was learned of its neighbours."""

    subject: Subject
    neighbours: Neighbours
    lent: list[Member] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Neighbour → why it was not borrowed."""
    busy: bool = False
    """Whether a proven neighbour is there that was not idle."""


def fabric(
    subjects: Sequence[Subject],
    bundles: Mapping[str, Bundle],
    *,
    events: Events,
    total_s: float = TOTAL_S,
    neighbours: FindNeighbours | None = None,
) -> dict[str, Bundle]:
    """The bundles of those nodes that their level lets meet others, with what came of it: at stress each group that has
    a network for jobs of several nodes, at standard those with RDMA, in pairs alone and for seconds. `neighbours` tells
    whom a node could borrow that finds no other one of its group in the run; None: nobody, and nothing is reported of
    it."""
    verdicts: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[str, str], list[Member]] = {}
    by_name = {subject.name: subject for subject in subjects}
    for subject in subjects:
        bundle, level = bundles[subject.name], _level(subject.expected)
        if not level or bundle.error:
            continue
        if subject.transport is None:  # a bundle that was there already has its fabric.json, or never will
            if FILE not in bundle.files and level == "standard":
                verdict_text = "judged from its bundle, without the other nodes of its group"
                verdicts[subject.name] = _verdict_of_none("alone", verdict_text)
        elif (reason := _not_now(subject, bundle)) is not None:
            verdicts[subject.name] = _narrowed(reason, subject, subjects, neighbours)
        else:
            member = Member(subject.name, subject.transport, subject.address, subject.expected)
            groups.setdefault((subject.site, subject.group), []).append(member)
    alone = {
        key: _borrow(by_name[members[0].name], neighbours(by_name[members[0].name]), events)
        for key, members in groups.items()
        if len(members) == 1 and neighbours is not None
    }
    parties = [(members, alone[key].lent if key in alone else []) for key, members in groups.items()]
    group_verdicts, lost = _searched([party for party in parties if sum(map(len, party)) > 1], events, total_s)
    verdicts |= group_verdicts
    for key, members in groups.items():
        name = members[0].name
        if len(members) == 1 and neighbours is None:
            verdicts[name] = _verdict_of_none("alone", "no other node of its group could be tested in this run")
        elif key in alone and _met_nobody(alone[key], verdicts.get(name), lost):
            jobs = {other: row["why"] for other, row in verdicts.items() if row["state"] == "busy"}
            verdicts[name] = _unreached(alone[key], lost, jobs)
        elif key in alone and verdicts[name]["state"] == "undecided" and (command := alone[key].neighbours.command):
            verify_command = command.partition(" --node")[0]
            verdicts[name] = {
                **verdicts[name],
                "why": f"{verdicts[name]['why']}; `{verify_command}` judges its neighbours, too",
            }
    if neighbours is not None:
        unmet = [name for name, verdict in verdicts.items() if verdict["state"] in ("alone", "unreached")]
        for name, cards in _own_cards([by_name[name] for name in unmet], bundles, events).items():
            verdicts[name] = {**verdicts[name], "own_cards": asdict(cards)}
    return {
        name: replace(bundles[name], files={**bundles[name].files, FILE: Output(json.dumps(verdict), rc=0)})
        for name, verdict in verdicts.items()
    }


def _borrow(subject: Subject, neighbours: Neighbours, events: Events) -> _Alone:
    """Ask a node's neighbours whether they are idle, the first of the file first; the first LENT that are. What does
    not answer has a job."""
    lonely = _Alone(subject, neighbours, refused=dict(neighbours.refused))
    image = _image(subject.expected)
    ready: list[Member] = []
    for candidate in neighbours.candidates:
        if _image(candidate.expected) != image:
            lonely.refused[candidate.name] = "it runs another image"
        elif not candidate.address or candidate.transport is None:
            lonely.refused[candidate.name] = "its address in the group's network is not known"
        else:
            expected = replace(candidate.expected, level=subject.expected.level)
            ready.append(Member(candidate.name, candidate.transport, candidate.address, expected, lent=True))
    for start in range(0, len(ready), IDLE_AT_ONCE):
        batch = ready[start : start + IDLE_AT_ONCE]
        requests = {member.name: _request(member, IDLE_S, alone="idle") for member in batch}
        came = collect({member.name: member.reach for member in batch}, requests, deadline_s=IDLE_S + WAY_S)
        for member in batch:
            reason, source = read_file(FILE, came[member.name], idle_answer)
            if reason == "":
                lonely.lent.append(member)
            else:
                # One that gives no answer at all can prove nobody later.
                lonely.busy = lonely.busy or not came[member.name].error
                lonely.refused[member.name] = reason or came[member.name].error or source.reason
        if len(lonely.lent) >= LENT:
            break
    lonely.lent = lonely.lent[:LENT]
    if lonely.lent:
        names = " and ".join(member.name for member in lonely.lent)
        message = f"no other node of its group is verified in this run: {names}, proven and idle, may be its partner"
        events("verify", "log", message, node=subject.name)
    return lonely


def _image(expected: Expected) -> tuple[Any, Any] | None:
    """The locked image that runs between nodes."""
    image = next((image for image in expected.images or () if image.get("torch")), None)
    return (image.get("reference"), image.get("pull")) if image is not None else None


def _request(member: Member, seconds: float, **part: Any) -> ProbeRequest:
    """What a node is asked for its part in fabric.json."""
    request = load_request(member.expected)
    assert request is not None and request.load is not None
    return replace(request, files={FILE: seconds}, load={**request.load, **part})


def _met_nobody(lonely: _Alone, verdict: Mapping[str, Any] | None, lost: Mapping[str, str]) -> bool:
    """Whether a node met none of its neighbours, for no reason of its own: a job came to them after they were asked."""
    if verdict is None:
        return True
    return (
        verdict["state"] == "untested" and lonely.subject.name not in lost and {m.name for m in lonely.lent} <= {*lost}
    )


def _unreached(lonely: _Alone, lost: Mapping[str, str], jobs: Mapping[str, str]) -> dict[str, Any]:
    """fabric.json of a node that could meet none of its neighbours. `lost`: why nodes that were lent took no part;
    `jobs`: nodes of the run that have one."""
    neighbours = lonely.neighbours
    refused = lonely.refused | {member.name: lost[member.name] for member in lonely.lent if member.name in lost}
    refused |= {name: reason for name, reason in jobs.items() if name in refused}
    if not refused:
        return _verdict_of_none("alone", "its group has no other node")
    busy = lonely.busy or bool(lonely.lent) or any(name in refused for name in jobs)
    reasons = [f"{name}: {reason}" for name, reason in refused.items()]
    more = f"; and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    when = "is idle" if busy else "is healthy and in service"
    later = f". `{neighbours.command}` proves it once one of them {when}" if neighbours.command else ""
    return {
        "state": "unreached",
        "why": f"no other node of its group could be met: {'; '.join(reasons[:4])}{more}{later}",
        "awaits_proof": busy and not neighbours.proven,
    }


def _own_cards(subjects: Sequence[Subject], bundles: Mapping[str, Bundle], events: Events) -> dict[str, OwnCards]:
    """The network cards of these nodes against each other: those that ib_write_bw can work in pairs, EFA's by NCCL."""
    requests, targets, by_nccl = {}, {}, list[Member]()
    for subject in subjects:
        if subject.transport is None:
            continue
        member = Member(subject.name, subject.transport, subject.address, subject.expected)
        if (cards := cards_request(subject.expected)) is not None:
            requests[subject.name] = _request(member, OWN_CARDS_S, rails=cards, alone="own cards")
            targets[subject.name] = subject.transport
        elif _has_efa_between_gpus(subject.expected) and _not_now(subject, bundles[subject.name]) is None:
            by_nccl.append(member)
    if not targets and not by_nccl:
        return {}
    events(
        "verify", "progress",
        f"working the network cards of {counted(len(targets) + len(by_nccl), 'node')} against each other",
    )  # fmt: skip
    came = collect(targets, requests, deadline_s=OWN_CARDS_S + WAY_S) if targets else {}
    results = {name: _own_cards_of(came[name]) for name in targets}
    for batch in _batches([(member,) for member in by_nccl]) if by_nccl else ():
        results |= {name: _own_cards_by_nccl(run) for (name,), run in _run(batch).items()}
    return results


def _has_efa_between_gpus(expected: Expected) -> bool:
    """Whether NCCL can send over the node's own EFA: one GPU has nobody to send to."""
    return expected.network == "efa" and expected.fabric == "rdma" and expected.gpu_count > 1


def _own_cards_by_nccl(run: Met) -> OwnCards:
    """What a run of one node alone says of its network cards."""
    if run.absent:
        return OwnCards("absent", run.why)
    reason = run.why
    if not reason and not any(transport.startswith("NET/") for transport, _ in run.result.transports):
        reason = "NCCL did not go over the network cards"
    return OwnCards("ran", reason or ("" if run.gbps is not None else "no rate"), (), run.gbps)


def _own_cards_of(bundle: Bundle) -> OwnCards:
    cards, source = read_file(FILE, bundle, own_cards_answer)
    return cards or OwnCards("absent", bundle.error or source.reason)


def _level(expected: Expected) -> str:
    """The level at which a node meets others, a key of OPTIONS; "" where it meets nobody."""
    if expected.level == "stress" and expected.fabric:
        return "stress"
    return "standard" if expected.level == "standard" and expected.fabric == "rdma" else ""


def _not_now(subject: Subject, bundle: Bundle) -> dict[str, Any] | None:
    """Why a node meets nobody; None where it does."""
    if not subject.group:
        return _verdict_of_none("unreached", "verified alone, without the other nodes of its group")
    if _image(subject.expected) is None:
        return _verdict_of_none("unreached", "no locked image has PyTorch")
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


def _narrowed(
    reason: dict[str, Any], subject: Subject, subjects: Sequence[Subject], neighbours: FindNeighbours | None
) -> dict[str, Any]:
    """The verdict on a node that meets nobody: what is unreached is no more than alone where it is the only node of its
    group, or nobody asks for what was not reached."""
    if reason["state"] != "unreached":
        return reason
    if neighbours is None:
        return {**reason, "state": "alone"}
    group = (subject.site, subject.group)
    if subject.group and not any((o.site, o.group) == group and o is not subject for o in subjects):
        group_neighbours = neighbours(subject)
        if not group_neighbours.candidates and not group_neighbours.refused:
            return _verdict_of_none("alone", "its group has no other node")
    return reason


def _verdict_of_none(state: str, reason: str) -> dict[str, Any]:
    return {"state": state, "why": reason}


def _read(bundle: Bundle, name: str) -> Load | None:
    """load.json, or a node's part of fabric.json, which says the same; None where it says nothing."""
    return read_file(name, bundle, parse)[0]


def _searched(
    parties: Sequence[tuple[Sequence[Member], Sequence[Member]]], events: Events, total_s: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Rounds until every group's search has ended or the time is up; each node's verdict, and why nodes took no part. A
    party is the nodes that are judged and those that are lent to them."""
    if not parties:
        return {}, {}
    groups = [[*subjects, *lent] for subjects, lent in parties]
    members = {member.name: member for group in groups for member in group}
    searches = [_search(subjects, lent) for subjects, lent in parties]
    brief = all(search.brief or search.lent for search in searches)
    rounds = max(most_rounds(len(group), rings=not brief) for group in groups)
    longest = max(_deadline(tuple(group)) + CARD_BY_CARD_S + WAY_S for group in groups)
    # The last round may begin just before the end.
    turns = rounds * len(list(_batches([tuple(group[i : i + 2]) for group in groups for i in range(0, len(group), 2)])))
    judged = sum(len(subjects) for subjects, _ in parties)
    doing = f"{counted(judged, 'node')} in pairs{'' if brief else ' and rings'}, at most {rounds} rounds"
    events("verify", "started", doing, until=time() + min(turns * longest, total_s + longest))
    begun, turn, late = monotonic(), 0, False
    while not late and (round_sets := [(search, sets) for search in searches if (sets := search.next_round())]):
        turn += 1
        sizes = [len(nodes) for _, sets in round_sets for nodes in sets]
        sizes_text = (
            f"{counted(len(sizes), 'pair')}"
            if max(sizes) == 2
            else f"{counted(len(sizes), 'ring')} of up to {counted(max(sizes), 'node')}"
        )
        events("verify", "progress", f"{doing}; round {turn}: {sizes_text}")
        runs: dict[tuple[str, ...], Met] = {}
        for batch in _batches([tuple(members[name] for name in nodes) for _, sets in round_sets for nodes in sets]):
            late = late or monotonic() - begun > total_s
            if not late:
                runs |= _run(batch)
        for search, sets in round_sets:
            search.report([runs[nodes] for nodes in sets if nodes in runs])
    if late:
        events("verify", "warning", f"after {total_s / 60:.0f} min no further run was begun")
    verdicts = {
        name: _verdict(search, name, v, late)
        for search in searches
        for name, v in search.verdict().items()
        if name not in search.lent
    }
    return verdicts, {name: reason for search in searches for name, reason in search.lost.items()}


def _batches(sets: Sequence[tuple[Member, ...]]) -> Iterator[list[tuple[Member, ...]]]:
    """Sets that run at once; a set is never divided."""
    batch: list[tuple[Member, ...]] = []
    for nodes in sets:
        if batch and sum(map(len, batch)) + len(nodes) > AT_ONCE:
            yield batch
            batch = []
        batch.append(nodes)
    yield batch


def _search(group: Sequence[Member], lent: Sequence[Member] = ()) -> Search:
    expected = group[0].expected
    # Where NVLink joins some nodes and the network others, two pairs are not alike.
    name = "fabric.pair_spread" if expected.fabric == "rdma" else "fabric.socket_spread"
    spread = 1.0 if expected.nvlink_across else expected.most.get(name, 1.0)
    fall = 1.0 if expected.nvlink_across else expected.most.get("fabric.ring_fall", 1.0)
    floor = expected.least.get("fabric")
    names, brief = [member.name for member in group], _level(expected) == "standard"
    partners = [member.name for member in lent]
    return Search(names, floor=floor, spread=spread, ring_fall=fall, brief=brief, lent=partners)


def _deadline(nodes: Sequence[Member]) -> float:
    """Seconds for a set."""
    return SANDBOX_S if nodes[0].expected.simulated else SET_S + MORE_S * len(nodes)


def _run(sets: Sequence[tuple[Member, ...]]) -> dict[tuple[str, ...], Met]:
    """Run disjoint sets at once; every node of a set has to run for it to begin, so none waits for its turn."""
    requests, targets = {}, {}
    load = resources("provisioner.verify") / "load"
    launcher = (load / "multi_node_launcher.py").read_text(encoding="utf-8")
    draw = random.SystemRandom()
    for nodes in sets:
        seconds, port = _deadline(nodes), draw.choice(PORTS)
        for rank, member in enumerate(nodes):
            together = {
                "launcher": launcher, "nodes": len(nodes), "node": rank, "address": nodes[0].address,
                "own": member.address, "port": port, "lent": member.lent,
            }  # fmt: skip
            options = dict(OPTIONS[_level(member.expected)])
            requests[member.name] = _request(member, seconds, options=options, together=together)
            targets[member.name] = member.reach
    longest = max(map(_deadline, sets))
    railed = any(request.load is not None and "rails" in request.load for request in requests.values())
    more = CARD_BY_CARD_S if railed and any(len(nodes) == 2 for nodes in sets) else 0.0
    came = collect(targets, requests, deadline_s=longest + more + WAY_S, parallel=len(targets))
    return {tuple(m.name for m in nodes): joint_result(nodes, came) for nodes in sets}


def joint_result(nodes: Sequence[Member], came: Mapping[str, Bundle]) -> Met:
    """What the parts of a set's nodes say together."""
    names = tuple(member.name for member in nodes)
    parts: dict[str, Load] = {}
    for name in names:
        part = _read(came[name], FILE)
        if part is None:
            output = came[name].files.get(FILE)
            reason = came[name].error or (output.error if output else "") or "the probe gave no answer"
            return Met(names, False, why=reason, absent=(name,))
        if part.state != "ran":
            reason = f"a job is using the GPUs: {', '.join(part.busy[:3])}" if part.state == "busy" else part.why
            return Met(names, False, why=reason, absent=(name,))
        parts[name] = part
    first, expected = parts[names[0]], nodes[0].expected
    if reason := _failure(nodes, parts):
        return Met(names, False, why=reason, result=first, parts=parts)
    rate, wrong_transport = first.best_busbw, _strayed(first, expected)
    return Met(
        names, True, rate[1] if rate else None, wrong_transport, bool(wrong_transport), result=first, parts=parts
    )


def _strayed(first: Load, expected: Expected) -> str:
    return wrong_way(dict(first.transports), rdma=expected.fabric == "rdma", gpudirect=expected.gpudirect)


def _failure(nodes: Sequence[Member], parts: Mapping[str, Load]) -> str:
    """Why a set did not work; "" where it did."""
    first = parts[nodes[0].name]
    if not first.finished or any(part.timed_out or part.rc != 0 for part in parts.values()):
        if all(part.timed_out for part in parts.values()):
            return f"no end within {first.seconds or 0:.0f} s, in its part {first.phase or 'start'!r}"
        # The node that failed first says more than those that it took along.
        errors = [(name, part.error) for name, part in parts.items() if part.error and part.rc not in (0, None)]
        errors.sort(key=lambda row: any(phrase in row[1] for phrase in TAKEN_ALONG))
        return f"{errors[0][0]}: {errors[0][1]}" if errors else f"exit status {first.rc}, without a word"
    expected_ranks = sum(member.expected.gpu_count for member in nodes)
    if first.ranks != expected_ranks:
        return f"{first.ranks} GPUs took part, {expected_ranks} expected"
    return f"{first.wrong} wrong values" if first.wrong else ""


TAKEN_ALONG = ("on another node", "closed by peer", "Connection reset", "remote process exited")


def _verdict(search: Search, name: str, verdict: Verdict, late: bool) -> dict[str, Any]:
    """fabric.json of one node."""
    reason, state = verdict.why, str(verdict.state)
    # What it had failed before a job came stays: a program that hangs can look like a job.
    if state == "untested" and reason.startswith("a job is using the GPUs"):
        state, reason = "busy", f"not tested, because {reason}"
    pairs = [(run, run in verdict.good) for run in search.pairs if name in run.nodes]
    partners = {run.partner(name) for run, _ in pairs}
    ring = next((m for m in search.rings if m.nodes == verdict.ring), None)
    return {
        "state": state,
        "why": f"{reason} (the time was up)" if late and state in ("undecided", "untested") else reason,
        "nodes": len(search.nodes),
        "rounds": search.asked,
        "wrong_way": verdict.wrong_way,
        "floor_gbps": search.floor,
        "usual_gbps": search.usual,
        "pairs": [
            {"partner": m.partner(name), "good": is_good, "why": "" if is_good else search.described(m), **_reached(m)}
            for m, is_good in pairs
        ],
        "borrowed": [other for other in search.lent if other in partners],
        "paths": list(verdict.paths),
        "ring": ring
        and {"nodes": list(ring.nodes), "good": verdict.ring_ok, "why": verdict.ring_why, **_reached(ring)},
        "simulated": any(m.result is not None and m.result.simulated for m, _ in pairs),
        "grown": _grown([m.parts[name].grown for m in (*search.pairs, *search.rings) if name in m.parts]),
    }


def _grown(runs: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """By how much the counters of a node's ports grew in all of them together."""
    growth: dict[str, Counter[str]] = {}
    for run in runs:
        for port, more in run.items():
            growth.setdefault(port, Counter()).update(more)
    return {port: dict(more) for port, more in growth.items()}


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
