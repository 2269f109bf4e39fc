"""Pages of docs/extending: their blocks, put into a copy of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.sandbox_cluster import ROOT

_BLOCK = re.compile(r"^(?:`([\w./-]+)`:\n\n)?```(\w*)\n(.*?)^```", re.M | re.S)
FOLDERS = ("provisioner", "ansible", "templates", "terraform", "examples", "docs", "tests/support", "tests/unit")


def copied(page: str, root: Path) -> list[str]:
    """Copy the code to `root` and do what a page of docs/extending says: write its files, apply its diffs, run its
    commands. Gives the files that it touched."""
    ignored = shutil.ignore_patterns("__pycache__", "captures")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / file, root / file)
    touched = []
    for name, kind, text in _BLOCK.findall((ROOT / "docs" / "extending" / page).read_text(encoding="utf-8")):
        if kind == "sh":
            subprocess.run(["bash", "-euc", text], cwd=root, check=True, timeout=60)
            touched += [token for token in text.split() if (root / token).is_file()]
        elif name:
            file = root / name
            if kind == "diff":
                file.write_text(patched(file.read_text(encoding="utf-8"), text), encoding="utf-8")
            else:
                assert not file.exists(), name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            touched.append(name)
    return list(dict.fromkeys(touched))


def patched(text: str, diff: str) -> str:
    """The text with one hunk of a diff, whose old lines must be in it once."""
    rows = diff.splitlines(keepends=True)
    assert all(row[0] in " +-" for row in rows)
    old_lines, new_lines = ("".join(row[1:] for row in rows if row[0] in kinds) for kinds in (" -", " +"))
    assert text.count(old_lines) == 1, old_lines
    return text.replace(old_lines, new_lines)


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, env={**environment, "PYTHONPATH": str(root)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
