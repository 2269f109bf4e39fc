"""`down`: what it removes, what it looks for, and that nothing is forgotten while something is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.cli.main import run
from provisioner.common.errors import Diagnostic, GpuprovError, InputError, ProviderError
from provisioner.common.paths import MADE_BY, private_dir
from provisioner.lifecycle import down, machines
from provisioner.lifecycle.session import Cluster, open_cluster, open_to_remove
from provisioner.machines import terraform_machines as terraform
from provisioner.machines.providers.sandbox.provider import Sandbox
from provisioner.machines.terraform import binary
from provisioner.plan.models import build_plan
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.stack.models import Lock
from tests.support import plans

MACHINE = "p4d.24xlarge"
FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2}}
"""
NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7")


class World:
    """Terraform's workspace and what the provider finds by tag. `calls`: in which order they were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.damaged = ""
        self.leftover: list[str] = []
        self.refused: list[str] = []
        """What Terraform says of what it may not remove, one text for each `destroy`."""

    def workspace(self, *_: Any, **__: Any) -> World:
        return self

    def damage(self, **_: Any) -> str:
        return self.damaged

    def init(self) -> None:
        self.calls.append("init")

    def destroy(self) -> Any:
        self.calls.append("destroy")
        if self.refused:
            message = self.refused.pop(0)
            raise ProviderError(f"terraform destroy failed: {message}", diagnostics=[Diagnostic(message)])
        return SimpleNamespace(destroy=5)

    def save_errored(self, *, repair: bool) -> None:
        assert repair

    def clean(self, *_: Any) -> list[str]:
        self.calls.append("clean")
        return self.leftover


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World()
    monkeypatch.setattr(terraform, "Workspace", test_world.workspace)
    monkeypatch.setattr(Sandbox, "clean", lambda _, *arguments: test_world.clean(*arguments))
    return test_world


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """What an `up` has left."""
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    site = private_dir(test_cluster.paths.site("here"))
    (site / MADE_BY).write_text("sandbox\n")
    for name in ("main.tf", "terraform.tfstate"):
        (site / name).write_text("{}")
    fleet.save(test_cluster.paths, [NODE])
    return test_cluster


def take_down(cluster: Cluster) -> down.Removal:
    return down.down(cluster, None)  # type: ignore[arg-type]


def test_machines_are_destroyed_looked_for_again_and_forgotten(cluster: Cluster, world: World) -> None:
    assert take_down(cluster) == down.Removal(removed=5)
    assert world.calls == ["init", "destroy", "clean"]
    assert not cluster.paths.root.exists()


def test_a_site_that_fails_does_not_keep_the_others(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their machines would go on costing."""
    other = private_dir(cluster.paths.site("there"))
    (other / MADE_BY).write_text("sandbox\n")
    real, sites = down.machines.of_site, []

    def of_site(cluster: Cluster, site: str, *arguments: Any, **how: Any) -> Any:
        sites.append(site)
        if site == "here":
            raise ProviderError("the credentials have expired", hint="sign in")
        return real(cluster, site, *arguments, **how)

    monkeypatch.setattr(down.machines, "of_site", of_site)
    with pytest.raises(ProviderError, match="the credentials have expired"):
        take_down(cluster)
    assert sites == ["here", "there"] and "clean" in world.calls
    assert cluster.nodes() == [NODE], "nothing is forgotten"


def test_while_something_is_left_nothing_is_forgotten(cluster: Cluster, world: World) -> None:
    world.leftover = ["instance i-7 is still there"]
    with pytest.raises(ProviderError, match="instance i-7 is still there"):
        take_down(cluster)
    assert cluster.nodes() == [NODE]
    assert (cluster.paths.site("here") / MADE_BY).exists()
    world.leftover = []
    take_down(cluster)
    assert not cluster.paths.root.exists()


def test_a_refused_destroy_sweeps_on_and_names_what_is_left(cluster: Cluster, world: World) -> None:
    world.refused = ["VPC vpc-1: DependencyViolation"]
    world.leftover = ["VPC vpc-1: has dependencies", "network interface eni-1 of team-b is in subnet-1"]
    with pytest.raises(ProviderError, match="network interface eni-1 of team-b") as caught:
        take_down(cluster)
    assert "VPC vpc-1: has dependencies" in caught.value.message
    assert world.calls == ["init", "destroy", "clean"]
    assert cluster.nodes() == [NODE]


def test_what_the_sweep_removed_is_gone_for_terraform_too(cluster: Cluster, world: World) -> None:
    world.refused = ["VPC vpc-1: DependencyViolation"]
    assert take_down(cluster) == down.Removal(removed=5)
    assert world.calls == ["init", "destroy", "clean", "init", "destroy"]
    assert not cluster.paths.root.exists()


def test_what_no_tag_finds_and_terraform_refuses_is_left(cluster: Cluster, world: World) -> None:
    world.refused = ["role: DeleteConflict"] * 2
    with pytest.raises(ProviderError, match="role: DeleteConflict"):
        take_down(cluster)
    assert cluster.nodes() == [NODE]


def test_a_run_that_died_before_terraform_is_looked_for_by_tag_alone(cluster: Cluster, world: World) -> None:
    (cluster.paths.site("here") / "terraform.tfstate").unlink()
    assert take_down(cluster) == down.Removal()
    assert world.calls == ["clean"]


def test_a_damaged_state_of_a_sandbox_is_passed_over(cluster: Cluster, world: World) -> None:
    world.damaged = "terraform.tfstate is damaged"
    take_down(cluster)
    assert world.calls == ["clean"]


def test_a_damaged_state_of_a_real_fleet_is_refused(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it names would be forgotten."""
    world.damaged = "terraform.tfstate is damaged"
    monkeypatch.setattr(Sandbox, "simulated", False)
    with pytest.raises(ProviderError, match=r"terraform\.tfstate is damaged"):
        take_down(cluster)
    assert (world.calls, cluster.nodes()) == ([], [NODE])


def test_a_site_that_cluster_yaml_names_no_more_is_removed_too(cluster: Cluster, world: World) -> None:
    private_dir(cluster.paths.site("there"))
    (cluster.paths.site("there") / MADE_BY).write_text("sandbox\n")
    take_down(cluster)
    assert world.calls == ["init", "destroy", "clean", "clean"]


BROKEN = {
    "typo": (FILE.replace("machine: p4d", "machin: p4d"), FILE),
    "machine that the catalogue has lost": (FILE.replace("p4d.24x", "p4d.99x"), FILE.replace("p4d.24x", "p4d.99x")),
    "no YAML": ("name: [", FILE),
    "another name": (FILE.replace("name: vision", "name: vision_2"), FILE),
}


@pytest.mark.parametrize(("text", "used"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("sandbox", [None, True])
def test_machines_are_removed_though_the_file_is_not_valid_any_more(
    cluster: Cluster, world: World, text: str, used: str, *, sandbox: bool | None
) -> None:
    """As the last run read it that made machines. What else could remove them? `gc` refuses a cluster that is here."""
    created(cluster)
    cluster.paths.used_spec.write_text(used)
    cluster.file.write_text(text)
    with pytest.raises(InputError):
        open_cluster(cluster.file, sandbox=sandbox)
    notes: list[str] = []
    removed = open_to_remove(cluster.file, sandbox=sandbox, note=notes.append)
    assert (removed.paths, removed.spec.name) == (cluster.paths, "vision")
    assert "cluster.yaml:" in notes[0] and f"as {cluster.paths.used_spec} describes it" in notes[0]
    assert take_down(removed) == down.Removal(removed=5)
    assert not cluster.paths.root.exists()


def created(cluster: Cluster) -> None:
    """What a run writes down before it makes machines."""
    lock = Lock(request={}, simulated=True, groups={"train": plans.plan(plans.cluster_spec(MACHINE)).groups[0].stack})
    machines.write_intent(cluster, build_plan(cluster.spec, lock))


def test_machines_are_removed_though_the_file_is_gone(cluster: Cluster, world: World) -> None:
    created(cluster)
    cluster.file.unlink()
    notes: list[str] = []
    take_down(open_to_remove(cluster.file, note=notes.append))
    assert notes == [f"{cluster.file} is missing: cluster vision is removed as {cluster.paths.used_spec} describes it"]
    assert not cluster.paths.root.exists()


def test_a_command_on_a_file_that_is_gone_says_what_its_run_directory_has(cluster: Cluster) -> None:
    created(cluster)
    cluster.file.unlink()
    with pytest.raises(InputError) as caught:
        open_cluster(cluster.file)
    assert caught.value.hint == (
        ".gpuprov/vision.sandbox has 1 machine created from cluster.yaml: restore that file (`cp "
        f"{cluster.paths.used_spec} {cluster.file}` takes the copy of the last run), or remove them with `gpuprov down "
        f"{cluster.file}`"
    )
    other = cluster.file.with_name("typo.yaml")
    with pytest.raises(InputError) as caught:
        open_to_remove(other)
    assert caught.value.hint == (".gpuprov/vision.sandbox has 1 machine created from cluster.yaml: pass that file")
    cluster.paths.used_spec.unlink()
    with pytest.raises(InputError) as caught:
        open_to_remove(cluster.file)
    assert "restore that file; `gpuprov gc` finds machines by their tags" in caught.value.hint


def test_a_file_that_is_valid_is_what_counts(cluster: Cluster) -> None:
    created(cluster)
    cluster.paths.used_spec.write_text(FILE.replace("us-east-1", "eu-west-1"))
    opened = open_to_remove(cluster.file, sandbox=True, note=pytest.fail)
    assert opened.spec.sites["here"].region == "us-east-1"  # type: ignore[attr-defined]


def test_a_file_that_is_not_valid_and_of_which_nothing_was_created_is_refused(cluster: Cluster) -> None:
    created(cluster)
    other = cluster.file.with_name("other.yaml")
    other.write_text(FILE.replace("machine: p4d", "machin: p4d"))
    with pytest.raises(InputError, match="machin") as caught:
        open_to_remove(other)
    assert caught.value.hint == "correct the file, or restore its last version"
    cluster.file.write_text("name: [")
    with pytest.raises(InputError):
        open_to_remove(cluster.file, sandbox=False)
    cluster.paths.used_spec.write_text("name: [")
    with pytest.raises(InputError) as caught:
        open_to_remove(cluster.file)
    assert caught.value.hint == "correct the file, or restore its last version"


def test_where_both_a_fleet_and_its_sandbox_may_be_meant_one_has_to_be_named(cluster: Cluster) -> None:
    created(cluster)
    real = open_cluster(cluster.file, sandbox=False)
    private_dir(real.paths.site("here"))
    created(real)
    cluster.file.write_text("name: [")
    with pytest.raises(InputError) as caught:
        open_to_remove(cluster.file)
    assert caught.value.hint == "pass --sandbox or --no-sandbox"
    assert not open_to_remove(cluster.file, sandbox=False).sandbox


def test_the_command_says_by_what_it_goes(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created(cluster)
    cluster.file.write_text(FILE.replace("machine: p4d", "machin: p4d"))
    monkeypatch.setattr(Cluster, "require_rights", lambda _: None)
    monkeypatch.setattr(binary, "find", lambda *_, **__: None)
    assert run(["down", str(cluster.file), "--yes"]) == 0
    output = capsys.readouterr()
    assert "The file is not valid: cluster vision is removed as" in output.err
    assert "5 resources removed, nothing is left" in output.out
    assert not cluster.paths.root.exists()


@pytest.mark.parametrize("strange", ["of another cluster", "in a folder of others"])
def test_a_copy_that_somebody_else_may_have_put_there_removes_nothing(cluster: Cluster, strange: str) -> None:
    """Its hooks would run, and it says which machines go."""
    created(cluster)
    if strange == "of another cluster":
        cluster.paths.used_spec.write_text(FILE.replace("name: vision", "name: victim"))
    else:
        cluster.paths.root.chmod(0o770)
    cluster.file.write_text("name: [")
    with pytest.raises(GpuprovError, match=r"it is of cluster victim|is not trusted"):
        open_to_remove(cluster.file)
