"""The editor's schema, the docs and the examples say what the models say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from provisioner import spec
from provisioner.common.errors import GpuprovError
from provisioner.spec import schema

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/cluster-yaml.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
METAL = sorted((ROOT / "examples/metal").glob("*.yaml"))
BAD_SHAPES = ["missing-keys", "unknown-keys", "wrong-types", "bad-values", "names-too-long", "versions-without-quotes"]


def validator(name: str) -> jsonschema.Draft202012Validator:
    document = schema.schema(name)
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


@pytest.mark.parametrize("name", schema.NAMES)
def test_schema_is_a_schema(name: str) -> None:
    assert validator(name).schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_unknown_schema() -> None:
    with pytest.raises(GpuprovError):
        schema.schema("fleets")


def test_the_file_beside_the_examples_is_this_schema() -> None:
    assert (ROOT / "examples/cluster.schema.json").read_text() == schema.text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=cluster.schema.json\n")
    assert spec.check(path) == []
    assert list(validator("cluster").iter_errors(yaml.safe_load(path.read_text()))) == []
    assert f"({path.name})" in (ROOT / "examples/README.md").read_text()


def test_examples_are_those_that_the_sandbox_runs() -> None:
    machines = {p.stem: [(g.machine, g.count) for g in spec.load(p).groups.values()] for p in EXAMPLES}
    assert machines == {
        "alicloud-gn7": [("ecs.gn7-c13g1.26xlarge", 1)],
        "aws-p4d": [("p4d.24xlarge", 4)],
        "azure-ndv4": [("Standard_ND96asr_v4", 2)],
        "dgx-h100": [("dgx-h100", 2)],
        "head-node": [("m6i.xlarge", 1), ("g5.xlarge", 2)],
        "own-machines": [("r760xa-4xl40s", 1), ("bench-2xa5500", 1)],
        "rtx4090": [("workstation-rtx4090", 1)],
        "slurm": [("m6i.large", 1), ("p4d.24xlarge", 2)],
        "tencent-gn10xp": [("GN10Xp.20XLARGE320", 1)],
        "three-sites": [("p4d.24xlarge", 1), ("ecs.gn7i-c8g1.2xlarge", 1), ("workstation-rtx4090", 1)],
        "two-clouds": [({"ohio": "p4d.24xlarge", "east": "Standard_ND96asr_v4"}, 1)],
    }


@pytest.mark.parametrize("case", BAD_SHAPES)
def test_editor_sees_bad_shapes_too(case: str) -> None:
    document = yaml.safe_load((Path(__file__).parent / "bad" / f"{case}.yaml").read_text())
    assert not validator("cluster").is_valid(document)


def test_every_key_has_a_description() -> None:
    missing: list[str] = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for key, child in node.get("properties", {}).items():
                if not child.get("description"):
                    missing.append(f"{path}.{key}")
            for key, child in node.items():
                walk(child, f"{path}.{key}")

    walk(schema.schema(), "")
    assert missing == []


def test_docs_have_every_key_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z0-9_.<>\[\]]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    keys = set(schema.key_names())
    assert not keys - set(rows), f"{PAGE.name} lacks a row for {sorted(keys - set(rows))}"
    assert not set(rows) - keys, f"{PAGE.name} has rows of no key: {sorted(set(rows) - keys)}"
    assert len(rows) == len(set(rows))


def test_docs_have_every_choice() -> None:
    text = PAGE.read_text(encoding="utf-8")
    choices = re.findall(r'"enum": \[([^\]]+)\]', schema.text())
    for choice in {c.strip().strip('"') for block in choices for c in block.split(",")}:
        assert f"`{choice}`" in text, f"{PAGE.name} does not name the choice {choice}"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("validate", {"ok": True, "problems": []}),
        (
            "report",
            {
                "ok": False,
                "nodes": [
                    {
                        "name": "train-0",
                        "group": "train",
                        "machine": "p4d.24xlarge",
                        "ok": False,
                        "checks": [
                            {
                                "id": "gpu.count",
                                "severity": "fatal",
                                "status": "fail",
                                "expected": 8,
                                "actual": 7,
                                "message": "7 of 8 GPUs",
                                "action": "reboot",
                            }
                        ],
                    }
                ],
                "seconds": {"verify": 1.5},
            },
        ),
        (
            "facts",
            {
                "driver_version": None,
                "cuda_version": "13.0",
                "gpus": None,
                "topology": {"GPU0": {"GPU1": "NV12"}},
                "nvlinks": {"0": {"active": 12, "inactive": 0}},
                "xids": [{"code": 79, "pci": "0000:10:1c", "count": 1}],
                "ib_ports": [],
                "efa_devices": 4,
                "nccl": None,
                "unreadable": [{"file": "topo.txt", "reason": "empty"}],
                "kernel": "6.1.0",
            },
        ),
        ("status", {"cluster": "vision", "nodes": []}),
    ],
)
def test_output_shapes(name: str, document: dict[str, Any]) -> None:
    check = validator(name)
    assert list(check.iter_errors(document)) == []
    broken = json.loads(json.dumps(document))
    broken.pop(next(iter(broken)))
    assert not check.is_valid(broken)


@pytest.mark.parametrize("path", METAL, ids=lambda path: path.stem)
def test_an_example_of_bare_metal_is_valid(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=../cluster.schema.json\n")
    (site,) = spec.load(path).sites.values()
    assert site.this_machine() == (path.stem == "this-machine")
