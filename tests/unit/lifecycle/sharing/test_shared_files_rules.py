"""What operators share, in detail: which files, in which shape, and what another operator's machine does with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from provisioner.common.errors import GpuprovError, InputError, LockedError, ProviderError
from provisioner.common.events import Event
from provisioner.common.paths import private_dir
from provisioner.common.preflight import Finding
from provisioner.lifecycle.sharing import shared_files
from provisioner.lifecycle.sharing.shared_files import (
    FLEET,
    LIMIT,
    LOCK,
    RECORD,
    UNANSWERED,
    is_shared,
)
from provisioner.machines.providers.state import Conflict
from provisioner.rundir import fleet
from provisioner.rundir.files import REPORTS, SHARED
from provisioner.rundir.fleet import Node
from provisioner.rundir.node_state import is_report
from provisioner.rundir.release import ANOTHER_RELEASE, identity
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.transport import ssh_pins
from tests.unit.lifecycle.sharing.test_lease import Run, Store, ann, ben, store

__all__ = ["ann", "ben", "store"]


EMPTY = Lock(request={}, simulated=True, groups={})


def texts(folder: Path) -> dict[str, str]:
    """Suffix → a text that a shared file may have."""
    lockfile.write(folder / "lock", EMPTY)
    return {".lock": (folder / "lock").read_text(), ".json": "[]", ".pins": "{}"}


def content(store: Store) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(gzip.decompress(store.blobs[FLEET][0]))
    return actual


def shared(run: Run) -> None:
    private_dir(run.paths.root)
    run.shared.push()


# what is shared


def test_an_object_of_two_runs_is_the_same_where_the_files_are(ann: Run, ben: Run, store: Store) -> None:
    """Bytes are compared to know an own write again."""
    ann.note("train-0")
    shared(ann)
    first = store.blobs.pop(FLEET)[0]
    (ann.paths.root / RECORD).unlink()
    ann.shared.push()
    assert store.blobs[FLEET][0] == first
    assert first[4:8] == bytes(4), "no time is in it"
    assert list(content(store)) == ["files", "format"] and content(store)["format"] == 1


def test_only_files_that_others_need_are_shared(ann: Run, store: Store, tmp_path: Path) -> None:
    root = private_dir(ann.paths.root)
    names = ["nodes.json", "sites/here/provider", f"locks/{identity(EMPTY)}.lock", "ssh/pins.json"]
    unshared = ["ssh/key", "sites/here/main.tf", "sites/a/b/provider", "run.lock", "locks/x.txt"]
    for name in [*names, *unshared]:
        private_dir((root / name).parent)
        suffix = ".pins" if name == "ssh/pins.json" else Path(name).suffix
        (root / name).write_text(texts(tmp_path).get(suffix, "text"))
    ann.shared.push()
    assert sorted(content(store)["files"]) == sorted(names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ssh/pins.json", '{"train-0": [1]}'),
        ("applied.json", '{"nodes": []}'),
        ("quarantine.json", '{"nodes": {"train-0": 1}}'),
        ("upgrade.json", "{}"),
        ("replace.json", "half a fi"),
        ("sites/here/account", "111111"),
        ("id", "00000000000"),
        ("locks/aaaaaaaaaaaa.lock", "text"),
    ],
)
def test_a_file_that_is_damaged_here_is_not_shared(name: str, text: str, ann: Run, store: Store) -> None:
    file = private_dir(ann.paths.root) / name
    private_dir(file.parent)
    file.write_text(text)
    with pytest.raises(GpuprovError, match="is damaged") as caught:
        ann.shared.push()
    assert FLEET not in store.blobs
    assert caught.value.where == str(file)
    assert "no copy of it is shared: restore it from a backup" in caught.value.hint
    assert ("remove it" in caught.value.hint) == (name != "id" and not name.endswith("/account"))


def test_a_kept_lock_with_another_content_than_its_name_says_is_not_shared(
    ann: Run, store: Store, tmp_path: Path
) -> None:
    """An edit that keeps its form would otherwise reach every operator."""
    file = private_dir(ann.paths.root / "locks") / "aaaaaaaaaaaa.lock"
    file.write_text(texts(tmp_path)[".lock"])
    with pytest.raises(GpuprovError, match=ANOTHER_RELEASE) as caught:
        ann.shared.push()
    assert caught.value.where == str(file) and FLEET not in store.blobs


def test_a_file_that_is_damaged_here_is_read_again_where_it_is_shared(ann: Run, store: Store) -> None:
    ann.note("train-0")
    shared(ann)
    (ann.paths.root / "nodes.json").write_text("half a fi")
    with pytest.raises(GpuprovError, match="is damaged") as caught:
        ann.shared.push()
    assert caught.value.hint.startswith(f"remove {ann.paths.root / RECORD}: ")


@pytest.mark.parametrize("answered", [True, False])
def test_a_shared_file_that_is_removed_here_comes_back(ann: Run, store: Store, answered: bool) -> None:
    """Without applied.json `up` would take proven nodes for new ones."""
    root, ledger = private_dir(ann.paths.root), '{"nodes": {}}'
    (root / "applied.json").write_text(ledger)
    (root / "quarantine.json").write_text(ledger)
    shared(ann)
    if not answered:
        store.lose_answer("write", FLEET, ConnectionError("lost"))
        with pytest.raises(ConnectionError):
            ann.shared.push()
    (root / "quarantine.json").write_text('{"nodes": {"train-0": {}}}')  # of a run that could not share it
    (root / "applied.json").unlink()
    ann.shared.pull()
    assert (root / "applied.json").read_text() == ledger
    assert "train-0" in (root / "quarantine.json").read_text()


def test_a_ledger_whose_lock_is_nowhere_stays_removed(ann: Run) -> None:
    """The error of the missing lock says to remove applied.json."""
    root, ledger = private_dir(ann.paths.root), '{"nodes": {"train-0": {"id": "i-1", "lock": "0123456789ab"}}}'
    (root / "applied.json").write_text(ledger)
    content = ann.shared._packed({"applied.json": ledger})
    (root / "applied.json").unlink()
    ann.shared._restore(content, ["applied.json"])
    assert not (root / "applied.json").exists()


def test_a_file_that_a_run_removes_does_not_come_back(ann: Run, store: Store) -> None:
    (private_dir(ann.paths.root) / "applied.json").write_text('{"nodes": {}}')
    shared(ann)
    (ann.paths.root / "applied.json").unlink()
    ann.shared.push()
    ann.shared.pull()
    assert not (ann.paths.root / "applied.json").exists()


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("nodes.json", True),
        ("sites/here/provider", True),
        ("sites/../provider", False),
        ("sites//provider", False),
        ("sites/.x/provider", True),
        ("sites/a b/provider", False),
        ("sites/here/sub/provider", False),
        ("locks/a.lock", True),
        ("locks/a.txt", False),
        (f"locks/{'a' * 95}.lock", True),
        (f"locks/{'a' * 97}.lock", False),
        (LOCK, True),
        ("runs/2026/report.html", False),
        ("runs/2026/report.pdf", False),
        ("ssh/key", False),
    ],
)
def test_a_name_is_shared_only_as_it_is_written(name: str, belongs: bool) -> None:
    assert is_shared(name) == belongs


def test_a_page_is_a_report_and_nothing_else_is() -> None:
    assert is_report("runs/2026/report.html")
    assert not any(map(is_report, ("nodes.json", None, 7, "../report.html")))
    assert not is_shared("nodes.json", REPORTS) and is_shared("nodes.json", SHARED)


def test_all_files_of_the_last_report_are_shared_and_no_other_report(ann: Run, store: Store) -> None:
    root = private_dir(ann.paths.root)
    for run in ("1", "2"):
        for kind in ("json", "xml", "html", "pdf"):
            file = private_dir(root / "runs" / run) / f"report.{kind}"
            file.write_text("{}")
    (root / "state.json").write_text('{"report": "runs/2/report.html"}')
    ann.shared.push()
    assert sorted(name for name in content(store)["files"] if name.startswith("runs")) == [
        f"runs/2/report.{kind}" for kind in ("json", "xml")
    ]


@pytest.mark.parametrize("state", ['{"report": "../x"}', '{"report": 7}', "[]", "{", "{}"])
def test_a_report_that_state_json_does_not_name_is_not_shared(ann: Run, store: Store, state: str) -> None:
    root = private_dir(ann.paths.root)
    (root / "state.json").write_text(state)
    assert ann.shared._last_report() is None


# limits


def test_the_limits() -> None:
    assert (LIMIT, UNANSWERED) == (64 * 1024 * 1024, 20)


def test_files_of_exactly_the_limit_are_shared_and_the_largest_of_more_is_named(
    ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = private_dir(ann.paths.root)
    (root / "nodes.json").write_text("[]")
    (root / "baseline.json").write_text(json.dumps("x" * 5000))
    (root / "upgrade.json").write_text(json.dumps({"nodes": {}, "reason": "x" * 3000}))
    ann.shared.push()
    size = len(gzip.decompress(store.blobs[FLEET][0]))
    monkeypatch.setattr(shared_files, "LIMIT", size)
    ann.shared.push()
    monkeypatch.setattr(shared_files, "LIMIT", size - 1)
    with pytest.raises(GpuprovError, match=r"the largest is baseline\.json"):
        ann.shared.push()


def test_what_is_left_out_is_reported_once_for_each_file(
    ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    ann.events.subscribe(events.append)
    monkeypatch.setattr(shared_files, "LIMIT", 2000)
    root = private_dir(ann.paths.root)
    with ann.held():
        (root / "nodes.json").write_text("[]")
        (root / "measures.jsonl").write_text("x" * 3000)
        ann.shared.share()
        ann.shared.share()
        for kind in ("json", "xml"):
            (private_dir(root / "runs" / "1") / f"report.{kind}").write_text('"' + "x" * 3000 + '"')
        (root / "state.json").write_text('{"report": "runs/1/report.html"}')
        ann.shared.share()
    messages = [event.message.split(":")[0] for event in events if event.stage == "run"]
    assert messages == ["measures.jsonl", "runs/1/report.json, runs/1/report.xml"]


# another machine


def nodes(user: str = "") -> list[Node]:
    return [Node("train-0", "train", "virginia", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7", user=user)]


@pytest.mark.parametrize(("node_user", "user"), [("admin", "admin"), ("", None)])
def test_another_machine_can_log_in_at_once(ann: Run, ben: Run, store: Store, node_user: str, user: str | None) -> None:
    private_dir(ann.paths.root)
    fleet.save(ann.paths, nodes(node_user))
    ann.shared.push()
    ben.shared.pull()
    assert fleet.load(ben.paths) == nodes(node_user)
    expected = user or ben.shared._spec.user("virginia")
    texts = [file.read_text() for file in (ben.paths.root / "ssh").rglob("*") if file.is_file()]
    assert any(f"User {expected}" in text for text in texts)
    assert ssh_pins.load_pins(ben.paths) == {}


def test_a_cluster_that_somebody_removed_leaves_nothing_of_it_here(ann: Run, ben: Run, store: Store) -> None:
    ann.note("train-0")
    (private_dir(ann.paths.root / "sites" / "here") / "provider").write_text("aws\n")
    ann.shared.push()
    ben.shared.pull()
    (ben.paths.root / "sites" / "here" / "main.tf").write_text("")
    (ben.paths.root / "own").write_text("")
    store.blobs.clear()
    ben.shared.pull()
    assert not (ben.paths.root / "sites").exists() and not (ben.paths.root / RECORD).exists()
    assert not (ben.paths.root / "state.json").exists() and (ben.paths.root / "own").exists()
    ben.shared.pull()


def test_a_cluster_that_was_never_shared_removes_nothing_here(ann: Run, store: Store) -> None:
    ann.note("train-0")
    ann.shared.pull()
    assert ann.noted() == {"train-0"}


def test_a_file_that_is_shared_still_stays_and_one_that_is_not_goes(ann: Run, ben: Run, store: Store) -> None:
    ann.note("train-0")
    (ann.paths.root / "baseline.json").write_text("{}")
    ann.shared.push()
    ben.shared.pull()
    (ann.paths.root / "baseline.json").unlink()
    ann.note("train-1")
    ann.shared.push()
    ben.shared.pull()
    assert ben.noted() == {"train-0", "train-1"} and not (ben.paths.root / "baseline.json").exists()


def test_a_lock_is_written_for_everybody_where_there_is_none(ann: Run, ben: Run, store: Store) -> None:
    text = "# a lock\n"
    private_dir(ann.paths.root)
    ann.note("train-0")
    ann.paths.user_lock.write_text(text)
    ann.shared.push()
    assert content(store)["files"][LOCK] == text


def test_a_push_whose_answer_was_lost_is_known_again_and_then_forgotten(ann: Run, store: Store) -> None:
    ann.note("train-0")
    store.lose_answer("write", FLEET, ConnectionError("lost"))
    with pytest.raises(ConnectionError):
        ann.shared.push()
    assert len(ann.shared._sent()) == 1
    ann.shared.pull()
    assert (ann.shared._known(), ann.shared._sent()) == (store.blobs[FLEET][1], [])


def test_only_the_latest_pushes_without_an_answer_are_kept(ann: Run) -> None:
    ann.shared._remember(None, [str(number) for number in range(30)])
    assert ann.shared._sent() == [str(number) for number in range(10, 30)]


@pytest.mark.parametrize(
    "record", ["[]", "{", '{"where": "s3://other", "tag": "t", "sent": ["x"]}', '{"tag": "t"}', "7"]
)
def test_a_record_of_another_place_or_a_damaged_one_is_none(ann: Run, record: str) -> None:
    (private_dir(ann.paths.root) / RECORD).write_text(record)
    assert (ann.shared._known(), ann.shared._sent()) == (None, [])


@pytest.mark.parametrize(("tag", "sent"), [(7, 7), (None, None), ("t", {})])
def test_a_record_with_values_of_other_types_knows_nothing_of_them(ann: Run, tag: object, sent: object) -> None:
    record = {"where": Store.where, "tag": tag, "sent": sent}
    (private_dir(ann.paths.root) / RECORD).write_text(json.dumps(record))
    assert ann.shared._known() == (tag if isinstance(tag, str) else None)
    assert ann.shared._sent() == []


def test_an_object_that_disappears_after_a_conflict_is_of_another_run(ann: Run, store: Store) -> None:
    ann.note("train-0")
    store.fail("write", FLEET, Conflict("changed"))
    with pytest.raises(LockedError, match="was changed by another run meanwhile"):
        ann.shared.share()


def test_everything_of_the_cluster_is_removed_but_its_holder(ann: Run, store: Store) -> None:
    store.blobs |= {name: (b"", name) for name in ("holder.json", "here.tfstate", FLEET)}
    ann.shared.remove()
    assert list(store.blobs) == ["holder.json"]


# damage


def packed(**document: Any) -> bytes:
    return gzip.compress(json.dumps(document).encode(), mtime=0)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"no gzip", "is damaged"),
        (packed(format=1, files={})[:-4], "is damaged: it is cut off"),
        (gzip.compress(b"{", mtime=0), "is damaged"),
        (packed(format=1), "is damaged"),
        (packed(files={}), "is damaged"),
        (packed(format=1, files=7), "is damaged"),
        (packed(format=2, files={}), "has format 2, not 1"),
        (packed(format=1, files={"../x": ""}), "which is never shared"),
        (packed(format=1, files={"nodes.json": 7}), "which is never shared"),
        (packed(format=1, files={"id": "x"}), "is not a cluster's identity"),
        (packed(format=1, files={"nodes.json": "{"}), "is damaged"),
        (packed(format=1, files={"nodes.json": "[7]"}), "is damaged"),
        (packed(format=1, files={"inventory.yml": "{"}), "is damaged"),
    ],
)
def test_a_damaged_object_changes_nothing_here(ann: Run, store: Store, blob: bytes, message: str) -> None:
    store.blobs[FLEET] = blob, "tag"
    with pytest.raises(GpuprovError, match=message):
        ann.shared.pull()
    assert not (ann.paths.root / "nodes.json").exists()


def test_an_object_that_unpacks_to_more_than_the_limit_is_damaged(
    ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = packed(format=1, files={"measures.jsonl": "x" * 1000})
    store.blobs[FLEET] = blob, "tag"
    size = len(gzip.decompress(blob))
    monkeypatch.setattr(shared_files, "LIMIT", size - 1)
    with pytest.raises(GpuprovError, match="it unpacks to more than"):
        ann.shared.pull()
    monkeypatch.setattr(shared_files, "LIMIT", size)
    ann.shared.pull()
    assert (ann.paths.root / "measures.jsonl").exists()


def test_files_that_are_shared_are_for_this_user_alone(ann: Run, ben: Run, store: Store) -> None:
    ann.note("train-0")
    shared(ann)
    ben.shared.pull()
    assert Path(ben.paths.root / "state.json").stat().st_mode & 0o777 == 0o600
    assert ben.paths.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["nodes.json/x", "sites/here", "sites", "runs/1", "locks"])
def test_a_part_of_a_name_or_more_than_it_is_not_shared(name: str) -> None:
    assert not is_shared(name)


@pytest.mark.parametrize("name", [LOCK, "locks/aaaaaaaaaaaa.lock"])
def test_a_damaged_lock_changes_nothing_here(ann: Run, store: Store, name: str) -> None:
    store.blobs[FLEET] = packed(format=1, files={name: "{", "nodes.json": "[]"}), "tag"
    with pytest.raises(GpuprovError):
        ann.shared.pull()
    assert not (ann.paths.root / "nodes.json").exists() and not ann.paths.user_lock.exists()


def test_an_identity_is_taken_over(ann: Run, store: Store) -> None:
    store.blobs[FLEET] = packed(format=1, files={"id": "aaaaaaaaaaaa"}), "tag"
    ann.shared.pull()
    assert (ann.paths.root / "id").read_text() == "aaaaaaaaaaaa"


# opened by a command


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[BaseException]:
    """What opening the place of the state raises."""
    errors: list[BaseException] = []

    def remote_of(_: object) -> Store:
        if errors:
            raise errors[0]
        return store

    monkeypatch.setattr(shared_files, "remote_of", remote_of)
    return errors


def opened(run: Run, *, offline: bool = False) -> shared_files.SharedFiles | None:
    spec = run.shared._spec
    shared = spec.model_copy(update={"state": spec.state.model_copy(update={"backend": "s3"})})
    return shared_files.of(run.paths.spec, shared, offline=offline)


def test_a_state_of_this_machine_alone_is_not_shared(ann: Run, remote: list[BaseException]) -> None:
    assert shared_files.of(ann.paths.spec, ann.shared._spec, offline=False) is None


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("offline", [True, False])
def test_a_command_reads_what_is_shared_unless_it_is_offline(
    ann: Run, ben: Run, remote: list[BaseException], exists: bool, offline: bool
) -> None:
    ann.note("train-0")
    ann.shared.push()
    if exists:
        private_dir(ben.paths.root)
    assert opened(ben, offline=offline) is not None
    assert ben.noted() == (set() if offline else {"train-0"})
    if exists and not offline:
        assert ben.paths.run_lock.stat().st_mode & 0o777 == 0o600


def test_a_command_beside_a_run_of_this_machine_reads_nothing(ann: Run, ben: Run, remote: list[BaseException]) -> None:
    ann.note("train-0")
    ann.shared.push()
    private_dir(ben.paths.root)
    with FileLock(ben.paths.run_lock):
        assert opened(ben) is not None
    assert ben.noted() == set()


def test_a_place_that_does_not_answer_or_is_wrong_is_an_error_of_its_kind(
    ann: Run, remote: list[BaseException]
) -> None:
    remote.append(ProviderError("access denied"))
    with pytest.raises(ProviderError, match="access denied"):
        opened(ann)
    remote[:] = [GpuprovError("no such bucket", where="state.bucket", hint="make it")]
    with pytest.raises(InputError, match="no such bucket"):
        opened(ann)


# held


def test_where_the_place_is_not_made_yet_nothing_is_shared(ann: Run, store: Store) -> None:
    store.there = False
    with ann.shared.held("plan", ann.events, look=True):
        ann.note("train-0")
    assert store.blobs == {}


def test_a_run_that_leaves_nothing_shares_nothing(ann: Run, store: Store) -> None:
    with ann.held():
        assert list(store.blobs) == ["holder.json"]
    assert store.blobs == {}


def test_a_disk_that_fails_hides_no_error_of_the_run(ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ann.shared, "push", full)
    with pytest.raises(ProviderError, match="no capacity"), ann.held():
        ann.note("train-0")
        raise ProviderError("no capacity")
    assert len(ann.seen) == 1 and "No space left on device" in ann.seen[0]


def test_what_is_found_of_the_place_is_kept(ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ann.shared.findings == ()
    finding = Finding("warning", "state", "it is public", "")
    monkeypatch.setattr(store, "prepare", lambda *, make: [finding])
    with ann.held():
        assert ann.shared.findings == (finding,)
