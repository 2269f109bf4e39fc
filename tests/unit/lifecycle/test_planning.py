"""The plan as a person reads it, and the run as it reports itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Exit, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths
from provisioner.common.preflight import Finding
from provisioner.lifecycle import planning
from provisioner.lifecycle.preflight import blocked
from provisioner.lifecycle.sites import together
from provisioner.lifecycle.up import Run
from provisioner.machines.base import Action, Planned
from provisioner.machines.providers.base import Module, Place
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.workspace import Workspace
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.output.plan import PlanOutput
from provisioner.plan.models import Plan
from tests.support import plans

DOCUMENT: dict[str, Any] = {
    "cluster": "vision",
    "sandbox": True,
    "nodes": [
        {"name": "train-0", "group": "train", "site": "a", "machine": "p4d.24xlarge"},
        {"name": "train-1", "group": "train", "site": "a", "machine": "p4d.24xlarge"},
        {"name": "head-0", "group": "head", "site": "b", "machine": "g4dn.xlarge"},
    ],
    "changes": {"a": {"add": 3, "change": 1, "destroy": 2}, "b": {"add": 0, "change": 0, "destroy": 0}},
    "machines": {"create": ["train-1"], "recreate": [], "change": [], "remove": []},
    "shared": {
        "a": [
            {"action": "replace", "resource": "module.site.terraform_data.mirror"},
            {"action": "create", "resource": "module.site.vpc"},
        ],
        "b": [],
    },
    "stack": {
        "train": {"driver": "580.1", "cuda": "13.0", "nccl": "2.27.7"},
        "head": {"driver": "570.2", "cuda": "12.8", "nccl": "2.26.2"},
    },
    "findings": [{"status": "warning", "subject": "memory", "message": "little of it", "action": "buy some"}],
}


def text_of(document: dict[str, Any]) -> str:
    return planning.text(PlanOutput.model_validate(document))


def test_machines_that_are_recreated_are_told_by_their_reason() -> None:
    machines = DOCUMENT["machines"] | {"recreate": ["train-0", "head-0", "train-1"], "change": ["train-0"]}
    reasons = {"train-0": "image changed", "head-0": "image changed"}
    lines = text_of(DOCUMENT | {"machines": machines, "reasons": reasons}).splitlines()
    assert lines[4:7] == ["  recreate train-0, head-0 (image changed)", "  recreate train-1", "  change train-0"]


def test_the_plan_is_read_in_one_look() -> None:
    assert text_of(DOCUMENT).splitlines() == [
        "vision (sandbox: simulated hardware)",
        "  train: 2 × p4d.24xlarge, driver 580.1, CUDA 13.0, NCCL 2.27.7",
        "  head: 1 × g4dn.xlarge, driver 570.2, CUDA 12.8, NCCL 2.26.2",
        "  create train-1",
        "  a: 3 to add, 1 to change, 2 to destroy (Terraform resources); not of a machine: destroy and add anew "
        "terraform_data.mirror (the sandbox's package mirror), add vpc",
        "  b: nothing to add, change or destroy",
        "  `gpuprov cost FILE` says what these machines cost in the cloud",
        "  warning: memory: little of it (buy some)",
    ]


def test_a_real_plan_does_not_say_sandbox() -> None:
    assert text_of({**DOCUMENT, "sandbox": False}).splitlines()[0] == "vision"


def test_a_group_of_an_image_names_it_and_a_new_lock_has_its_path() -> None:
    image = {"images": {"train": "gold 20260102T030405"}}
    text = text_of({**DOCUMENT, **image, "new_lock": True, "lock_file": "/c/cluster.lock"})
    assert "NCCL 2.27.7, from image gold 20260102T030405\n" in text and text.count("from image") == 1
    assert "  /c/cluster.lock does not exist yet; `gpuprov lock FILE` or `gpuprov up FILE` writes it" in text


def test_a_machine_without_a_version_says_so() -> None:
    """AMD machines have no NVIDIA driver."""
    amd = {**DOCUMENT, "stack": {"train": {"driver": None, "cuda": None, "nccl": None}}}
    assert "None" not in text_of(amd)
    assert "  train: 2 × p4d.24xlarge\n" in text_of(amd)


def test_what_blocks_is_refused_with_what_to_do() -> None:
    fine = [Finding("ok", "quota", "enough"), Finding("warning", "memory", "little"), Finding("unknown", "x", "y")]
    bad = [Finding("blocks", "quota", "8 of 96", "ask for more"), Finding("blocks", "zone", "none", "")]
    errors = blocked({"": fine, "virginia": bad, "ohio": fine})
    assert list(errors) == ["virginia"]
    with pytest.raises(ProviderError) as caught:
        raise together(errors)
    assert caught.value.message == "quota: 8 of 96\n  zone: none"
    assert caught.value.hint == "ask for more"
    assert caught.value.exit_code == Exit.PROVIDER_FAILED


def test_a_run_counts_its_changes_and_is_not_healthy_until_proven(tmp_path: Path) -> None:
    run = Run(tmp_path, resources=5, configured=4)
    assert run.changes == 9
    assert run.exit == Exit.CHECK_FAILED
    run.healthy = True
    assert run.exit == Exit.OK


def test_stages_are_timed_even_when_they_fail(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(RuntimeError), run.stage("terraform"):
        raise RuntimeError
    with run.stage("stack"):
        pass
    assert list(run.seconds) == ["terraform", "stack"]
    assert all(value >= 0 for value in run.seconds.values())


def test_a_lock_that_is_not_written_yet_is_said() -> None:
    (line,) = [line for line in text_of({**DOCUMENT, "new_lock": True}).splitlines() if "cluster.lock" in line]
    assert "`gpuprov lock FILE` or `gpuprov up FILE` writes it" in line


@pytest.mark.parametrize("sandbox", [True, False])
def test_a_sandbox_has_a_lock_of_its_own(tmp_path: Path, sandbox: bool) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "vision", sandbox)
    assert not paths.locked()
    paths.lock_file.parent.mkdir(parents=True, exist_ok=True)
    paths.lock_file.write_text("")
    assert paths.locked()
    paths.lock_file.rename(paths.user_lock)
    assert paths.locked()


def machines_of(folder: Path, *, simulated: bool) -> tuple[TerraformMachines, Plan, list[str]]:
    """A site whose state was cut off while it was written; what was done to it."""
    done: list[str] = []
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    (folder / "terraform.tfstate").write_text('{"version": 4, "ser')

    class Nodes(Module):
        folder = "sandbox"

        def inputs(self, plan: Plan) -> dict[str, Any]:
            return {}

        def address(self, node: str) -> str:
            return node

    provider = SimpleNamespace(
        place=Place("vision", "here", plan.spec.sites["here"], folder), module=Nodes(), simulated=simulated,
        capacity=None, clean=lambda _: done.append("clean"),
    )  # fmt: skip
    root = Root(key=str, identity=str)
    return TerraformMachines(provider, root, Binary(("false",), ""), Events()), plan, done  # type: ignore[arg-type]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_plan_mends_nothing(tmp_path: Path, simulated: bool) -> None:
    """A cut state: `up` of a sandbox removes its nodes and makes them again, or puts a backup back."""
    site_machines, plan, done = machines_of(tmp_path, simulated=simulated)
    with pytest.raises(ProviderError, match="is cut off"):
        site_machines.plan(plan, repair=False)
    backup = tmp_path / "terraform.tfstate.backup"
    backup.write_text("{}")
    with pytest.raises(ProviderError, match="`gpuprov up` puts its backup in its place"):
        site_machines.plan(plan, repair=False)
    assert (done, (tmp_path / "terraform.tfstate").read_text()) == ([], '{"version": 4, "ser')


def test_a_plan_moves_no_state(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text('terraform {\n  backend "s3" {\n  }\n}\n')
    (tmp_path / "terraform.tfstate").write_text("{}")
    with pytest.raises(ProviderError, match="names another place") as caught:
        Workspace(tmp_path, Binary(("false",), ""), Events()).init(repair=False)
    assert "`gpuprov up` moves it" in caught.value.hint
    assert (tmp_path / "terraform.tfstate").exists()


def test_what_serves_every_machine_may_change_with_any_of_them() -> None:
    """The mirror of a sandbox that serves another lock by now, or that somebody stopped."""
    mirror = Action("replace", "mirror", shared=True)
    Planned("here", actions=(Action("replace", "train-0", "train-0"), mirror)).refuse_more(["train-0"], ["train-0"])
    with pytest.raises(ProviderError, match="would also replace other"):
        Planned("here", actions=(mirror, Action("replace", "other"))).refuse_more([], [])
