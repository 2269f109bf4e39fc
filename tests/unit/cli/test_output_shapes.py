"""What `facts` and `verify` print with --json has the shape that `gpuprov schema` promises."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from provisioner.cli.main import run
from provisioner.spec import schema
from tests.support.healthy_bundle import ALL, healthy


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


@pytest.mark.parametrize("machine", ALL)
def test_facts_of_a_healthy_node(machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["facts", "--bundle", write(tmp_path, healthy(machine)), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("facts"))
    assert document["gpus"] is not None or document["driver_version"] is None


def test_facts_of_a_bundle_without_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "probe.json").write_text("{}")
    run(["facts", "--bundle", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("facts"))
    assert document["gpus"] is None


@pytest.mark.parametrize("files", [True, False], ids=["healthy", "empty"])
def test_report_of_a_bundle(files: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write(tmp_path, healthy("p4d.24xlarge") if files else {"probe.json": "{}"})
    code = run(["verify", "--bundle", bundle, "--machine", "p4d.24xlarge", "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("report"))
    assert (code, document["ok"]) == ((0, True) if files else (1, False))
