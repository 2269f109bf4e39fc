"""How a tool is declared: what runs on the node, the file of the bundle that keeps its output, and what reads it.

Each module of parsers/ ends with its TOOLS. The probe's commands, the files that a bundle can hold, what is asked of a
machine, the facts and their JSON document all follow from them (tools.py finds them). docs/extending/tool.md shows how
to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from provisioner.verify.document import plain

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

Asked = Literal["look", "again", "load", "during", "throughout", "after", "elsewhere"]
"""When a tool runs: with every look at a node; again where such a look shows what may be momentary; as a load of its
own (from level standard on, by request.py); beside the load program in the middle of its matrix products; again and
again from then to its end; when the load has ended; never on the node, because this computer asks somebody else."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One file of a bundle. Made by `command`, read off `paths`, or else by the function that a module of probe/ has
    registered for this name. Two declarations can share a file, each with a field of its own: the first one says how it
    is made."""

    file: str
    """Its name in a bundle."""
    field: str
    """Field of facts.Facts that gets what `parse` returns; "after.log" is the field `log` of `Facts.after`."""
    parse: Callable[[str], Any]
    """Text to facts; raises parsers.Unreadable for text that it does not understand, and nothing else."""
    command: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Files of the node, one after the other; of several, or with `empty`, those that exist."""
    seconds: float = 15.0
    """Deadline."""
    when: Callable[[Expected], object] | None = None
    """Whether it is asked of a machine that is expected to be so; None: of every one."""
    asked: Asked = "look"
    configured: bool = False
    """Only asked of nodes that gpuprov has configured."""
    drift: bool = False
    """Also asked where only drift from the lock is looked for (those that are `configured` always are)."""
    merge: bool = False
    """Standard error belongs into the output: the tool complains in the middle of its answer."""
    omit: str = ""
    """Regular expression (. matches newlines too) of what is left out of the output before it travels."""
    empty: bool = False
    """No output, or no such file, is an answer."""
    complaint_answers: bool = False
    """Where there is no output, standard error is the answer."""
    joined: Callable[[str, str], str] | None = None
    """(output, standard error) → the text that is parsed, where part of the answer is on standard error."""
    momentary: str = ""
    """Regular expression of what may be over in a moment: where the output has it, the tool is asked again, until it
    has it no more, LOOKS times at most. Each further answer is a file of its own (`further_looks`)."""
    training: str = ""
    """The same of what is momentary only in the first minutes after a boot: links that train."""
    label: str = ""
    """The command for people; by default `command`, or the first of `paths`."""
    added_later: bool = False
    """Whether bundles of older gpuprovs lack it: that condemns no node."""
    by_hand: bool = True
    """Whether a person could put the file into a bundle; False of what only the probe writes."""
    document: Mapping[str, Callable[[Any], Any]] | None = None
    """Key of the facts document → its value, made of the field (null where that is None). By default the field, whole,
    under its own name."""

    @property
    def source(self) -> str:
        """What makes the file, for messages and the runbook."""
        return self.label or " ".join(self.command) or next(iter(self.paths), self.file)

    @property
    def entries(self) -> Mapping[str, Callable[[Any], Any]]:
        return {self.field: plain} if self.document is None else self.document

    def to_json(self) -> dict[str, Any] | None:
        """What the probe has to know to make the file; None where a function of the probe's makes it."""
        if self.command:
            document: dict[str, Any] = {"argv": list(self.command), "merge": self.merge, "omit": self.omit}
            if self.momentary or self.training:
                document["again"] = {
                    "momentary": self.momentary,
                    "training": self.training,
                    "training_s": TRAINING_S,
                    "files": [look_file(self.file, number) for number in range(2, LOOKS + 1)],
                }
            return document
        return {"paths": list(self.paths), "empty": self.empty} if self.paths else None


LOOKS = 3
"""How often at most a tool is asked whose first answer shows what may be momentary: as often in a row as NVSentinel has
to see a fault (github NVIDIA/NVSentinel#1765; #1668 of the power brake, #1701 of links that train after a boot, which
it showed of 214 of 288 nodes without a fault)."""
TRAINING_S = 600.0
"""Seconds since boot in which a link may still train. gpuprov's own: DGX and cloud nodes take minutes to start fabric
manager (unverified)."""
TURNS = ("second", "third")


def look_file(file: str, number: int) -> str:
    """Name of a further look's file.

    >>> look_file("nvidia-smi.xml", 2)
    'nvidia-smi-2.xml'
    """
    stem, _, suffix = file.rpartition(".")
    return f"{stem}-{number}.{suffix}"


def further_looks(tool: Tool) -> tuple[Tool, ...]:
    """The declarations of the files that hold a tool's second and third answer."""
    return tuple(
        replace(
            tool, file=look_file(tool.file, number), field=f"{turn}.{tool.field}", asked="again", by_hand=False,
            complaint_answers=False, document={}, momentary="", training="",
            label=f"{tool.source}, look {number} at what may be momentary",
        )
        for number, turn in enumerate(TURNS, 2)
    )  # fmt: skip


def nvidia(expected: Expected) -> bool:
    """`when` for tools of NVIDIA's driver."""
    return expected.vendor == "nvidia"


def listed(values: Any) -> list[Any]:
    """For `document`: a tuple of texts or of dataclasses as a list."""
    return [plain(value) for value in values]
