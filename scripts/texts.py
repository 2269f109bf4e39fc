"""Texts that gpuprov shows to users, as the code has them: errors, hints, findings, help, checks, events. Those that
are hard to read are counted, and held below a ceiling that goes down.

    python -m scripts.texts              fail where a file has more than scripts/data/texts_ceiling.yaml allows
    python -m scripts.texts --lower      lower the ceiling to the present numbers
    python -m scripts.texts --all        every text with its place
    python -m scripts.texts PATH …       the texts of these files or folders that are hard to read, with the reason
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.ceiling import hold
from scripts.sentences import MOST_WORDS, sentences

ROOT = Path(__file__).parent.parent
CODE = ROOT / "provisioner"
CEILING = Path(__file__).parent / "data/texts_ceiling.yaml"
NOT_SHOWN = ("sandbox/node/", "verify/probe/", "verify/load/")
"""Programs that imitate other tools, or run on nodes: their texts are those tools' own, or data."""
CALLS = re.compile(
    r"(Error|Conflict|Finding|Problem|Diagnosis|Interrupted|Declined|Argument|Option|Entry|Fault|check|events|fail|unknown|skip)$"
)
"""Names of what is called with texts for users."""
KEYWORDS = {"hint", "help", "says", "otherwise", "message", "action", "mend"}
NAMES = {"message", "messages", "hint", "reason"}
"""Variables that hold one."""
HARD = {
    "is no X": re.compile(r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|route|room|disk space|such)\w+"),
    "is none": re.compile(r"\b(?:is|are|was|were|has) none\b"),
    "can be had": re.compile(r"\bbe had\b|\bto be (?:\w+ed|made|said|told)\b"),
    "can't": re.compile(r"\b(?:can't|won't|isn't|doesn't|couldn't)\b"),
    "told, said, asked": re.compile(
        r"\b(?:told|says so|said|tells of|anew|whoever|whatever|wherever|once more|of one's own|thereof|beside it)\b"
    ),
    "of yours": re.compile(r"\b(?:of|is|are) (?:yours|gpuprov's own|nobody's|theirs)\b|\bnobody\b|\bsomebody\b"),
    "where that is so": re.compile(r"\bwhere (?:that|this|it) (?:is|was|can|does|did)\b|\bof (?:a|the) \w+ that\b"),
}
"""Idioms that readers stumble over, by a name for the list."""


class Text(NamedTuple):
    """A text of the code. Values of an f-string stand as {…}."""

    file: str
    line: int
    text: str


def texts(file: Path) -> Iterator[Text]:
    """The texts for users of one module."""
    name, known = file.relative_to(ROOT).as_posix(), set[int]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for value in _values(node):
            for part in _strings(value):
                if id(part) not in known and " " in (text := _written(part)).strip():
                    known.add(id(part))
                    yield Text(name, part.lineno, text)


def _values(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that make a text for users."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        if CALLS.search(called):
            yield from node.args
        yield from (keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS)
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in NAMES for target in targets):
            yield node.value


def _strings(value: ast.expr) -> Iterator[ast.Constant | ast.JoinedStr]:
    """The strings of an expression, without those within calls and f-strings."""
    if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
        yield value
    elif isinstance(value, (ast.IfExp, ast.BinOp, ast.BoolOp, ast.Tuple, ast.List)):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _strings(child)


def _written(part: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return "".join(str(v.value) if isinstance(v, ast.Constant) else "{…}" for v in part.values)


def problems(text: str) -> list[str]:
    """Why a text is hard to read; empty where it is not."""
    plain = re.sub(r"`[^`]*`", "`code`", text)
    reasons = [name for name, pattern in HARD.items() if pattern.search(plain)]
    longest = max((sentence.length for sentence in sentences(text)), default=0)
    return [*reasons, *([f"{longest} words"] if longest > MOST_WORDS else [])]


def modules(paths: list[Path]) -> list[Path]:
    """The modules of these files and folders that show texts."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [file for file in files if not file.relative_to(CODE).as_posix().startswith(NOT_SHOWN)]


def main(arguments: list[str]) -> int:
    if arguments == ["--all"]:
        for file in modules([CODE]):
            print(*(f"{row.file}:{row.line}: {row.text}" for row in texts(file)), sep="\n")
        return 0
    if arguments and arguments != ["--lower"]:
        for file in modules([Path(path).resolve() for path in arguments]):
            for row in texts(file):
                if reasons := problems(row.text):
                    print(f"{row.file}:{row.line}: [{', '.join(reasons)}] {row.text}")
        return 0
    counts = {}
    for file in modules([CODE]):
        if number := sum(bool(problems(row.text)) for row in texts(file)):
            counts[file.relative_to(ROOT).as_posix()] = number
    return hold(counts, CEILING, "texts that are hard to read", "python -m scripts.texts", lower=bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
