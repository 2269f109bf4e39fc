"""Each bad/<case>.yaml pins what does not go together: `validate` says exactly what stands in bad/<case>.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.errors import Exit

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_what_validate_says(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert run(["validate", path.name]) == Exit.BAD_INPUT
    output = capsys.readouterr().out
    assert output == path.with_suffix(".txt").read_text()
    assert len(output.splitlines()) <= 5
