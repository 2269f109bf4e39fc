"""Why no versions are compatible: which requirements conflict, the facts, and the nearest set that works."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from provisioner.common.errors import GpuprovError
from provisioner.stack.candidates import Candidate, candidates, readable, starts
from provisioner.stack.components import label, title
from provisioner.stack.facts import rows
from provisioner.stack.resolve import Need, Problem, Unsolvable, resolve, solvable

Place = Callable[[str], str]
"""A dotted key of cluster.yaml → where it stands ("cluster.yaml:7"); the key itself where nobody knows the file."""


UNKNOWN = "not known to this release of gpuprov"
"""Facts end somewhere: what no row has may be there all the same."""


class StackConflict(GpuprovError):
    """Requirements that no set of versions satisfies together. `asked`: the key of cluster.yaml of each → what it asks
    for and where it stands, pins first; `reasons`: the facts against it, one sentence each."""

    code = "version_conflict"

    def __init__(
        self, message: str, *, where: str, hint: str, asked: Mapping[str, str], reasons: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.asked, self.reasons = asked, reasons

    @property
    def paths(self) -> tuple[str, ...]:
        """The keys of cluster.yaml that conflict."""
        return tuple(self.asked)


def conflict(problem: Problem, title: str, locate: Place) -> StackConflict:
    """Explain an unsolvable problem in at most five lines. `title` names the group and its machine."""
    minimal = _minimal(problem)
    requests = {need.path: f"{need.says} ({locate(need.path)})" for need in _distinct(minimal)}
    reasons = tuple(_reasons(minimal)[:2])
    pins = [path for path in requests if path.startswith("stack.")]
    first, *other_requests = requests.values()
    head = f"{title}: no compatible versions: {first} conflicts with {joined(other_requests)}" if other_requests else (
        f"{title}: no compatible versions for {first}")  # fmt: skip
    return StackConflict(
        "\n  ".join([head, *reasons]),
        where=locate(pins[0] if pins else next(iter(requests))),
        hint=_nearest(problem, pins),
        asked=requests,
        reasons=reasons,
    )


def joined(texts: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def _minimal(problem: Problem) -> Problem:
    """A part of the problem that has no answer, of which every single requirement is to blame."""
    for path in dict.fromkeys(need.path for need in problem.needs):
        smaller = problem.without(path)
        if not solvable(smaller):
            problem = smaller
    return problem


def _distinct(problem: Problem) -> list[Need]:
    """One need for each key of cluster.yaml, what is pinned first, the machine last."""
    by_path: dict[str, Need] = {}
    for need in problem.needs:
        by_path.setdefault(need.path, need)
    return sorted(by_path.values(), key=lambda need: not need.path.startswith("stack."))


def _reasons(problem: Problem) -> list[str]:
    """The facts that stand against it, one sentence each, those of pinned components first."""
    for need in problem.needs:
        if not any(need.met_by(candidate) for candidate in problem.candidates.get(need.name, ())):
            return [_what_exists(need, problem)]
    builds = [need for need in problem.needs if need.build is not None]
    if builds and (build_reason := _builds(problem)):
        return [build_reason]
    sentences: dict[tuple[str, str], str] = {}
    try:
        resolve(problem)
    except Unsolvable as error:
        for need, parent in error.causes:
            if parent is not None:
                sentences.setdefault((parent.name, need.name), _sentence(parent, need))
    pinned = {need.name for need in problem.needs if need.pin}
    return [*sentences.values(), *dict.fromkeys(n.reason for n in problem.needs if n.reason and n.name in pinned)]


def _sentence(parent: Candidate, need: Need) -> str:
    values = ", ".join(need.spec) if isinstance(need.spec, tuple) else need.spec
    source = f" [{parent.source}]" if parent.source else ""
    if need.name == "gpu":
        return f"{parent.label} runs on {values}{source}"
    if need.name == "os":
        return f"{parent.label} is packaged for {values}{source}"
    if need.name == "gpu_class":
        return f"{parent.label} takes such an old driver on {values} GPUs only{source}"
    verb = "has" if parent.name == "vendor_image" else "needs"
    return f"{parent.label} {verb} {title(need.name)} {readable(values)}{source}"


def _what_exists(need: Need, problem: Problem) -> str:
    """That nothing has the version that is asked for, and what there is around it."""
    pin = need.pin or str(need.spec)
    release, plus, build = pin.partition("+")
    if need.name == "pytorch" and plus:
        known_rows = [row for row in rows("pytorch") if starts(row["version"], release)]
        if known_rows:
            if build.startswith("rocm") != any(c.facts["maker"] == "AMD" for c in problem.candidates["pytorch"]):
                return f"{build} is a build for {'AMD' if build.startswith('rocm') else 'NVIDIA'} GPUs"
            builds = [*known_rows[-1]["cuda_builds"], *(f"rocm{b}" for b in known_rows[-1]["rocm_builds"])]
            return f"PyTorch {known_rows[-1]['version']}+{build} is {UNKNOWN}; it knows {', '.join(builds)}"
    if need.name == "driver" and not any(starts(c.facts["branch"], pin[:3]) for c in problem.candidates["driver"]):
        branches = sorted({str(c.facts["branch"]) for c in problem.candidates["driver"]})
        return f"driver branch {pin[:3]} is {UNKNOWN}; it knows {', '.join(branches)}"
    around = _by_distance((c.version for c in problem.candidates.get(need.name, ())), pin)[:4]
    return f"{label(need.name, pin)} is {UNKNOWN}; the nearest: {', '.join(around) or 'none'}"


def _builds(problem: Problem) -> str:
    """Which CUDA the builds of the pinned PyTorch have."""
    pins = [need for need in problem.needs if need.name == "pytorch" and need.pin]
    if not pins:
        return ""
    pinned_candidates = [c for c in problem.candidates["pytorch"] if all(pin.met_by(c) for pin in pins)]
    cuda = next(need.build for need in problem.needs if need.build is not None)
    if any(str(c.facts.get("cuda", "")).startswith(cuda) for c in pinned_candidates):
        return ""
    have = sorted(
        {".".join(c.facts["cuda"].split(".")[:2]) for c in pinned_candidates if "cuda" in c.facts}, key=_numbers
    )
    short = cuda.replace(".", "")
    return f"PyTorch {pins[0].pin} for CUDA {cuda} (cu{short}) is {UNKNOWN}; its builds have CUDA {', '.join(have)}"


def _nearest(problem: Problem, pins: list[str]) -> str:
    """What to write instead, for up to two of the pins, each solved for real."""
    offers = []
    for path in pins:
        need = next(n for n in problem.needs if n.path == path)
        try:
            solution = resolve(_around(problem.without(path, keep_component=need.pin is not None), need))
        except Unsolvable:
            continue
        if need.pin is None:
            offers.append(f"{path}: [{_image_for(problem, path)}]")
        elif path == "stack.cuda" and any(n.build for n in problem.needs) and solution["pytorch"].facts.get("cuda"):
            offers.append(f'{path}: "{".".join(solution["pytorch"].facts["cuda"].split(".")[:2])}"')
        else:
            offers.append(f'{path}: "{_short(solution[need.name])}"')
    if offers:
        return f"nearest that works: {' or '.join(offers[:2])}"
    if together := _all_moved(problem, pins):
        return f"nearest that works: {together}"
    return f"leave out {', '.join(pins)}" if pins else "no known version supports this machine"


def _all_moved(problem: Problem, pins: list[str]) -> str:
    """The nearest set where moving one pin is not enough: all of them free, those named that must move."""
    free = problem
    pinned_needs = [need for need in problem.needs if need.pin is not None]
    for need in pinned_needs:
        free = free.without(need.path, keep_component=True)
    first = next((need for need in pinned_needs if need.path in pins), None)
    if first is None:
        return ""
    try:
        solution = resolve(_around(free, first))
    except Unsolvable:
        return ""
    return " and ".join(
        f'{n.path}: "{_short(solution[n.name])}"' for n in pinned_needs if not n.met_by(solution[n.name])
    )


def _image_for(problem: Problem, path: str) -> str:
    """The framework image that goes with everything but the images that are named."""
    free = problem.without(path)
    solution = resolve(replace(free, candidates={**free.candidates, "pytorch": candidates("pytorch")}))
    return str(solution["pytorch"].facts["reference"])


def _around(problem: Problem, need: Need) -> Problem:
    """The problem with one component's candidates in order of their distance from what was asked for."""
    if need.name not in problem.candidates or need.pin is None:
        return problem
    some = problem.candidates[need.name]
    order = _by_distance({c.version for c in some}, need.pin)
    reordered = [replace(c, rank=(order.index(c.version.partition("+")[0]), *c.rank)) for c in some]
    return replace(problem, candidates={**problem.candidates, need.name: reordered}, near=need.name)


def _by_distance(versions: Iterable[str], pin: str) -> list[str]:
    """Versions without their builds, the nearest to a pin first: by their places in the order of all, the newer of two
    equally far ones first."""
    ordered = sorted({version.partition("+")[0] for version in versions}, key=_numbers)
    at = bisect_left([_numbers(version) for version in ordered], _numbers(pin.partition("+")[0]))
    return sorted(ordered, key=lambda version: (abs(ordered.index(version) - at + 0.25), version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", re.sub(r"a\d+$", "", version)))


def _short(candidate: Candidate) -> str:
    """What one would write in cluster.yaml to get it."""
    if candidate.name == "driver":
        return str(candidate.facts["branch"])
    if candidate.name == "cuda":
        return ".".join(candidate.version.split(".")[:2])
    if candidate.name == "pytorch" and candidate.facts["maker"] == "NVIDIA":
        return ".".join(candidate.version.split(".")[:2])  # the series: its builds are no releases
    return candidate.version
