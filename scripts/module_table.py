#!/usr/bin/env python3
"""Write a Terraform module's inputs and outputs into its README.md, between two marks. Usage: module_table.py FOLDER…

A variable's row is its description; a key of an object type has a row where a comment stands above it, and that is its
text. `--check` changes nothing and fails where a README is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BEGIN, END = "<!-- inputs and outputs: scripts/module_table.py -->", "<!-- end -->"
BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}', re.M | re.S)
DESCRIPTION = re.compile(r'^\s*description\s*=\s*"(.*)"$', re.M)
DEFAULT = re.compile(r"^  default\s*=\s*(.+)$", re.M)
SHAPES = {"map(object({": "map of objects", "list(object({": "list of objects", "object({": "object"}
KEY = re.compile(r"^\s*(\w+)\s*=\s*(.*?)(?:\s*#.*)?$")


def table(folder: Path) -> str:
    """The two tables of the module in that folder."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.tf")))
    inputs, outputs = [], []
    for kind, name, body in BLOCK.findall(text):
        described = DESCRIPTION.search(body)
        description = described.group(1) if described else ""
        if kind == "output":
            outputs.append(f"| `{name}` | {description} |")
            continue
        default = DEFAULT.search(body)
        kind_line = re.search(r"^  type\s*=\s*(.+)$", body, re.M)
        shape = kind_line.group(1) if kind_line else "any"
        shape = SHAPES.get(shape, shape)
        inputs.append(
            f"| `{name}` | {shape} | {_default_text(default.group(1) if default else None)} | {description} |"
        )
        inputs += [f"| `{name}.{key}` | {k} | {d} | {t} |" for key, k, d, t in _keys(body)]
    head = "| input | type | default | what it is |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(inputs) + "\n\n| output | what it is |\n| --- | --- |\n" + "\n".join(outputs)


def _keys(body: str) -> list[tuple[str, str, str, str]]:
    """Path, type, default and text of every key that has a comment above it."""
    keys: list[tuple[str, str, str, str]] = []
    path: list[str] = []
    members: list[str] = []
    comment, inner = "", False
    starts = body.index("object({") if "object({" in body else len(body)
    if body.startswith("map(", starts - 4):
        path = ["*"]
    lines = body[starts:].splitlines()[1:]
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment = f"{comment} {stripped[1:].strip()}".strip()
            continue
        key = KEY.match(line)
        if inner:  # a key of a small object: it belongs to the object's own row
            if stripped.startswith("})"):
                inner = False
                path_text, shape, default, text = keys[-1]
                keys[-1] = (path_text, f"{shape} {{{', '.join(members)}}}", default, text)
            elif key:
                kind, value = _type(key.group(2))
                also = "" if value in ("none", "required") else f" = {value[1:-1]}"
                members.append(f"{key.group(1)}: {kind}{also}")
            continue
        if key and comment:
            keys.append((".".join([*path, key.group(1)]), *_type(key.group(2)), comment))
        comment = ""
        opens = key and "object({" in key.group(2) and "})" not in key.group(2)
        if key and opens and not lines[number + 1].strip().startswith("#"):
            inner, members = True, []
        elif key and opens:
            path.append(key.group(1) + (".*" if "map(" in key.group(2) or "list(" in key.group(2) else ""))
        elif stripped.startswith("})"):
            if not path or path == ["*"]:
                break
            path.pop()
    return keys


def _type(text: str) -> tuple[str, str]:
    optional = text.startswith("optional(")
    inner = text.removeprefix("optional(")
    for shape, shape_text in SHAPES.items():
        if inner.startswith(shape):
            return shape_text, "none" if optional else "required"
    if not optional:
        return inner, "required"
    depth = 0
    for index, character in enumerate(inner):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        if depth < 0:
            return inner[:index], "none"
        if character == "," and depth == 0:
            return inner[:index], _default_text(inner[index + 1 :].strip().removesuffix(")"))
    return inner, "none"


def _default_text(default: str | None) -> str:
    return "required" if default is None else f"`{default}`"


def main(arguments: list[str]) -> int:
    """Exit status: 1 where `--check` finds a README that is not as it should be."""
    check = "--check" in arguments
    stale = []
    for folder in (Path(argument) for argument in arguments if argument != "--check"):
        readme = folder / "README.md"
        text = readme.read_text(encoding="utf-8")
        head, tail = text.split(BEGIN)
        after = tail.split(END, 1)[1]
        expected = f"{head}{BEGIN}\n{table(folder)}\n{END}{after}"
        if expected != text:
            stale.append(str(readme))
            if not check:
                readme.write_text(expected, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run scripts/module_table.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
