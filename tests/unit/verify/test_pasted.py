"""What people paste of a machine whose type they do not name: each text with the checks that have to name its fault.
No other check may condemn it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from provisioner.cli.main import main

PASTED = sorted((Path(__file__).parent / "pasted").glob("*.yaml"))


@pytest.mark.parametrize("case", PASTED, ids=lambda path: path.stem)
def test_a_pasted_text_names_its_fault_and_condemns_nothing_else(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = yaml.safe_load(case.read_text())
    assert expected["source"]
    pasted = tmp_path / "pasted.txt"
    pasted.write_bytes(case.with_suffix(".txt").read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--bundle", str(pasted), "--json"])
    assert ended.value.code == 1
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    failed = {check["id"]: check["severity"] for check in node["checks"] if check["status"] == "fail"}
    assert failed == expected["fails"]
    assert node["ok"] is False
