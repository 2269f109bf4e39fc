"""Sentences of more than 25 words in README.md and docs/: counted, and held below a ceiling that goes down.

    python -m scripts.sentences              fail where a page has more than scripts/data/sentences_ceiling.yaml allows
    python -m scripts.sentences --lower      lower the ceiling to the present numbers
    python -m scripts.sentences PAGE …       list them with their lines, the longest first

Inline code counts as one word, and a link's text as its words. Code blocks and generated parts are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.ceiling import hold

ROOT = Path(__file__).parent.parent
CEILING = Path(__file__).parent / "data/sentences_ceiling.yaml"
MOST_WORDS = 25
GENERATED = re.compile(r"docs/reference/((checks|runbook|documents)/(?!README)|cluster-yaml-)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_ITEM = re.compile(r"^\s*([-*]|\d+\.) |^\s*$|^#|^\s*\||^\s*<!--")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_GENERATED_PART = re.compile(r"<!-- [\w ]+: begin -->.*?<!-- [\w ]+: end -->", re.S)
_GAP = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)*\"]*\s+")
_WORD = re.compile(r"\S*\w\S*")


class Sentence(NamedTuple):
    """A sentence of a page. `line`: from 1, where its paragraph begins. `length`: in words."""

    line: int
    length: int
    text: str


def sentences(text: str) -> Iterator[Sentence]:
    """Every sentence of a page's prose: paragraphs, list items and cells of tables."""
    for line, paragraph in _paragraphs(text):
        codes = iter(_CODE.findall(paragraph))
        for part in _GAP.split(_LINK.sub(r"\1", _CODE.sub("¤", paragraph))):
            pieces = part.split("¤")
            sentence = pieces[0] + "".join(next(codes, "`…`") + piece for piece in pieces[1:])
            yield Sentence(line, len(_WORD.findall("code".join(pieces))), sentence)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs with the number of their first line, each cell of a table by itself; no code blocks."""
    start, lines, fenced, code, previous_blank = 0, list[str](), False, False, True
    hand_written = _GENERATED_PART.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate([*hand_written.splitlines(), ""], 1):
        if _FENCE.match(line):
            fenced = not fenced
            if lines:
                yield start, " ".join(lines)
            lines = []
            continue
        code = line.startswith("    ") and (previous_blank or code) and not _ITEM.match(line.strip())
        previous_blank = not line.strip()
        if fenced or code:
            continue
        if _ITEM.match(line) and lines:
            yield start, " ".join(lines)
            lines = []
        if line.lstrip().startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip(" |")))
        elif line.strip() and not line.startswith(("#", "<!--")):
            start = start if lines else number
            lines.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())


def long_sentences(text: str) -> list[Sentence]:
    """The sentences of more than 25 words."""
    return [sentence for sentence in sentences(text) if sentence.length > MOST_WORDS]


def count() -> dict[str, int]:
    """Page → how many long sentences it has; pages without one are left out."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    counts = {page: len(long_sentences(text)) for page, text in pages.items() if not GENERATED.match(page)}
    return {page: number for page, number in counts.items() if number}


def main(arguments: list[str]) -> int:
    if arguments and arguments != ["--lower"]:
        for page in arguments:
            rows = long_sentences(Path(page).read_text(encoding="utf-8"))
            for row in sorted(rows, key=lambda row: -row.length):
                print(f"{page}:{row.line}: {row.length} words: {row.text}")
        return 0
    noun = f"sentences of more than {MOST_WORDS} words"
    return hold(count(), CEILING, noun, "python -m scripts.sentences", lower=bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
