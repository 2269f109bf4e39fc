"""Edits of a file as hypothesis draws them: few numbers, so that what breaks a reader is minimised to few edits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hypothesis import strategies as st

GROWTH = 400_000
"""Bytes that an edited file may have: enough to show who takes the square of his input."""
STRANGE = (
    b"", b"\0", b"\n", b"\r\n", b" ", b"\t", b",", b":", b"|", b"-1", b"0", b"9" * 25, b"9" * 400, b"1e400", b"NaN",
    b"null", b"true", b"[]", b"{}", b'"', b"[", b"{", b"[" * 2000, b'{"a":' * 2000, b"<a>", b"<a>" * 500, b"&x;",
    b"]]>", b"N/A", b"[N/A]",
    b"\x1b[31m", b"\xe2\x80\xae", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xd9\xa3",
    b"../../etc/passwd", b"{{ 7*7 }}", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"ustar", b"PK\x03\x04", b"\x1f\x8b\x08",
    b"GNU.sparse.realsize=99999999999", b"30 size=4611686018427387904\n",
)  # fmt: skip
"""What parsers, archives and terminals have stumbled over."""
LENGTHS = (0, 1, 2, 4, 8, 12, 30, 100, 512, 4096, 50_000)
TIMES = (2, 3, 10, 100, 5000)


Kind = Literal["replace", "value", "overwrite", "repeat", "copy", "splice", "flip", "cut"]
"""`overwrite` and `flip` move nothing: a tar has its headers where they were. `value`: another value somewhere in a
JSON document."""
VALUES = (
    None, True, 0, -1, 7, 1.5, 10**30, 1e300, "", "x", "N/A", "9" * 30, [], {}, [1], ["x"], {"x": 1}, [[]], [None],
    [{}], {"x": {}}, "\ud800", "\u202e\x1b[2J",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit. `at` and `source` are thousandths of a file; `length` is in bytes."""

    kind: Kind
    at: int
    length: int = 0
    strange: int = 0
    times: int = 2
    source: int = 0

    def applied(self, content: bytes, other: bytes) -> bytes:
        """The edited content; `other`: another file, out of which a piece may come."""
        start = len(content) * self.at // 1000
        end = start + self.length
        head, piece, tail = content[:start], content[start:end], content[end:]
        match self.kind:
            case "replace":
                content = head + STRANGE[self.strange] + tail
            case "value":
                content = self._with_value(content)
            case "overwrite":
                content = head + STRANGE[self.strange] + content[start + len(STRANGE[self.strange]) :]
            case "repeat":
                content = head + (piece or STRANGE[self.strange]) * self.times + tail
            case "copy":
                origin = len(content) * self.source // 1000
                content = head + content[origin : origin + self.length] + piece + tail
            case "splice":
                origin = len(other) * self.source // 1000
                content = head + other[origin : origin + self.length] + tail
            case "flip":
                content = head + bytes(byte ^ (1 << self.times % 8) for byte in piece[:16]) + piece[16:] + tail
            case "cut":
                content = head
        return content[:GROWTH]

    def _with_value(self, content: bytes) -> bytes:
        """Content that is no JSON stays as it is."""
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return content
        places = list(_places(document))
        if not places:
            return content
        container, key = places[(len(places) - 1) * self.at // 1000]
        container[key] = VALUES[self.strange % len(VALUES)]
        return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: what holds it, and its key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


EDITS = st.lists(
    st.builds(
        Edit,
        st.sampled_from(get_args(Kind)),
        st.integers(0, 1000),
        st.sampled_from(LENGTHS),
        st.integers(0, len(STRANGE) - 1),
        st.sampled_from(TIMES),
        st.integers(0, 1000),
    ),
    max_size=5,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A file out of the corpus with its edits: its own name says where it came from."""

    name: str
    other: str
    edits: tuple[Edit, ...]

    def content(self, corpus: dict[str, bytes]) -> bytes:
        content = corpus[self.name]
        for edit in self.edits:
            content = edit.applied(content, corpus[self.other])
        return content


def cases(names: Sequence[str]) -> st.SearchStrategy[Case]:
    """Edited files of a corpus."""
    return st.builds(Case, st.sampled_from(names), st.sampled_from(names), EDITS.map(tuple))
