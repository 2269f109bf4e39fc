"""Texts are UTF-8 wherever gpuprov reads or writes one, whatever the user's locale is: that of a locale such as
zh_CN.GB18030 or de_DE.ISO-8859-1 breaks on a character that it has not, or silently makes another of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import provisioner

ROOT = Path(provisioner.__file__).parent
MODE = {"read_text": None, "write_text": None, "TextIOWrapper": None, "open": 0, "fdopen": 1, "NamedTemporaryFile": 0}
"""What opens a text → where its mode stands; `open` of no path has it one later."""
BYTES_UNASKED = ("NamedTemporaryFile",)
NO_TEXTS = ("os", "tarfile", "zipfile", "lzma", "gzip", "archive")
"""Modules, and what archives are called here, whose `open` gives no text if it is not asked for one."""


def unsaid(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that open a text, or read what a program prints, and leave the encoding to the locale."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        function = call.func
        owner = function.value if isinstance(function, ast.Attribute) else None
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if "encoding" in keywords or (name == "open" and getattr(owner, "id", "") in NO_TEXTS):
            continue
        if name == "read_text" and owner is None:
            continue  # spec.source.read_text and parsers.untrusted.read_text, which know their own
        if "text" in keywords and isinstance(keywords["text"], ast.Constant) and keywords["text"].value is True:
            yield call.lineno
        elif name in MODE and len(call.args) <= (name == "write_text") + 4 * (MODE[name] is not None):
            position = (MODE[name] or 0) + (name == "open" and owner is None)
            mode = keywords.get("mode") or (call.args[position] if len(call.args) > position else None)
            mode_text = str(mode.value) if isinstance(mode, ast.Constant) else "b" if name in BYTES_UNASKED else ""
            if MODE[name] is None or "b" not in mode_text:
                yield call.lineno


def test_no_text_is_opened_in_the_encoding_of_the_locale() -> None:
    places = [
        f"{file.relative_to(ROOT.parent)}:{line}"
        for file in sorted(ROOT.rglob("*.py"))
        if "_data" not in file.parts
        for line in unsaid(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    ("line", "names_encoding"),
    [
        ("path.read_text()", False),
        ("path.read_text(errors='replace')", False),
        ("path.read_text(encoding='utf-8')", True),
        ("path.write_text(text)", False),
        ("open(name)", False),
        ("open(name, 'rb')", True),
        ("path.open('w')", False),
        ("path.open('wb')", True),
        ("os.fdopen(handle, 'w')", False),
        ("os.fdopen(handle, 'wb')", True),
        ("os.open(name, os.O_RDONLY)", True),
        ("tempfile.NamedTemporaryFile()", True),
        ("tempfile.NamedTemporaryFile('w')", False),
        ("subprocess.run(argv, text=True)", False),
        ("subprocess.run(argv, text=True, encoding='utf-8')", True),
    ],
)
def test_the_search_sees_what_it_should(line: str, names_encoding: bool) -> None:
    assert (not list(unsaid(ast.parse(line)))) is names_encoding


ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale that every machine has, and that knows no letter of UTF-8 but those of ASCII."""


def test_an_ascii_locale_reads_the_probe() -> None:
    line = "from provisioner.verify.collect import probe_source; assert probe_source()"
    done = subprocess.run([sys.executable, "-c", line], env=ASCII, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_ansible_starts_in_a_locale_that_it_would_refuse() -> None:
    line = (
        "import subprocess; from provisioner.configure.run import _with_our_programs as ours;"
        "subprocess.run(['ansible-playbook', '--version'], env=ours(), check=True)"
    )
    done = subprocess.run([sys.executable, "-c", line], env=ASCII, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
