"""How a check is written: one pytest function under one decorator.

    @check("gpu.count", severity="fatal", action="replace", needs=("gpus",), says="a GPU is missing")
    def test_count(node, expected):
        compare(expected.gpu_count, len(node.gpus))

`applies` is asked first: a check with nothing to judge on a machine is skipped, whatever its tools say. Then two rules
keep one cause to one failing check, and neither is an `if` in a check:

- `needs` names the files (or "gpus", the list of GPUs of the machine's vendor) that a check reads. Where one of them is
  absent, hung, missing or unreadable the check is `unknown`, with that reason, and its function is not called.
- `follows` names checks whose failure explains this one. Where this check would fail, or could not be answered, and one
  of them has failed on the same node, it is `unknown` ("explained by …") with their action; a pass stays a pass.
  `silences` is the same from the other side: the files that cannot be read where this check has failed.

`measured` and `documented` say what a check rests on: real output of the tool (a capture in tests/unit/verify/captures,
as tool/name), or what a vendor, the tool's source or an operator of such machines has written. A fatal check of gpuprov
has one of them. A failure at a limit that has neither (catalog/data, Expected.unverified) only warns; so does a failure
of a check that has read an expected value without either (Expected.basis; basis.py notes what is read).

What a check judges it judges on the GPUs that answer: that one is gone is gpu.count's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from provisioner.common.levels import LEVELS, Level
from provisioner.verify.expectations import Expected

Severity = Literal["fatal", "warn", "info"]
Action = Literal["none", "reconfigure", "clean", "reset", "reboot", "replace", "vendor"]
SEVERITIES: tuple[Severity, ...] = ("fatal", "warn", "info")
ACTIONS: tuple[Action, ...] = ("none", "reconfigure", "clean", "reset", "reboot", "replace", "vendor")

F = TypeVar("F", bound=Callable[..., None])


NO_GPUS = "this machine has no GPU"
CUT_UP = "GPUs that are cut up by MIG are not loaded: a program sees one instance of one of them"


@dataclass(frozen=True, slots=True)
class Check:
    """What is declared of a check. `says` is the sentence for the person on call."""

    id: str
    severity: Severity
    action: Action
    says: str
    needs: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    level: Level = "quick"
    """The lowest level that runs it; below it the check is skipped unless its files are there."""
    reads: tuple[str, ...] = ()
    """Files that it looks at without needing them all, where it says itself what it means that one is not there: it is
    judged below its level where any of them is."""
    vendor: Literal["nvidia", "amd", "any"] | None = None
    """The vendor whose GPUs it is about; any: of both; None: it is not about GPUs, or `needs` says so."""
    applies: Callable[[Expected], object] | None = None
    """Whether what is expected of the node gives this check anything to judge; decided before any fact is looked at."""
    otherwise: str = ""
    """Why it does not apply, where `applies` says so."""
    silences: tuple[str, ...] = ()
    """Files that say nothing where it has failed."""
    listing: bool = False
    """A list of the GPUs (nvidia-smi's table, -L) is enough for it to pass: it is unknown by itself where a value that
    it needs is not there. Any other check of the GPUs is unknown where it finds nothing wrong in such a list."""
    measured: str = ""
    """The capture that shows what it judges."""
    documented: str = ""
    """Who has written what it judges."""
    lock: str = ""
    """What of it cannot be judged without a lock and the cluster.yaml beside it, and why; empty where it needs none."""
    without_lock: str = ""
    """What it judges without one all the same; empty where that is nothing."""

    @property
    def basis(self) -> Literal["measured", "documented", "unverified"]:
        return "measured" if self.measured else "documented" if self.documented else "unverified"

    @property
    def is_about_gpus(self) -> bool:
        """Whether a machine without GPUs gives it nothing to judge."""
        return self.vendor is not None or bool({"gpus", "load.json"} & {*self.needs})

    def inapplicable(self, expected: Expected) -> str:
        """Why the check does not apply to a node, or ""."""
        if expected.vendor == "none" and self.is_about_gpus:
            return NO_GPUS
        if self.vendor in ("nvidia", "amd") and self.vendor != expected.vendor:
            return f"for {self.vendor} GPUs"
        if "load.json" in self.needs and expected.mig:
            return CUT_UP
        return self.otherwise if self.applies is not None and not self.applies(expected) else ""


class Verdict(Exception):
    """How a check ends other than by passing."""


class Failed(Verdict):
    def __init__(
        self, message: str, action: Action | None = None, unverified: tuple[str, ...] = (), *, observed: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.unverified = unverified
        """The unverified limits on which alone it rests."""
        self.observed = observed
        """Whether the node itself shows it, whatever is expected."""


class Unknown(Verdict):
    def __init__(self, reason: str, unread: str = "", action: Action | None = None, *, condemns: bool = True) -> None:
        super().__init__(reason)
        self.action = action
        self.condemns = condemns
        """False where the node is not to blame: the gpuprov that collected the bundle did not know the file yet, there
        was no other node to look with, or a failure would only warn for want of a lock. It only warns then, whatever
        the check's severity."""
        self.unread = unread
        """The file that could not be read, where that is the reason."""


LATER = "only from level "
"""How the reason of a check begins that a higher level would have answered."""
NEEDS_MACHINE = "what is expected follows from the machine type: --machine TYPE"
"""The reason of a check that was not judged because nobody named the machine type."""
NO_TYPE = "the machine type"
"""What a failure rests on, for `unverified`, where a node shows it and only a machine type tells whether it matters."""
NO_LOCK = "whether jobs use it: no lock says so"
"""What a failure rests on, for `unverified`, where a node contradicts itself and only a lock tells whether jobs use
what is wrong there."""
CRASHED, TIMED_OUT = "the check crashed: ", "the check timed out on this node"
"""How the reason of a check begins whose own code is at fault."""


class Skipped(Verdict):
    pass


class Noted(Verdict):
    """Worth knowing, and no failure: a fact, or what is over."""


class _Seen:
    """What the running check has compared; checks run one after another in one process."""

    expected: Any = None
    actual: Any = None
    note: str = ""
    unverified: set[str]
    """The unverified fields of Expected that it has read (basis.py)."""
    applied: frozenset[str] = frozenset()
    """Those that were read to decide whether the check applies."""
    undecided: bool = False
    """Whether it applies depends on the machine type, which nobody named."""

    def __init__(self) -> None:
        self.unverified = set()

    def begin(self) -> None:
        """Another check begins."""
        self.expected, self.actual, self.note, self.applied, self.undecided = None, None, "", frozenset(), False
        self.unverified.clear()

    def applies(self) -> None:
        """The check applies; what is read from here on is what it judges."""
        self.applied = frozenset(self.unverified)


seen = _Seen()


def check(
    id: str,
    *,
    severity: Severity,
    action: Action,
    says: str,
    needs: tuple[str, ...] = (),
    follows: tuple[str, ...] = (),
    level: Level = "quick",
    vendor: Literal["nvidia", "amd", "any"] | None = None,
    applies: Callable[[Expected], object] | None = None,
    otherwise: str = "it does not apply",
    silences: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    listing: bool = False,
    measured: str = "",
    documented: str = "",
    lock: str = "",
    without_lock: str = "",
) -> Callable[[F], F]:
    """Declare a test function as a check. `needs`, `follows`, `measured` and `documented` are explained at the head
    of this module. Raises ValueError for another severity, action or level than there is: one that nobody knows would
    condemn no node."""
    for parameter, value, allowed in (
        ("severity", severity, SEVERITIES),
        ("action", action, ACTIONS),
        ("level", level, LEVELS),
    ):
        if value not in allowed:
            raise ValueError(f"check {id}: {parameter} {value!r} is not one of {', '.join(allowed)}")
    declared = Check(
        *(id, severity, action, says, needs, follows, level, reads, vendor, applies, otherwise, silences),
        *(listing, measured, documented, lock, without_lock),
    )

    def mark(function: F) -> F:
        function.__check__ = declared  # type: ignore[attr-defined]
        return function

    return mark


def saw(*, expected: Any = None, actual: Any = None, note: str = "") -> None:
    """Write down what is compared, for the report; also where the check passes."""
    seen.expected, seen.actual, seen.note = expected, actual, note


def compare(expected: Any, actual: Any, message: str = "", *, action: Action | None = None) -> None:
    """Pass when both are equal; unknown when the tool reported no value (None)."""
    saw(expected=expected, actual=actual)
    if actual is None:
        unknown("the tool reported no value")
    if actual != expected:
        fail(message or f"{actual} instead of {expected}", action=action)


def fail(
    message: str, *, action: Action | None = None, unverified: tuple[str, ...] = (), observed: bool = False
) -> NoReturn:
    """The check fails; `action` where it is another than the declared one. `unverified` are the limits without evidence
    (Expected.unsupported) on which alone the failure rests: it warns then, whatever the check's severity. So it does
    where the check has read an unverified value of `expected`, unless `observed`: the node itself shows what is wrong,
    and no expected value is part of it."""
    raise Failed(message, action, unverified, observed=observed)


def note(message: str) -> NoReturn:
    """Nothing is wrong now, and this is worth knowing: an event that is over, a total that does not grow."""
    raise Noted(message)


def unknown(reason: str, unread: str = "", *, action: Action | None = None, condemns: bool = True) -> NoReturn:
    """The check applies and cannot be answered; `unread` is the file that could not be read, where that is why;
    `condemns` as in Unknown."""
    raise Unknown(reason, unread, action, condemns=condemns)


def skip(reason: str) -> NoReturn:
    """The check does not apply to this machine."""
    raise Skipped(reason)
