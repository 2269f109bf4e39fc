"""Identifiers that say how a value came to be and not what it is: counted, and held below a ceiling that goes down.

    python -m scripts.names              fail where a file has more of them than scripts/data/names_ceiling.yaml allows
    python -m scripts.names --lower      lower the ceiling to what there is now
    python -m scripts.names FILE …       list them with their places and what usually fits

Definitions count: variables, parameters, attributes, functions and classes; not where they are read. The words are data
(scripts/data/denied_names.yaml).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from scripts.ceiling import hold

DATA = Path(__file__).parent / "data"
WORDS = DATA / "denied_names.yaml"
CEILING = DATA / "names_ceiling.yaml"
FOLDERS = ("provisioner", "ansible", "bench", "scripts", "tests")


class Definition(NamedTuple):
    """A name that a file defines. `line`: from 1."""

    line: int
    name: str


def definitions(text: str) -> Iterator[Definition]:
    """Every variable, parameter, attribute, function and class that a Python file defines."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield Definition(node.lineno, node.id)
            case ast.Attribute(ctx=ast.Store()):
                yield Definition(node.lineno, node.attr)
            case ast.arg():
                yield Definition(node.lineno, node.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Definition(node.lineno, node.name)
            case ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
                yield Definition(node.lineno, str(node.name))
            case ast.ExceptHandler(name=str()):
                yield Definition(node.lineno, str(node.name))


def denied(text: str, replacements: dict[str, str]) -> list[Definition]:
    """The definitions whose name is one of the words, a leading underscore aside."""
    return sorted(row for row in definitions(text) if row.name.removeprefix("_") in replacements)


def read_words() -> dict[str, str]:
    """Word → what usually fits."""
    table: dict[str, list[str]] = yaml.safe_load(WORDS.read_text(encoding="utf-8"))["identifiers"]
    return {identifier: ", ".join(fitting) for identifier, fitting in table.items()}


def count(root: Path, replacements: dict[str, str]) -> dict[str, int]:
    """File below `root` → how many denied definitions it has; files without one are left out."""
    files = sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py"))
    counts = {
        str(file.relative_to(root)): len(denied(file.read_text(encoding="utf-8"), replacements)) for file in files
    }
    return {file: number for file, number in counts.items() if number}


def main(arguments: list[str]) -> int:
    replacements, root = read_words(), Path(__file__).parent.parent
    if arguments and arguments != ["--lower"]:
        for file in arguments:
            for row in denied(Path(file).read_text(encoding="utf-8"), replacements):
                print(f"{file}:{row.line}: {row.name}: {replacements[row.name.removeprefix('_')]}")
        return 0
    counts = count(root, replacements)
    return hold(counts, CEILING, "denied names", "python -m scripts.names", lower=bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
