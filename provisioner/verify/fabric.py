"""Which nodes work together, and which node or path is to blame where they do not: the plan of rounds, and no I/O.

Sets of nodes run all_reduce together, all sets of a round at once. Every node meets two others; one that worked with
nobody meets nodes that are known to be good, which tells whether it is the node or the path to one of its partners;
then all good nodes run in rings, and a ring that fails though its pairs did not is halved until it is small. The pairs
take a bounded number of rounds however many nodes there are, the rings the logarithm of their size.

    search = Search(nodes, floor=35.0)
    while sets := search.next_round():
        search.report(run(sets))
    search.verdict()

A node is good when one pair with it worked. It is at fault when none did and two good nodes are among its partners: a
single bad path cannot do that. A pair that does not work between two good nodes is a path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from statistics import median
from typing import Any, Literal

State = Literal["fine", "fault", "undecided", "untested"]
ISOLATE = 4
"""Rounds at most in which nodes that worked with nobody meet further ones."""
AGAIN = 2
"""Rounds at most in which pairs are tried once more; a node that was unlucky is in two of them."""
RING = 64
"""Nodes of a ring at most: as many ssh connections live while it runs, and one that fails is found in six halvings.
More nodes make several rings, side by side."""


@dataclass(frozen=True, slots=True)
class Met:
    """What came of one set of nodes. `ok`: all of them ended with a result; `gbps` is the bus bandwidth, GB/s;
    `wrong_way`: it went another way than the group's network. `absent` are nodes that did not take part for a reason of
    their own, which says nothing of the fabric."""

    nodes: tuple[str, ...]
    ok: bool
    gbps: float | None = None
    why: str = ""
    wrong_way: bool = False
    absent: tuple[str, ...] = ()
    result: Any = None
    """What it was read from, for whoever gave it."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The same of each node."""

    def partner(self, node: str) -> str:
        """The other node of a pair."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]

    @property
    def pair(self) -> frozenset[str]:
        return frozenset(self.nodes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one node. `good` and `bad` are its pairs, `paths` those good nodes that it does not work with, `wrong_way`
    whether all its pairs went the wrong way. `ring` has the nodes of the smallest ring with it that was run and worked
    or, where `ring_ok` is False, failed; empty where it was in none."""

    state: State
    why: str = ""
    good: tuple[Met, ...] = ()
    bad: tuple[Met, ...] = ()
    paths: tuple[str, ...] = ()
    wrong_way: bool = False
    ring: tuple[str, ...] = ()
    ring_ok: bool | None = None
    ring_why: str = ""


def wrong_way(transports: Mapping[str, int], *, rdma: bool, gpudirect: bool) -> str:
    """What is wrong with the way that NCCL's channels went between nodes that have RDMA; "" where nothing is known to
    be. `gpudirect`: their network cards read the GPUs' memory themselves."""
    if not rdma:
        return ""
    if sockets := transports.get("NET/Socket", 0) + transports.get("NET/Socket+GDR", 0):
        return f"{sockets} channels over sockets"
    bare = {
        transport: count
        for transport, count in transports.items()
        if transport.startswith("NET/") and not transport.endswith("+GDR")
    }
    if gpudirect and bare:
        return (
            f"{', '.join(f'{count} channels via {transport}' for transport, count in bare.items())} without GPUDirect"
        )
    return ""


def most_rounds(nodes: int, *, rings: bool = True) -> int:
    """Rounds that a search takes at most."""
    ring = min(nodes, RING) if rings else 0
    return 3 + ISOLATE + AGAIN + (1 + ceil(log2(ring)) if ring > 2 else 0)


class Search:
    """`floor`: GB/s under which a set is slow, None where nobody has published one. `spread`: share below the pairs'
    usual rate from which on one is slow; `ring_fall` the same for a ring, whose rate is not that of pairs. `brief`: no
    rings, and a node meets a second one only where a pair did not work. `lent`: for one node that has no other to meet,
    nodes that were proven before: they count as good, meet that node alone, and form no ring."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        floor: float | None = None,
        spread: float = 0.2,
        ring_fall: float = 0.5,
        brief: bool = False,
        lent: Sequence[str] = (),
    ) -> None:
        self.nodes = (*nodes, *lent)
        self.lent = tuple(lent)
        self.floor, self.spread, self.ring_fall, self.brief = floor, spread, ring_fall, brief
        self.pairs: list[Met] = []
        self.rings: list[Met] = []
        self.lost: dict[str, str] = {}
        self.usual: float | None = None
        """What healthy pairs reach, GB/s: the median of the best quarter, because a bad node spoils every pair that it
        is in. None where fewer than two have a rate."""
        self.asked = 0
        """Rounds so far."""
        self._isolated: set[str] = set()
        self._rounds = self._plan()

    def next_round(self) -> list[tuple[str, ...]]:
        """Disjoint sets of nodes to run at once; empty when there is nothing more to learn."""
        for sets in self._rounds:
            present = [nodes for nodes in sets if not any(node in self.lost for node in nodes)]
            if present:
                self.asked += 1
                return present
        return []

    def report(self, runs: Iterable[Met]) -> None:
        """What came of the sets of the last round. A set that is not reported was not run."""
        for run in runs:
            self.lost |= dict.fromkeys(run.absent, run.why or "it did not take part")
            if not run.absent:
                (self.pairs if len(run.nodes) == 2 and not self._in_rings else self.rings).append(run)
        self.usual = self._healthy()

    def verdict(self) -> dict[str, Verdict]:
        healthy = self._proven_nodes()
        paths = self._paths(healthy)
        return {node: self._verdict(node, mets, healthy, paths) for node, mets in self._by_node().items()}

    # The plan

    _in_rings = False

    def _plan(self) -> Iterator[list[tuple[str, ...]]]:
        yield from self._meetings()
        for _ in range(ISOLATE):
            if not (sets := self._isolating()):
                break
            self._isolated |= {node for pair in sets for node in pair}
            yield sets
        for _ in range(AGAIN):
            yield self._retry_pairs()
        if self.brief or self.lent:
            return
        self._in_rings = True
        rings = self._ring_sets()
        while rings:
            yield rings
            rings = [half for ring in rings if self._ring_bad(ring) and len(ring) > 2 for half in _halves(ring)]

    def _meetings(self) -> Iterator[list[tuple[str, ...]]]:
        """Two disjoint pairings of everybody, so that each node meets two others; of an odd number one waits each time,
        and the two that waited meet in a third."""
        count = len(self.nodes)
        if self.lent:
            for partner in self.lent:
                yield [(partner, self.nodes[0])]
                if self.brief and self.nodes[0] in self._proven_nodes():
                    return
            return
        if count < 2:
            return
        yield self._pairing(0)
        if self.brief and not any(map(self._bad, self.pairs)):
            if count % 2:
                yield [(self.nodes[0], self.nodes[-1])]
            if not any(map(self._bad, self.pairs)):
                return
        if count > 2:
            yield self._pairing(1)
        if count % 2 and count > 2:
            yield [(self.nodes[0], self.nodes[1])]

    def _pairing(self, turn: int) -> list[tuple[str, ...]]:
        """One round of a round-robin tournament (circle method): no pair comes twice in as many rounds as there are. Of
        an odd number the node `turn` waits."""
        names, count = self.nodes, len(self.nodes)
        circle = count if count % 2 else count - 1
        sets: list[tuple[str, ...]] = [] if count % 2 else [(names[turn % circle], names[-1])]
        return sets + [
            (names[(turn + i) % circle], names[(turn - i) % circle]) for i in range(1, (circle - 1) // 2 + 1)
        ]

    def _isolating(self) -> list[tuple[str, ...]]:
        """Each node that worked with nobody, with a good one that it has not met; where there is none, once more with
        one that it has, because what was slow once may have been unlucky."""
        healthy = self._proven_nodes()
        if not healthy:
            # Not one pair works: others, until one does.
            tried = {m.pair for m in self.pairs}
            turns = [self._pairing(turn) for turn in range(2, len(self.nodes))]
            fresh = [[pair for pair in sets if frozenset(pair) not in tried] for sets in turns]
            return max(fresh, key=len, default=[])
        free = [node for node in self.nodes if node in healthy and node not in self.lost]
        sets: list[tuple[str, ...]] = []
        for node in self._suspects(healthy):
            met_good = {m.partner(node) for m in self.pairs if node in m.nodes} & healthy
            if len(met_good) >= 2 and node in self._isolated:
                continue
            unmet = [other for other in free if other not in met_good]
            partner = next(iter(unmet or ([] if node in self._isolated else free)), None)
            if partner is not None:
                free.remove(partner)
                sets.append((partner, node))
        return sets

    def _retry_pairs(self) -> list[tuple[str, ...]]:
        """Pairs to be tried once more: nothing explains that they did not work. Disjoint ones; the rest waits."""
        healthy, used = self._proven_nodes(), set[str]()
        times = Counter(run.pair for run in self.pairs)
        sets: list[tuple[str, ...]] = []
        for run in self.pairs:
            unexplained = run.pair <= healthy or len(self.nodes) - len(self.lost) == 2
            if self._bad(run) and unexplained and times[run.pair] == 1 and not run.pair & used:
                used |= run.pair
                sets.append(run.nodes)
        return sets

    def _ring_sets(self) -> list[tuple[str, ...]]:
        """All good nodes in as few rings as they fit in; of a bad path one end stays out, because the ring would only
        say once more what is known."""
        healthy, left_out = self._proven_nodes(), set[str]()
        for path in self._paths(healthy):
            if not path & left_out:
                left_out.add(max(path, key=self.nodes.index))
        ring = [node for node in self.nodes if node in healthy and node not in left_out and node not in self.lost]
        if len(ring) < 3:
            return []
        count = ceil(len(ring) / RING)
        return [tuple(ring[len(ring) * i // count : len(ring) * (i + 1) // count]) for i in range(count)]

    # What is known

    def _healthy(self) -> float | None:
        rates = sorted(run.gbps for run in self.pairs if run.ok and run.gbps is not None)
        return median(rates[-ceil(len(rates) / 4) :]) if len(rates) >= 2 else None

    def _below(self, run: Met, share: float) -> bool:
        """Whether a set is slow: below the floor, or by more than a share below what is usual."""
        if run.gbps is None:
            return False
        below_floor = self.floor is not None and run.gbps < self.floor
        return below_floor or (self.usual is not None and run.gbps < self.usual * (1 - share))

    def _bad(self, run: Met) -> bool:
        return not run.ok or run.wrong_way or self._below(run, self.spread)

    def _proven_nodes(self) -> set[str]:
        """Nodes that are in a pair which worked, and those that were proven before."""
        return {node for run in self.pairs if not self._bad(run) for node in run.nodes} | {*self.lent} - {*self.lost}

    def _suspects(self, healthy: set[str]) -> list[str]:
        return [node for node in self.nodes if node not in healthy and node not in self.lost]

    def _paths(self, healthy: set[str]) -> list[frozenset[str]]:
        """Pairs of good nodes that did not work; without those that were only slow, and not so when tried again."""
        bad_paths = []
        for pair in dict.fromkeys(run.pair for run in self.pairs if self._bad(run) and run.pair <= healthy):
            mets = [run for run in self.pairs if run.pair == pair]
            if self._bad(mets[-1]) or not all(run.ok for run in mets):
                bad_paths.append(pair)
        return bad_paths

    def _ring_bad(self, nodes: tuple[str, ...]) -> bool:
        run = next((m for m in self.rings if m.nodes == nodes), None)
        if run is None:
            return False
        return not run.ok or run.wrong_way or self._below(run, self.ring_fall)

    def _by_node(self) -> dict[str, list[Met]]:
        """Every node's pairs."""
        runs_by_node: dict[str, list[Met]] = {node: [] for node in self.nodes}
        for run in self.pairs:
            for node in run.nodes:
                runs_by_node[node].append(run)
        return runs_by_node

    def _verdict(self, node: str, mets: list[Met], known: set[str], known_paths: list[frozenset[str]]) -> Verdict:
        healthy = tuple(run for run in mets if not self._bad(run))
        bad = tuple(run for run in mets if self._bad(run))
        telling = [run for run in bad if run.partner(node) in known] or bad
        wrong_way = bool(telling) and all(run.wrong_way for run in telling)
        if healthy:
            paths = tuple(next(iter(path - {node})) for path in known_paths if node in path)
            ring, ring_ok, reason = self._ring(node)
            return Verdict("fine", "", healthy, bad, paths, False, ring, ring_ok, reason)
        if not mets:
            return Verdict("untested", self.lost.get(node, "there was no partner or no time left"))
        partners = {run.partner(node) for run in bad}
        if len(partners & known) >= 2:
            return Verdict("fault", self._describe_failures(node, bad, known), bad=bad, wrong_way=wrong_way)
        if node in self.lost:
            reason = f"after that: {self.lost[node]}"
        elif not known:
            reason = f"not one pair of the {len(self.nodes)} nodes works: look first at what they share"
            if len(self.nodes) == 2:
                reason = "with only two nodes nothing tells which of them it is, or the path between them"
        else:
            reason = "it met too few good nodes to tell whether it is the node or the path"
        return Verdict(
            "undecided", f"{self._describe_failures(node, bad, known)}; {reason}", bad=bad, wrong_way=wrong_way
        )

    def _describe_failures(self, node: str, bad: Iterable[Met], known: set[str]) -> str:
        """What did not work with whom; good nodes first, because they are the evidence."""
        rows = sorted(bad, key=lambda run: run.partner(node) not in known)
        return "; ".join(f"with {run.partner(node)}: {self.described(run)}" for run in rows[:4])

    def described(self, run: Met) -> str:
        """What a set reached, or why not, for people."""
        if not run.ok or run.wrong_way:
            return run.why or "it failed"
        if run.gbps is None:
            return "no rate"
        typical_rate, rate = self.usual, f"{run.gbps:.4g} GB/s"
        if self.floor is not None and run.gbps < self.floor:
            return f"{rate}, at least {self.floor:g} expected"
        return (
            f"{rate}, others reach {typical_rate:.4g}"
            if typical_rate is not None and self._below(run, self.spread)
            else rate
        )

    def _ring(self, node: str) -> tuple[tuple[str, ...], bool | None, str]:
        """The smallest ring that tells of a node: (its nodes, whether it worked, why not)."""
        rings = [run for run in self.rings if node in run.nodes]
        if not rings:
            return (), None, ""
        ring = rings[-1]
        if len(rings) > 1 and not self._ring_bad(ring.nodes):
            # Its half works. Where the other one does as well, it is the whole that does not.
            other_halves = [half for half in _halves(rings[-2].nodes) if half != ring.nodes]
            ring = ring if any(map(self._ring_bad, other_halves)) else rings[-2]
        is_healthy = not self._ring_bad(ring.nodes)
        return ring.nodes, is_healthy, "" if is_healthy else self.described(ring)


def _halves(ring: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Both halves of a ring; a node alone is none."""
    middle = (len(ring) + 1) // 2
    return [half for half in (ring[:middle], ring[middle:]) if len(half) >= 2]
