"""docs/extending/provider.md is true: its blocks, put into a copy of the code, are a provider that makes a fleet."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.module_table import table
from tests.support import extending

pytestmark = pytest.mark.heavy

FILE = """
name: small
sites: { home: { provider: smallest, region: home-1 } }
groups: { train: { machine: smallest.8, count: 2 } }
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    touched = extending.copied("provider.md", root)
    assert len(touched) == 13  # what a provider takes: two rows, three files, six of a module, a guide, an example
    (root / "cluster.yaml").write_text(FILE)
    return root


def test_it_makes_widens_and_removes_a_fleet(copy: Path) -> None:
    done = extending.python(copy, "-m", "tests.support.smallest_fleet", str(copy / "cluster.yaml"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == {
        "preflight": ["ok"],
        "planned": [2, 0, 0],
        "nodes": {"train-0": "192.0.2.10", "train-1": "192.0.2.11"},
        "again": 0,
        "anew": ["replace train-0"],
        "kept": True,
        "grown": 3,
        "made_by": {"home": "smallest"},
        "destroyed": 3,
        "left": [],
    }


def test_it_passes_the_contract_tests(copy: Path) -> None:
    tests = [f"tests/unit/machines/providers/{name}.py" for name in ("test_contract", "test_module_contract")]
    done = extending.python(
        copy,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        "smallest or outside or rows",
        *tests,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == 18, done.stdout


def test_the_readme_of_its_module_is_generated(copy: Path) -> None:
    text = (copy / "terraform" / "smallest" / "README.md").read_text(encoding="utf-8")
    assert table(copy / "terraform" / "smallest") in text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("region: nowhere", '"nowhere" is not a region of Smallest'),
        ("region: home-1, zones: [away-1a]", '"away-1a" is not a zone of home-1'),
        ("region: home-1, vpc: x", 'unknown key "vpc" (it belongs to provider: '),
    ],
)
def test_cluster_yaml_knows_its_sites(copy: Path, tmp_path: Path, wrong: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("region: home-1", wrong))
    done = extending.python(copy, "-m", "provisioner", "validate", str(file))
    assert (done.returncode, message in done.stderr + done.stdout) == (2, True), done.stderr + done.stdout


def test_it_is_offered(copy: Path) -> None:
    file = copy / "made.yaml"
    for arguments in (["init", str(file), "--provider", "smallest"], ["validate", str(file)]):
        done = extending.python(copy, "-m", "provisioner", *arguments)
        assert done.returncode == 0, done.stderr


def test_what_it_lacks_is_said(copy: Path) -> None:
    done = extending.python(copy, "-m", "provisioner", "gc", "--region", "home-1", "--provider", "smallest")
    assert done.returncode != 0
    assert "cannot look for leftovers at smallest" in done.stderr
