"""`gpuprov gc`: whose is what has tags, who on this machine knows it, and what of it is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filelock import FileLock

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle import gc
from provisioner.lifecycle.gc import Cluster, Remainder, alive_here, chosen, is_run_lock_held, look, remove
from provisioner.machines.providers.orphans import Found, Thing
from tests.support.plans import cluster_spec

VM = Thing("virtual machine", "/vm/a", "train", "a", "eastus")


def at(site: str, alive: str = "", name: str = "train", identity: str = "") -> Cluster:
    return Cluster(name, site, "eastus", (replace(VM, id=f"/vm/{site}", site=site),), alive, identity)


@dataclass
class Region:
    """What is in a region. `stuck`: ids that are not removed, with what is said of it; `unknown`: of its answers."""

    things: list[Thing]
    stuck: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    removed: list[str] = field(default_factory=list)

    def find(self) -> Found:
        return Found(tuple(self.things), self.unknown)

    def remove(self, resources: Sequence[Thing], report: Callable[[str], None]) -> list[str]:
        self.removed += [resource.id for resource in resources]
        deleted = [resource for resource in resources if resource.id not in self.stuck and not resource.kept]
        self.things = [resource for resource in self.things if resource not in deleted]
        return [self.stuck[resource.id] for resource in resources if self.stuck.get(resource.id)]


# which clusters there are


@pytest.mark.parametrize("alive", [("/runs", ""), ("", "/runs"), ("/runs", "/runs")])
def test_a_cluster_that_is_alive_at_one_site_is_refused_at_all(alive: tuple[str, str]) -> None:
    both = Remainder((at("a", alive[0]), at("b", alive[1])), ())
    with pytest.raises(GpuprovError, match="train is alive here: /runs"):
        chosen(both, "train")


def test_a_cluster_that_is_alive_nowhere_is_chosen_at_all_its_places() -> None:
    both = Remainder((at("a"), at("b"), at("c", "/runs", name="other")), ())
    assert chosen(both, "train") == [at("a"), at("b")]
    assert chosen(both, "gone") == []
    assert chosen(both, "gone", "aaaaaaaaaaaa") == []


def test_of_two_clusters_of_a_name_the_living_one_keeps_nobody_from_the_other() -> None:
    both = Remainder((at("a", "/runs", identity="aaaaaaaaaaaa"), at("b", identity="bbbbbbbbbbbb")), ())
    assert chosen(both, "train", "bbbbbbbbbbbb") == [both.clusters[1]]
    with pytest.raises(GpuprovError, match="is alive here"):
        chosen(both, "train", "aaaaaaaaaaaa")


def test_things_are_put_together_by_place_cluster_site_and_identity(tmp_path: Path) -> None:
    resources = [
        VM,
        replace(VM, id="/disk/a", kind="disk"),
        replace(VM, id="/vm/b", site="b"),
        replace(VM, id="/vm/c", place="westus"),
        replace(VM, id="/vm/d", identity="aaaaaaaaaaaa"),
        replace(VM, id="/vm/e", cluster="infer"),
    ]
    actual = look([Region(resources, unknown=("no answer",)), Region([], unknown=("no answer", "denied"))], [tmp_path])  # type: ignore[list-item]
    ids = [[resource.id for resource in cluster.things] for cluster in actual.clusters]
    assert ids == [["/vm/e"], ["/vm/a", "/disk/a"], ["/vm/d"], ["/vm/b"], ["/vm/c"]]
    assert actual.unknown == ("no answer", "denied")


def test_a_cluster_is_as_old_as_its_oldest_thing() -> None:
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 2)]
    resources = (replace(VM, since=days[0]), replace(VM, since=None), replace(VM, since=days[1]))
    assert Cluster("train", "a", "eastus", resources, "").since == days[1]
    assert at("a").since is None


def test_a_thing_that_two_regions_see_is_kept_only_if_both_keep_it(tmp_path: Path) -> None:
    role, kept_role = replace(VM, kind="role"), replace(VM, kind="role", kept="may be another region's")
    for first, second in ((role, kept_role), (kept_role, role)):
        (cluster,) = look([Region([first]), Region([second])], [tmp_path]).clusters  # type: ignore[list-item]
        assert cluster.things == (role,)
    (cluster,) = look([Region([kept_role]), Region([kept_role])], [tmp_path]).clusters  # type: ignore[list-item]
    assert cluster.things == (kept_role,)


def test_a_directory_that_the_provider_names_is_all_that_counts(tmp_path: Path) -> None:
    run_directory(tmp_path)
    existing, missing = replace(VM, workspace=str(tmp_path)), replace(VM, id="/vm/b", workspace=str(tmp_path / "gone"))
    clusters = look([Region([existing, missing])], [tmp_path]).clusters  # type: ignore[list-item]
    assert sorted(cluster.alive for cluster in clusters) == ["", str(tmp_path)]


# who knows it


def run_directory(folder: Path, state: str | None = '{"resources": [{"mode": "managed"}]}') -> Path:
    """A run directory of cluster train; `state`: the text of a site's state."""
    workspace = folder / ".gpuprov" / "train" / "sites" / "a"
    workspace.mkdir(parents=True)
    if state is not None:
        (workspace / "terraform.tfstate").write_text(state)
    return workspace


@pytest.mark.parametrize(
    ("state", "alive"),
    [
        (None, False),
        ('{"resources": []}', False),
        ('{"resources": [{"mode": "data"}]}', False),
        ('{"resources": [{"mode": "data"}, {"mode": "managed"}]}', True),
        ('{"resources": [', True),
        ('{"resources": 7}', True),
        ('{"resources": [7]}', True),
        ("{}", True),
        ("[]", True),
        ("[" * 50_000, True),
    ],
)
def test_a_state_counts_unless_it_is_known_to_be_empty(tmp_path: Path, state: str | None, alive: bool) -> None:
    run_directory(tmp_path, state)
    assert bool(alive_here("train", [tmp_path])) == alive
    assert alive_here("other", [tmp_path]) == ""


@pytest.mark.parametrize(("backend", "alive"), [("s3", True), ("local", False)])
def test_a_state_that_lies_elsewhere_counts(tmp_path: Path, backend: str, alive: bool) -> None:
    workspace = run_directory(tmp_path, None)
    (workspace / "main.tf").write_text(f'terraform {{\n  backend  "{backend}" {{\n  }}\n}}\n')
    assert bool(alive_here("train", [tmp_path])) == alive


def test_a_root_module_that_cannot_be_read_does_not_hide_the_state(tmp_path: Path) -> None:
    workspace = run_directory(tmp_path)
    (workspace / "main.tf").write_bytes(b"\xff\xfe")
    assert alive_here("train", [tmp_path])


def test_the_second_site_and_the_second_folder_count(tmp_path: Path) -> None:
    run_directory(tmp_path / "x", None)
    (run_directory(tmp_path / "y", None).parent / "b").mkdir()
    file = tmp_path / "y" / ".gpuprov" / "train" / "sites" / "b" / "terraform.tfstate"
    file.write_text('{"resources": [{"mode": "managed"}]}')
    actual = alive_here("train", [tmp_path / "x", tmp_path / "y"])
    assert actual == str(tmp_path / "y" / ".gpuprov" / "train")


@pytest.mark.parametrize(
    ("id_text", "identity", "alive"),
    [
        ("aaaaaaaaaaaa\n", "aaaaaaaaaaaa", True),
        ("aaaaaaaaaaaa\n", "bbbbbbbbbbbb", False),
        ("aaaaaaaaaaaa\n", "", True),
        ("damaged", "bbbbbbbbbbbb", True),
        (None, "bbbbbbbbbbbb", True),
    ],
)
def test_a_run_directory_of_another_identity_made_another_cluster(
    tmp_path: Path, id_text: str | None, identity: str, alive: bool
) -> None:
    root = run_directory(tmp_path).parents[1]
    if id_text is not None:
        (root / "id").write_text(id_text)
    assert bool(alive_here("train", [tmp_path], identity=identity)) == alive


def test_an_identity_that_is_no_text_counts_for_everybody(tmp_path: Path) -> None:
    (run_directory(tmp_path).parents[1] / "id").write_bytes(b"\xff")
    assert alive_here("train", [tmp_path], identity="bbbbbbbbbbbb")


def test_a_run_in_progress_counts_before_it_has_a_state(tmp_path: Path) -> None:
    root = run_directory(tmp_path, None).parents[1]
    assert not is_run_lock_held(root)
    (root / "run.lock").touch()
    assert not is_run_lock_held(root)
    with FileLock(root / "run.lock"):
        assert is_run_lock_held(root)
        assert alive_here("train", [tmp_path]) == f"a run is in progress in {root}"


def test_a_lock_that_cannot_be_tried_is_held(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    assert is_run_lock_held(tmp_path)


class Bucket:
    where = "s3://bucket/train"

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def names(self) -> list[str]:
        return self._names


@pytest.mark.parametrize(
    ("names", "alive"),
    [([], ""), (["fleet.json.gz"], "its state is in s3://bucket/train"), (None, "could not be read")],
)
def test_the_state_of_the_file_that_was_named_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None, alive: str
) -> None:
    def remote_of(_: object) -> Bucket:
        if names is None:
            raise ProviderError("access denied")
        return Bucket(names)

    monkeypatch.setattr(gc, "remote_of", remote_of)
    local = cluster_spec("p4d.24xlarge", name="train")
    state = local.state.model_copy(update={"backend": "s3"})
    shared = local.model_copy(update={"state": state})
    actual = alive_here("train", [tmp_path], shared)
    assert alive in actual and bool(alive) == bool(actual)
    assert alive_here("other", [tmp_path], shared) == ""
    assert alive_here("train", [tmp_path], local) == ""
    assert alive_here("train", [tmp_path], None) == ""


# what is removed


def ignore(_: str) -> None:
    """Nobody listens."""


def test_only_things_of_the_clusters_that_were_chosen_are_removed() -> None:
    other = replace(VM, id="/vm/other", cluster="infer")
    region = Region([VM, other])
    assert remove([region], [at("a")], ignore) == (1, [])  # type: ignore[list-item]
    assert (region.removed, region.things) == (["/vm/a"], [other])


def test_nothing_is_asked_for_where_all_things_are_kept() -> None:
    kept_machine = replace(VM, kept="it holds data")
    region = Region([kept_machine])
    assert remove([region], [Cluster("train", "a", "eastus", (kept_machine,), "")], ignore) == (  # type: ignore[list-item]
        0, ["virtual machine /vm/a: it holds data"]
    )  # fmt: skip
    assert region.removed == []


def test_what_was_refused_is_said_and_what_is_still_there_only_where_nothing_was() -> None:
    both = Cluster("train", "a", "eastus", (VM, replace(VM, id="/vm/b")), "")
    assert remove([Region(list(both.things), {"/vm/a": "a refusal", "/vm/b": ""})], [both], ignore) == (  # type: ignore[list-item]
        0, ["a refusal"]
    )  # fmt: skip
    assert remove([Region(list(both.things), {"/vm/b": ""})], [both], ignore) == (  # type: ignore[list-item]
        1, ["virtual machine /vm/b: still there"]
    )  # fmt: skip


def test_what_is_kept_and_what_could_not_be_asked_is_said_beside_that() -> None:
    kept_disk = replace(VM, id="/disk", kind="disk", kept="it holds data")
    region = Region([VM, kept_disk], unknown=("role: access denied",))
    removed_count, problems = remove([region], [Cluster("train", "a", "eastus", (VM, kept_disk), "")], ignore)  # type: ignore[list-item]
    assert (removed_count, problems) == (1, ["disk /disk: it holds data", "role: access denied"])
    assert json.dumps(region.removed) == '["/vm/a", "/disk"]'
