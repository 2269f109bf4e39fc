"""The root module of a site as files: when it is written, what of the provider's module is copied, who may read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common import paths
from provisioner.machines.providers.base import Module
from provisioner.machines.terraform.render import main_tf, outputs_to_nodes, render
from provisioner.plan.models import Plan
from tests.support import plans

REAL = paths.data
PLAN = plans.plan(plans.cluster_spec("p4d.24xlarge", count=2))


class Echo(Module):
    folder = "echo"

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return {}

    def address(self, node: str) -> str:
        return node


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The provider's module, as it is in the repository."""
    folder = tmp_path / "terraform" / "echo"
    for name in ("main.tf", "files/boot.sh", "files/tool", "tests/a.tftest.hcl", "examples/x/main.tf", ".terraform/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "files" / "tool").chmod(0o755)
    for name in ("main.tf", "files/boot.sh"):
        (folder / name).chmod(0o644)
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name if name == "terraform" else REAL(name))
    return folder


def rendered(workspace: Path, **changed: Any) -> bool:
    options: dict[str, Any] = {"ssh_public_key": "ssh-ed25519 AAAA", "identity": "aaaaaaaaaaaa", **changed}
    return render(PLAN, "here", Echo(), workspace, **options)


def copied(workspace: Path) -> dict[str, int]:
    """File of the copied module → its mode."""
    folder = workspace / "module"
    return {str(f.relative_to(folder)): f.stat().st_mode & 0o777 for f in folder.rglob("*") if f.is_file()}


def test_the_module_is_copied_for_this_user_alone_and_its_programs_stay_programs(source: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "site"
    assert rendered(workspace)
    assert copied(workspace) == {"main.tf": 0o600, "files/boot.sh": 0o700, "files/tool": 0o700}
    assert (workspace / "module" / "files" / "boot.sh").read_text() == "files/boot.sh"
    assert {f.stat().st_mode & 0o777 for f in (workspace, workspace / "module", workspace / "module" / "files")} == {
        0o700
    }
    assert (workspace / "main.tf").stat().st_mode & 0o777 == 0o600


def test_what_is_as_it_was_is_not_written_again(source: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "site"
    rendered(workspace)
    previous_inodes = {file: file.stat().st_ino for file in workspace.rglob("*")}
    assert not rendered(workspace)
    assert {file: file.stat().st_ino for file in workspace.rglob("*")} == previous_inodes


def test_a_root_module_that_differs_is_written(source: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "site"
    rendered(workspace)
    module = (workspace / "module" / "main.tf").stat().st_ino
    assert rendered(workspace, identity="bbbbbbbbbbbb")
    assert "bbbbbbbbbbbb" in (workspace / "main.tf").read_text()
    assert (workspace / "module" / "main.tf").stat().st_ino == module


def test_a_module_that_differs_is_copied_whole(source: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "site"
    rendered(workspace)
    (source / "main.tf").write_text("changed")
    (source / "files" / "tool").unlink()
    (workspace / ".module.new").mkdir()
    (workspace / ".module.new" / "half").touch()
    assert rendered(workspace)
    assert copied(workspace) == {"main.tf": 0o600, "files/boot.sh": 0o700}
    assert (workspace / "module" / "main.tf").read_text() == "changed"
    assert not (workspace / ".module.new").exists()


def test_a_program_that_is_none_any_more_is_copied_again(source: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "site"
    rendered(workspace)
    (source / "files" / "tool").chmod(0o644)
    assert rendered(workspace)
    assert copied(workspace)["files/tool"] == 0o600


def text(**changed: Any) -> str:
    options: dict[str, Any] = {"ssh_public_key": "ssh-ed25519 AAAA", "identity": "aaaaaaaaaaaa", **changed}
    return main_tf(options.pop("plan", PLAN), options.pop("site", "here"), Echo(), **options)


def test_only_groups_of_the_site_are_in_its_root_module() -> None:
    (group,) = PLAN.groups
    other = replace(group, name="infer", site="there")
    both = replace(PLAN, groups=(group, other))
    assert "train" in text(plan=both) and "infer" not in text(plan=both)


def test_machines_are_asked_for_in_the_first_zone_and_have_the_tags_of_the_site_and_gpuprovs_own() -> None:
    site = PLAN.spec.sites["here"].model_copy(
        update={"zones": ("us-east-1c", "us-east-1a"), "tags": {"team": "ml", "gpuprov-id": "forged"}}
    )
    spec = PLAN.spec.model_copy(update={"sites": {"here": site}})
    written = text(plan=replace(PLAN, spec=spec))
    assert '"us-east-1c"' in written and "us-east-1a" not in written
    assert '"ml"' in written and "forged" not in written
    for tag, value in (("gpuprov-cluster", "test"), ("gpuprov-site", "here"), ("gpuprov-id", "aaaaaaaaaaaa")):
        assert tag in written and f'"{value}"' in written


def test_a_state_is_beside_the_root_module_unless_a_backend_is_named() -> None:
    assert 'backend "s3"' not in text()
    assert 'backend "s3"' in text(backend=("s3", {"bucket": "states"})) and '"states"' in text(
        backend=("s3", {"bucket": "states"})
    )


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [({}, {}), ({"nodes": {}}, {}), ({"nodes": {"value": None}}, {}), ({"nodes": {"value": {"a": {}}}}, {"a": {}})],
)
def test_a_state_without_the_output_has_no_nodes(outputs: dict[str, Any], nodes: dict[str, Any]) -> None:
    assert outputs_to_nodes(outputs) == nodes
