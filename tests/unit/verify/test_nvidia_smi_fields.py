"""The table of nvidia-smi's fields: each is an attribute of Gpu, of the type that its reader gives, and printed where
the row says."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from provisioner.verify.parsers.nvidia_smi_facts import Gpu
from provisioner.verify.parsers.nvidia_smi_fields import FIELDS, Field, decimal, integer, text, yes

TYPES = {text: str | None, integer: int | None, decimal: float | None, yes: bool | None}
CAPTURES = Path(__file__).parent / "captures" / "nvidia_smi"


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_row_is_an_attribute_of_its_type(field: Field) -> None:
    assert get_type_hints(Gpu)[field.name] == TYPES[field.read]


def test_no_name_and_no_source_is_there_twice() -> None:
    sources = [source for field in FIELDS for source in field.sources]
    for values in ([field.name for field in FIELDS], [s.xml for s in sources], [s.q for s in sources if s.q],
                   [column for s in sources for column in s.csv]):  # fmt: skip
        assert len(values) == len({*values})


def test_every_element_is_in_a_capture() -> None:
    """A path with a typing error would be unknown for ever."""
    captures = " ".join(file.read_text(errors="replace") for file in CAPTURES.rglob("*") if file.is_file())
    missing = [s.xml for field in FIELDS for s in field.sources if f"<{s.xml.rpartition('/')[2]}>" not in captures]
    assert missing == []
