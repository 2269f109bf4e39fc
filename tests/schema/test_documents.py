"""Every `--json` document has the shape that `gpuprov schema` promises.

documents/ holds documents of real sandboxes, cut to two nodes, and of a simulated AWS; `<schema>-<what it shows>.json`
is held to that schema.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner.cli.main import run
from provisioner.output import OUTPUTS
from provisioner.spec import schema

DOCUMENTS = sorted((Path(__file__).parent / "documents").glob("*.json"))
SCHEMA = {"up": "report", "verify": "report"}
"""Commands whose document has a schema of another name."""
FILE = """
name: shaped
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2}}
"""


def schema_of(file: Path) -> dict[str, Any]:
    if file.stem in schema.NAMES:
        return schema.schema(file.stem)
    command = file.stem.split("-")[0]
    return schema.schema(SCHEMA.get(command, command))


def valid(document: Any, name: str) -> None:
    jsonschema.validate(document, schema.schema(name), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda f: f.stem)
def test_a_recorded_document(file: Path) -> None:
    jsonschema.validate(json.loads(file.read_text()), schema_of(file), cls=jsonschema.Draft202012Validator)


BESIDE_THEIR_MODEL = ("facts", "image-move")
"""Documents whose keys have another order than the fields of their model, because no command prints the model."""


@pytest.mark.parametrize("file", [f for f in DOCUMENTS if f.stem not in BESIDE_THEIR_MODEL], ids=lambda f: f.stem)
def test_a_model_prints_a_recorded_document_as_it_is(file: Path) -> None:
    """Key by key in their order."""
    document = json.loads(file.read_text(encoding="utf-8"))
    model = OUTPUTS[schema_of(file)["title"].removeprefix("gpuprov ")].model_validate(document)
    assert json.dumps(model.model_dump(by_alias=True, exclude_unset=True)) == json.dumps(document)


def test_every_schema_has_a_document() -> None:
    have = {schema_of(file)["title"] for file in DOCUMENTS}
    assert have == {f"gpuprov {name}" for name in schema.NAMES if name != "cluster"}


def required(node: dict[str, Any], root: dict[str, Any], document: Any) -> Iterator[tuple[Any, ...]]:
    """Places in the document that its schema requires."""
    node = root["$defs"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node
    for branch in node.get("anyOf", ()):
        if "$ref" in branch and document is not None:
            yield from required(branch, root, document)
    if isinstance(document, dict):
        yield from ((key,) for key in node.get("required", ()))
        for key, child in node.get("properties", {}).items():
            if key in document:
                yield from ((key, *path) for path in required(child, root, document[key]))
    elif isinstance(document, list) and document and "items" in node:
        yield from ((0, *path) for path in required(node["items"], root, document[0]))


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda f: f.stem)
def test_a_document_without_a_required_key_is_refused(file: Path) -> None:
    root, document = schema_of(file), json.loads(file.read_text())
    places = list(required(root, root, document))
    assert places
    validator = jsonschema.Draft202012Validator(root)
    for *parents, last in places:
        broken = copy.deepcopy(document)
        holder = broken
        for part in parents:
            holder = holder[part]
        del holder[last]
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(broken)


def test_a_verdict_that_is_no_verdict_is_refused() -> None:
    document = json.loads((DOCUMENTS[0].parent / "verify-gpu-lost.json").read_text())
    valid(document, "report")
    for key, wrong in (("status", "passed"), ("severity", "bad"), ("action", "pray"), ("id", "GPU")):
        broken = copy.deepcopy(document)
        broken["nodes"][0]["checks"][0][key] = wrong
        with pytest.raises(jsonschema.ValidationError):
            valid(broken, "report")


def test_a_failed_verify_says_so_everywhere() -> None:
    document = json.loads((DOCUMENTS[0].parent / "verify-gpu-lost.json").read_text())
    assert document["ok"] is False
    failed = [(n["name"], c["id"]) for n in document["nodes"] for c in n["checks"] if c["status"] == "fail"]
    assert failed == [("train-1", "gpu.count")]
    assert [n["ok"] for n in document["nodes"]] == [True, False]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def printed_document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_validate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(file), "--json"]) == 0
    document = printed_document(capsys)
    valid(document, "validate")
    assert document == {"ok": True, "problems": []}
    file.write_text(FILE.replace("count: 2", "count: many").replace("p4d", "p4e"))
    assert run(["validate", str(file), "--json"]) == 2
    document = printed_document(capsys)
    valid(document, "validate")
    assert document["ok"] is False
    assert {p["line"] for p in document["problems"]} == {4}


def test_validate_of_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(tmp_path / "none.yaml"), "--json"]) == 2
    valid(printed_document(capsys), "validate")


def test_status_before_anything_was_made(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(file), "--json"]) == 0
    document = printed_document(capsys)
    valid(document, "status")
    assert [n["stage"] for n in document["nodes"]] == ["planned", "planned"]


def test_down_of_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down", str(file), "--sandbox", "--yes", "--json"]) == 0
    document = printed_document(capsys)
    valid(document, "down")
    assert document == {"cluster": "shaped", "removed": 0, "left": [], "stays": {}}


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["doctor", "--json"])
    document = printed_document(capsys)
    valid(document, "doctor")
    assert code == (0 if document["ok"] else 2)
    assert document["ok"] == all(d["status"] == "ok" for d in document["findings"])


def test_catalog_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "p4d.24xlarge", "--json"]) == 0
    assert printed_document(capsys)["gpu_count"] == 8
