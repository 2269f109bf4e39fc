"""What only looks, and what is refused, leaves nothing behind: neither a run directory that a later `down` would ask
about, nor a file of another cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.paths import private_dir
from provisioner.stack import lockfile
from provisioner.stack.models import Lock

CLUSTER = """\
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge}}
access: {allow: [203.0.113.0/24]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    lockfile.write(tmp_path / "cluster.lock", Lock(request={"an": "older one"}, simulated=False, groups={}))
    return file


@pytest.mark.parametrize(
    "command",
    ["validate FILE", "status FILE --offline", "status FILE --no-sandbox --offline", "plan FILE --no-sandbox",
     "plan FILE", "up FILE --no-sandbox --yes", "upgrade FILE --no-sandbox --yes", "verify FILE", "facts FILE train-0",
     "quarantine FILE train-0 --reason x", "release FILE train-0", "replace FILE train-0 --yes", "ssh FILE train-0",
     "exec FILE true", "down FILE --yes", "down FILE --no-sandbox --yes", "unlock FILE", "lock FILE --explain driver",
     "cost FILE --offline"],
)  # fmt: skip
def test_a_refused_command_leaves_nothing(command: str, file: Path) -> None:
    previous = sorted(file.parent.rglob("*"))
    run([str(file) if argument == "FILE" else argument for argument in command.split()])
    assert sorted(file.parent.rglob("*")) == previous


def test_after_a_refused_plan_nobody_is_asked_which_cluster_is_meant(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox_cluster = private_dir(file.parent / ".gpuprov" / "vision.sandbox")
    (sandbox_cluster / "intent.json").write_text("{}")
    assert run(["plan", str(file), "--no-sandbox"]) == 2
    assert "the lock no longer fits" in capsys.readouterr().err
    assert run(["status", str(file), "--offline"]) == 0
    assert "--no-sandbox" not in capsys.readouterr().err


def test_every_folder_that_gpuprov_makes_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_dir(tmp_path / ".gpuprov" / "vision" / "sites" / "here")
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(folders) == 4
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
