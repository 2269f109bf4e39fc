"""A YAML file as plain values, with the line and column of every key and value.

YAML is read in the small: one document of mappings, lists and one-line scalars. What makes YAML a trap is refused with
its place and a remedy: duplicate keys, tabs, anchors, aliases, merge keys, tags, more documents, byte order marks,
control characters, words and numbers that YAML 1.1 and 1.2 read differently. Time and memory are bounded: at most
1 MiB, 50 levels, 10,000 keys and values, 100 problems; nothing here recurses. Positions start at 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from provisioner.common import yaml_text
from provisioner.spec.scalars import Scalar, read_scalar
from provisioner.spec.source_map import Loc, Mark, Source, shown
from provisioner.spec.textfile import read_text

MAX_DEPTH = 50
MAX_VALUES = 10_000

_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_UNCLOSED = ("found unexpected end of stream", "did not find expected ',' or")  # the opening says more than the end


class _Unreadable(Exception):
    """Reading stops here: nothing sensible can be said of the rest."""

    def __init__(self, at: tuple[int, int], message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


def read(path: str | os.PathLike[str]) -> Source:
    """Reads and composes a file. Whatever is wrong with it is in `problems`; raises nothing for any content."""
    source = Source(os.fspath(path))
    text = read_text(source)
    if text is None:
        return source
    try:
        _Composer(source).run(text)
    except _Unreadable as error:
        source.stop(error.at, error.message)
    except yaml.MarkedYAMLError as error:
        unclosed = error.context_mark and (error.problem or "").startswith(_UNCLOSED)
        mark = error.context_mark if unclosed else error.problem_mark or error.context_mark
        if range_at := _unquoted_range(error, text):
            source.stop(range_at, 'a name with "[" in it has to be quoted here, such as "dgx[01-04].lab"')
            return source
        position = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        source.stop(position, _syntax(error, text))
    except yaml.YAMLError as error:
        source.stop((1, 1), f"this is not YAML: {str(error).splitlines()[0]}")
    return source


def _unquoted_range(error: yaml.MarkedYAMLError, text: str) -> tuple[int, int] | None:
    """Where a plain word in { } runs into a "[", which begins a list there; None where that is not what is wrong."""
    mark = error.problem_mark
    if mark is None or not (error.problem or "").startswith("did not find expected ','"):
        return None
    lines = text.split("\n")
    word_match = re.search(r"[A-Za-z0-9._-]+$", lines[mark.line][: mark.column]) if mark.line < len(lines) else None
    return (
        (mark.line + 1, word_match.start() + 1) if word_match and lines[mark.line][mark.column :][:1] == "[" else None
    )


def _second_colon(error: yaml.MarkedYAMLError, text: str) -> str:
    """Of a ":" that ends no key there: the second one of its line, or one of a line that goes on the line before."""
    mark, lines = error.problem_mark, text.split("\n")
    if mark is None or mark.line >= len(lines) or re.search(r":\s", lines[mark.line][: mark.column]):
        return 'a second ": " in one line; quote the value'
    return f"this line is indented more than line {mark.line}, and goes on its value; indent the keys of a block alike"


def _syntax(error: yaml.MarkedYAMLError, text: str) -> str:
    """One sentence for what libyaml found; the usual mistakes in words of their own."""
    problem = error.problem or "unreadable"
    known_mistakes = {
        "mapping values are not allowed in this context": _second_colon(error, text),
        "did not find expected key": "a key was expected here; look at the indentation and at quotes",
        "found unexpected end of stream": "a quote is opened and never closed",
        "could not find expected ':'": 'a key without ":"',
        "did not find expected ',' or ']'": 'a list is opened with "[" and not closed',
        "did not find expected ',' or '}'": 'a block is opened with "{" and not closed',
        "found character that cannot start any token": "no value may start with this character; quote it",
        "did not find expected '-' indicator": 'a list item ("- ") was expected here; look at the indentation',
        "found undefined alias": "anchors and aliases are not used here",
    }
    return known_mistakes.get(problem, f"this is not YAML: {problem}")


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    loc: Loc
    value: dict[str, Any] | list[Any]
    key: str | None = None
    key_mark: tuple[int, int] = (1, 1)
    skip: bool = False
    """The key at hand has its problem already: its value is read and dropped."""


class _Composer:
    """Turns libyaml's events into values and marks, without recursion."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.open: list[_Frame] = []
        self.count = 0
        self.skipping = 0

    def run(self, text: str) -> None:
        documents = 0
        for event in self._events(text):
            at = (event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.source.report(at, (), "a second document", "one file holds one cluster: remove the ---")
                    return
                if event.tags:
                    self.source.report(at, (), "%TAG is not used here")
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                self.count += 1
                if self.count > MAX_VALUES or len(self.open) + self.skipping > MAX_DEPTH:
                    unit = "values" if self.count > MAX_VALUES else "levels"
                    raise _Unreadable(at, f"too many {unit}: this is hardly a cluster.yaml")
                self._node(event, at)
        if documents == 0:
            self.source.stop((1, 1), "the file is empty", "`gpuprov init` writes one to start from")

    def _events(self, text: str) -> Iterator[Any]:
        yield from yaml.parse(text, yaml_text.LOADER)

    def _node(self, event: Any, at: tuple[int, int]) -> None:
        if isinstance(event, yaml.CollectionEndEvent):
            if self.skipping:
                self.skipping -= 1
            else:
                self.open.pop()
            if not self.skipping:
                self._key_done()
            return
        opens = isinstance(event, yaml.CollectionStartEvent)
        if self.skipping:
            self.skipping += opens
            return
        frame = self.open[-1] if self.open else None
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            self._key(frame, event, at)
            return
        loc: Loc = () if frame is None else (*frame.loc, self._part(frame))
        if frame is not None and frame.skip:
            if opens:
                self.skipping = 1
            else:
                self._key_done()
            return
        self._value(frame, loc, event, at)

    def _part(self, frame: _Frame) -> str | int:
        return len(frame.value) if isinstance(frame.value, list) else frame.key or ""

    def _value(self, frame: _Frame | None, loc: Loc, event: Any, at: tuple[int, int]) -> None:
        value: Any
        raw = None
        self._refuse_anchor_and_tag(event, loc, at)
        if isinstance(event, yaml.ScalarEvent):
            scalar = self._scalar(event, loc, at)
            value, raw = scalar.value, event.value if event.implicit[0] else None
        elif isinstance(event, yaml.AliasEvent):
            value = None
        else:
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        is_key = frame is not None and isinstance(frame.value, dict)
        self.source.marks[loc] = Mark(frame.key_mark if frame is not None and is_key else at, at, raw)
        if frame is None:
            self.source.value = value
        elif isinstance(frame.value, list):
            frame.value.append(value)
        else:
            frame.value[frame.key or ""] = value
        if isinstance(value, dict | list):
            self.open.append(_Frame(loc, value))
        else:
            self._key_done()

    def _key_done(self) -> None:
        if self.open:
            self.open[-1].key = None
            self.open[-1].skip = False

    def _key(self, frame: _Frame, event: Any, at: tuple[int, int]) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise _Unreadable(at, "a key must be a word")
        key = event.value
        loc = (*frame.loc, key)
        frame.key, frame.key_mark = key, at
        frame.skip = False
        assert isinstance(frame.value, dict)
        if event.implicit[0] and key == "<<":
            self.source.report(at, loc, "merge keys (<<) are not used here", "write the values out")
            frame.skip = True
        elif key in frame.value:
            first = self.source.mark(loc).key[0]
            self.source.report(at, loc, f"duplicate key {shown(key)}", f"the first is in line {first}")
            frame.skip = True
        elif not key:
            self.source.report(at, frame.loc, "an empty key")
            frame.skip = True
        else:
            self._refuse_anchor_and_tag(event, loc, at)
            scalar = self._scalar(event, loc, at, key=True)
            if not isinstance(scalar.value, str) and loc not in self.source.broken:
                self.source.report(at, loc, f"the key {shown(key)} is not a word", "quote it if it is meant as one")
                self.source.broken.add(loc)
            frame.skip = loc in self.source.broken
        if frame.skip and key not in frame.value:
            self.source.partial.add(frame.loc)

    def _scalar(self, event: Any, loc: Loc, at: tuple[int, int], *, key: bool = False) -> Scalar:
        scalar = read_scalar(event.value, plain=event.implicit[0])
        if scalar.problem:
            self.source.report(at, loc, scalar.problem, scalar.hint)
            self.source.broken.add(loc)
        elif isinstance(scalar.value, str) and (invisible := _INVISIBLE.search(scalar.value)):
            kind = "a line break" if invisible[0] in "\r\n" else f"the invisible character U+{ord(invisible[0]):04X}"
            self.source.report(
                at, loc, f"{kind} inside a {'key' if key else 'value'}", "every value is one line of text"
            )
            self.source.broken.add(loc)
        return scalar

    def _refuse_anchor_and_tag(self, event: Any, loc: Loc, at: tuple[int, int]) -> None:
        if event.anchor is not None:
            kind = "an alias" if isinstance(event, yaml.AliasEvent) else "an anchor"
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            self.source.report(at, loc, f"{kind} ({sign}{event.anchor[:40]}) is not used here", "write the value out")
            self.source.broken.add(loc)
        if getattr(event, "tag", None) is not None:
            self.source.report(at, loc, f"the tag {shown(event.tag)} is not used here", "quote the value if it is text")
            self.source.broken.add(loc)
