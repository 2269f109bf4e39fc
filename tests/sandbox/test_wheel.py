"""The wheel, installed in a fresh environment, works from any directory: nothing of it looks for the tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.common.paths import DATA
from tests.support.wheel import ROOT, build, clean_environment, copy_tree, install

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@dataclass
class Installed:
    """The installed command, and the folder and environment that it is called in."""

    gpuprov: Path
    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: object, status: int = 0) -> str:
        argv = [str(self.gpuprov), *map(str, arguments)]
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    wheel = build(copy_tree(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("dist"))
    gpuprov = install(wheel, tmp_path_factory.mktemp("venv"))
    home = tmp_path_factory.mktemp("home")
    return Installed(gpuprov, tmp_path_factory.mktemp("elsewhere"), clean_environment(home))


def test_it_knows_its_version(installed: Installed) -> None:
    assert re.fullmatch(r"gpuprov \d+\.\d+\.\d+\S*\n", installed.run("--version"))


def test_nothing_of_the_tree_is_imported(installed: Installed) -> None:
    python = installed.gpuprov.with_name("python")
    lines = subprocess.run(
        [str(python), "-c", "import provisioner.common.paths as p; print(p.__file__, *map(p.data, p.DATA), sep='\\n')"],
        cwd=installed.folder, env=installed.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    assert len(lines) == 1 + len(DATA)
    assert all(line.startswith(str(python.parents[1])) for line in lines)


def test_a_file_is_written_and_is_valid(installed: Installed) -> None:
    installed.run("init", "fresh.yaml")
    assert json.loads(installed.run("validate", "fresh.yaml", "--json")) == {"ok": True, "problems": []}


def test_the_catalogue_and_the_schema_are_there(installed: Installed) -> None:
    assert "8 x " in installed.run("catalog", "p4d.24xlarge")
    assert json.loads(installed.run("schema"))["title"] == "gpuprov cluster"


def test_doctor_finds_its_terraform(installed: Installed) -> None:
    findings = {d["subject"]: d["status"] for d in json.loads(installed.run("doctor", "--json"))["findings"]}
    assert findings["terraform"] == "ok"


def test_a_node_is_made_proven_and_removed(installed: Installed) -> None:
    text = (ROOT / "examples" / "rtx4090.yaml").read_text(encoding="utf-8")
    name = f"wheel-{os.getpid()}"
    (installed.folder / "cluster.yaml").write_text(re.sub(r"^name:.*$", f"name: {name}", text, flags=re.M))
    try:
        document = json.loads(installed.run("up", "cluster.yaml", "--sandbox", "--yes", "--json"))
        assert document["ok"]
        assert document["changes"] == {"resources": 2, "configured": 1}
        assert json.loads(installed.run("verify", "cluster.yaml", "--json"))["ok"]
    finally:
        installed.run("down", "cluster.yaml", "--sandbox", "--yes")
    assert not (installed.folder / ".gpuprov").exists()
