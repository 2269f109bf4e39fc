"""Which identifiers `make lint` counts, and what a file may have."""

from __future__ import annotations

from pathlib import Path

import yaml

from scripts import names
from scripts.ceiling import exceeded

WORDS = {"found": "matches", "one": "node"}
TEXT = """
class found:
    one: int = 0

    def _one(self, found, *, one=None):
        self.found = [one for one in found if one.found]
        with open(one) as found, open(one) as kept:
            pass
        match found:
            case [one, *found]:
                return one
        try:
            found_nodes = found
        except ValueError as found:
            return None
"""


def test_definitions_count_and_reads_do_not() -> None:
    rows = names.denied(TEXT, WORDS)
    assert [(row.line, row.name) for row in rows] == [
        (2, "found"), (3, "one"), (5, "_one"), (5, "found"), (5, "one"), (6, "found"), (6, "one"), (7, "found"),
        (10, "found"), (10, "one"), (14, "found"),
    ]  # fmt: skip


def test_a_file_may_have_no_more_than_its_ceiling() -> None:
    ceiling = {"a.py": 2, "b.py": 1}
    assert exceeded({"a.py": 2, "b.py": 0}, ceiling, "names", "list") == []
    messages = exceeded({"a.py": 3, "new.py": 1}, ceiling, "names", "list")
    assert [line.partition(":")[0] for line in messages] == ["a.py", "new.py"]


def test_the_ceiling_names_files_that_exist_and_every_word_has_what_fits() -> None:
    root = Path(names.__file__).parent.parent
    ceiling = yaml.safe_load(names.CEILING.read_text(encoding="utf-8"))
    assert all((root / file).exists() for file in ceiling)
    assert all(names.read_words().values())
