"""Texts for users: which ones the code has, and which are hard to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import texts


def test_texts_of_each_kind_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text(
        'raise GpuprovError(f"no node {name} here", where="x", hint="list the nodes" if a else "type one")\n'
        'message = "a variable " + "of two parts"\n'
        '@check("gpu.x", says="A GPU is lost.")\ndef f(): return fail(f"{n} of {m} GPUs")\n'
        'typer.Option("--yes", help="Do not ask.")\nprint("not a text for users")\nother("nor this one")\n'
    )
    assert [row.text for row in texts.texts(file)] == [
        "a variable ", "of two parts", "no node {…} here", "list the nodes", "type one", "A GPU is lost.",
        "Do not ask.", "{…} of {…} GPUs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{…} is no private pool", ["is no X"]),
        ("there is no site {…}", []),
        ("{…} is no longer sold", []),
        ("its file can't be read", ["can't"]),
        ("machines that could not be had", ["can be had"]),
        (f"{'word ' * 26}.", ["26 words"]),
        ("`a key of yours` is missing", []),
    ],
)
def test_what_is_hard_to_read(text: str, problems: list[str]) -> None:
    assert texts.problems(text) == problems
