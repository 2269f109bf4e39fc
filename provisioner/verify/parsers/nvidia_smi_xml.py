"""The elements of `nvidia-smi -q -x`, as paths and texts.

A GPU of a fleet has the same tags in thousands of documents: how they nest is understood once. What is unusual in any
way (another attribute, a reference, a comment, a control character) is read by expat.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from operator import itemgetter
from typing import Any
from xml.etree import ElementTree  # the document comes from our own node; expat >= 2.4.1 bounds entities

BETWEEN = re.compile(r">[ \t\r\n]+<")
"""What only indents: a third of the time that expat takes for the document."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CONTROL = bytes(n for n in range(32) if n not in (9, 10, 13))
"""What no XML has."""


@dataclass(frozen=True, slots=True)
class Walked:
    """All below an element: each element's path and its text, in their order; `texts` has the first text of each
    path."""

    id: str | None
    paths: tuple[str, ...]
    values: tuple[str | None, ...]
    texts: dict[str, str | None]

    @classmethod
    def of(cls, paths: tuple[str, ...], values: tuple[str | None, ...], id: str | None = None) -> Walked:
        return cls(id, paths, values, dict(zip(reversed(paths), reversed(values), strict=True)))

    def below(self, path: str) -> tuple[tuple[str, str | None], ...]:
        """(path from there, text) of what is below the first element at a path."""
        first, paths = _below(self.paths, path)
        return tuple(zip(paths, self.values[first : first + len(paths)], strict=True))


@lru_cache(64)
def _below(paths: tuple[str, ...], path: str) -> tuple[int, tuple[str, ...]]:
    """Where what is below the first element at a path begins, and its paths from there."""
    first = paths.index(path) + 1 if path in paths else len(paths)
    inner = takewhile(lambda inner_path: inner_path.startswith(path + "/"), paths[first:])
    return first, tuple(inner_path.removeprefix(path + "/") for inner_path in inner)


@dataclass(frozen=True, slots=True)
class Document:
    """The elements beside the GPUs, each GPU, and what stands between elements."""

    top: Walked
    gpus: list[Walked]
    stray: list[str]


def read(document: str) -> Document:
    """Raises ElementTree.ParseError or ValueError for what is no XML, RecursionError for what is too deep."""
    return read_by_outline(document) or walk(
        ElementTree.fromstring(BETWEEN.sub("><", document).encode("utf-8", "replace"))  # noqa: S314
    )


def walk(root: ElementTree.Element) -> Document:
    """Of a tree."""
    stray: list[str] = []

    def walked(element: ElementTree.Element, apart: str = "") -> Walked:
        pairs: list[tuple[str, str | None]] = []
        if element.text and element.text.strip(" \t\r\n"):
            stray.append(element.text)
        _walk(element, "", pairs, stray, apart)
        return Walked.of(tuple(path for path, _ in pairs), tuple(text for _, text in pairs), element.get("id"))

    return Document(walked(root, "gpu"), [walked(element) for element in root.findall("gpu")], stray)


def _walk(
    above: ElementTree.Element, path: str, rows: list[tuple[str, str | None]], stray: list[str], apart: str = ""
) -> None:
    """What stands between elements goes to `stray`; elements named `apart` that lie directly below are left out."""
    for child in above:
        tail, child_path = child.tail, path + child.tag
        if tail and tail.strip(" \t\r\n"):
            stray.append(tail)
        if child_path == apart:
            continue
        rows.append((child_path, child.text))
        if len(child):
            _walk(child, child_path + "/", rows, stray)


def read_by_outline(document: str) -> Document | None:
    """None where it is not as simple as most are."""
    raw = document.encode("utf-8", "replace")
    if document.count("<") != document.count(">"):
        return None
    if "&" in document or len(raw.translate(None, _CONTROL)) != len(raw) or not document.isascii():
        return None
    first, *later = document.split('<gpu id="')
    parts: list[tuple[str, str]] = []
    after = ""
    for part in later:
        inside, end, after = part.partition("</gpu>")
        id, _, text = inside.partition('">')
        if not end or (after.strip(" \t\r\n") and part is not later[-1]):
            return None
        parts.append((id, text))
    root = first.partition(">")[0].strip("<")
    head = first + after
    if "<gpu>" in head or (parts and not (_nest(f"{first}</{root}>") and _nest(f"<{root}>{after}"))):
        return None  # GPUs without an address, or elsewhere than directly below the first element
    stray: list[str] = []
    walked = []
    for id, text in [("", head), *parts]:
        pieces = text.replace(">", "<").split("<")  # text, tag, text, …, unless a text has a ">"
        outline = _outline("<".join(pieces[1::2]))
        if outline is None or not {*id}.isdisjoint('<>"'):
            return None
        between = [pieces[0], *outline.tails(pieces)]
        stray += [text_between for text_between in between if text_between.strip()] if "".join(between).strip() else []
        walked.append(Walked.of(outline.paths, outline.texts(pieces), id))
    if (root_text := walked[0].values[0]) and root_text.strip():
        stray.append(root_text)
    top = [(path.partition("/")[2], text) for path, text in zip(walked[0].paths, walked[0].values, strict=True)][1:]
    return Document(Walked.of(tuple(path for path, _ in top), tuple(text for _, text in top)), walked[1:], stray)


def _nest(text: str) -> bool:
    """Whether tags close in their order, below one element."""
    pieces = text.replace(">", "<").split("<")
    outline = _outline("<".join(pieces[1::2]))
    return outline is not None and all("/" in path for path in outline.paths[1:])


@dataclass(frozen=True, slots=True)
class _Outline:
    """Paths of elements, and where their texts, and what follows their ends, are among the pieces."""

    paths: tuple[str, ...]
    texts: Callable[[list[str]], tuple[Any, ...]]
    tails: Callable[[list[str]], tuple[Any, ...]]


@lru_cache(64)
def _outline(tags: str) -> _Outline | None:
    """Of tags as they follow each other; None where they do not nest, or have more than a name."""
    paths: list[str] = []
    texts: list[int] = []
    tails: list[int] = []
    above: list[str] = []
    for index, tag in enumerate(tags.split("<") if tags else ()):
        name = tag.removeprefix("/")
        if not _NAME.fullmatch(name):
            return None
        if tag.startswith("/"):
            if not above or above.pop() != name:
                return None
            tails.append(2 * index + 2)
            continue
        paths.append("/".join([*above, name]))
        texts.append(2 * index + 2)
        above.append(name)
    return None if above else _Outline(tuple(paths), _picks(texts), _picks(tails))


def _picks(indexes: list[int]) -> Callable[[list[str]], tuple[Any, ...]]:
    """What takes the pieces at these places; itemgetter gives a tuple from two on."""
    return itemgetter(*indexes) if len(indexes) > 1 else lambda pieces: tuple(pieces[index] for index in indexes)
