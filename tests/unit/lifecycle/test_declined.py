"""What a question is asked about is not written before it is answered: neither the lock nor anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, Interrupted
from provisioner.common.events import Events
from provisioner.lifecycle import locking, machines
from provisioner.lifecycle.run_snapshot import RunSnapshot
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.up import up
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from tests.unit.lifecycle.test_up import FILE, World, cluster, lock, run_up, world

__all__ = ["cluster", "world"]

LARGER = FILE.replace("count: 2", "count: 3").replace("us-east-1", "us-east-2")


@pytest.fixture
def rendering(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose sites render a workspace when they plan, and whose lock is written where it is asked for."""
    make = machines.of_site

    def of_site(cluster: Cluster, site: str, *_: Any, **__: Any) -> machines.Machines:
        site_machines = make(cluster, site)
        render_and_plan = site_machines.plan

        def render(plan: Any) -> Any:
            folder = cluster.paths.site(site)
            (folder / "main.tf").write_text(f"{len(list(plan.nodes()))} nodes")
            (folder / f"plan-{len(list(plan.nodes()))}.bin").write_text("a plan")
            return render_and_plan(plan)

        site_machines.plan = render  # type: ignore[method-assign, assignment]
        return site_machines

    def current(cluster: Cluster, _: Events, *, write: bool = True) -> Lock:
        if write:
            lockfile.write(cluster.paths.lock_file, world.lock)
        return world.lock

    monkeypatch.setattr(machines, "of_site", of_site)
    monkeypatch.setattr(locking, "current", current)
    return world


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the logs of runs."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "runs" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def interrupted(*_: Any) -> bool:
    raise Interrupted("interrupted: nothing was created")


def no_terminal(*_: Any) -> bool:
    raise GpuprovError("confirmation required, but stdin is not a terminal")


@pytest.mark.parametrize("answer", [lambda *_: False, interrupted, no_terminal], ids=["no", "Ctrl-C", "no terminal"])
def test_a_declined_up_leaves_every_file_as_it_was(
    cluster: Cluster, rendering: World, answer: Callable[..., bool]
) -> None:
    run_up(cluster)
    cluster.file.write_text(LARGER)
    rendering.lock = lock("590.1")
    files, at_question = contents(cluster.file.parent), dict[str, bytes]()

    def ask(*_: Any) -> bool:
        at_question.update(contents(cluster.file.parent))
        return answer()

    larger = open_cluster(cluster.file, sandbox=True)
    try:
        assert up(larger, None, confirm=ask).report is None  # type: ignore[arg-type]
    except GpuprovError:
        assert answer in (interrupted, no_terminal)
    assert contents(cluster.file.parent) == files
    rewritten = {name for name in files if at_question[name] != files[name]}
    workspace = {name for name in rewritten if name.endswith(("main.tf", "holder.json"))}
    assert rewritten == workspace, "Terraform's workspace alone is rendered before the question"
    assert run_up(larger).resources == 1
    assert lockfile.read(larger.paths.lock_file) == rendering.lock
    assert (larger.paths.root / "cluster.yaml").read_text() == LARGER


def test_a_declined_first_up_leaves_nothing(cluster: Cluster, rendering: World) -> None:
    files = contents(cluster.file.parent)
    assert run_up(cluster, yes=False).report is None
    assert contents(cluster.file.parent) == files and not cluster.paths.exists()


def test_a_snapshot_leaves_states_logs_and_images_alone(cluster: Cluster) -> None:
    site = cluster.paths.site("here")
    for name in ("runs/1", "sites/here/.terraform"):
        (cluster.paths.root / name).mkdir(parents=True)
    (site / "main.tf").write_text("old")
    (site / "main.tf").chmod(0o640)
    snapshot = RunSnapshot.of(cluster.paths)
    for path in ("terraform.tfstate", ".terraform/plugin", "main.tf", "plan.bin"):
        (site / path).write_text("new")
    (site / "link").symlink_to("/etc/hostname")
    (cluster.paths.runs / "1" / "events.jsonl").write_text("new")
    (cluster.paths.root / "quarantine.json").write_text("before the question")
    planned = RunSnapshot.of(cluster.paths)
    (cluster.paths.root / "quarantine.json").write_text("of a verify at the question")
    snapshot.restore(planned)
    assert (cluster.paths.root / "quarantine.json").read_text() == "of a verify at the question"
    (cluster.paths.root / "quarantine.json").unlink()
    remaining = sorted(str(path.relative_to(cluster.paths.root)) for path in cluster.paths.root.rglob("*.*"))
    assert remaining == [
        "runs/1/events.jsonl", "sites/here/.terraform", "sites/here/main.tf", "sites/here/terraform.tfstate"
    ]  # fmt: skip
    assert (site / "main.tf").read_text() == "old" and (site / "main.tf").stat().st_mode & 0o777 == 0o640
    assert (site / "link").is_symlink()
