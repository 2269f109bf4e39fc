"""The lease of a shared cluster (docs/design/lease.md): which loss of an answer, network or machine leads to what."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common import stored
from provisioner.common.errors import GpuprovError, LockedError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.common.preflight import Finding
from provisioner.lifecycle.sharing import lease, shared_files
from provisioner.lifecycle.sharing.lease import HOLDER, Holder, Lease, current
from provisioner.lifecycle.sharing.shared_files import FLEET, SharedFiles
from provisioner.machines.providers.state import Blob, Conflict
from provisioner.rundir import node_state
from provisioner.transport import process
from tests.unit.transport.test_process import ASKED

FILE = """\
name: vision
sites: {virginia: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 1}}
access: {ssh_key: KEY, allow: [203.0.113.0/24]}
"""


class Store:
    """A place for state in memory, every write of which has a new tag.

    `failures`: (call, blob) → what the next calls raise; `answers`: the same, but the call is done first, as where an
    answer is lost. `writes`: a semaphore released by every call of `write`, done or not.
    """

    where, there = "s3://bucket/vision", True

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.ages: dict[str, float] = {}
        self.failures: dict[tuple[str, str], list[BaseException]] = {}
        self.answers: dict[tuple[str, str], list[BaseException]] = {}
        self.writes = threading.Semaphore(0)
        self._tags, self._guard = (f"tag-{number}" for number in itertools.count()), threading.Lock()

    def fail(self, call: str, name: str, *errors: BaseException) -> None:
        self.failures.setdefault((call, name), []).extend(errors)

    def lose_answer(self, call: str, name: str, *errors: BaseException) -> None:
        self.answers.setdefault((call, name), []).extend(errors)

    def renewals(self, number: int) -> None:
        """Wait for this many further calls of `write`."""
        while self.writes.acquire(blocking=False):
            pass
        for _ in range(number):
            assert self.writes.acquire(timeout=60)

    def _call(self, call: str, name: str, action: Callable[[], Any]) -> Any:
        with self._guard:
            if planned := self.failures.get((call, name)):
                raise planned.pop(0)
            result = action()
            if planned := self.answers.get((call, name)):
                raise planned.pop(0)
            return result

    def read(self, name: str, known: str | None = None) -> Blob | None:
        def action() -> Blob | None:
            if name not in self.blobs:
                return None
            content, tag = self.blobs[name]
            return Blob(b"" if tag == known else content, tag, self.ages.get(name, 0.0))

        return self._call("read", name, action)  # type: ignore[no-any-return]

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        def action() -> str:
            self._compare(name, previous_tag)
            self.blobs[name] = content, next(self._tags)
            return self.blobs[name][1]

        try:
            return self._call("write", name, action)  # type: ignore[no-any-return]
        finally:
            self.writes.release()

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        def action() -> None:
            if previous_tag is not None:
                self._compare(name, previous_tag)
            self.blobs.pop(name, None)

        self._call("remove", name, action)

    def _compare(self, name: str, previous_tag: str | None) -> None:
        if (self.blobs[name][1] if name in self.blobs else None) != previous_tag:
            raise Conflict(name)

    def names(self) -> list[str]:
        return list(self.blobs)

    def prepare(self, *, make: bool = True) -> list[Finding]:
        return []

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        raise NotImplementedError


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.monotonic_s = 1000.0

    def __call__(self) -> float:
        return self.monotonic_s


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(lease, "monotonic", fake, raising=False)
    return fake


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.01)
    monkeypatch.setattr(lease, "WATCH_S", 0.01, raising=False)


class Run:
    """One run directory with its shared files; `seen`: messages of its events."""

    def __init__(self, folder: Path, store: Store) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "key").touch()
        (folder / "key.pub").write_text("ssh-ed25519 AAAA x\n")
        file = folder / "cluster.yaml"
        file.write_text(FILE.replace("KEY", str(folder / "key")))
        self.paths = ClusterPaths(file, "vision", sandbox=False)
        self.shared = SharedFiles(self.paths, spec.load(file), store)  # type: ignore[arg-type]
        self.seen: list[str] = []
        self.warned = threading.Event()
        self.events = Events(self._note)

    def _note(self, event: Event) -> None:
        self.seen.append(event.message)
        self.warned.set()

    def held(self, command: str = "up") -> Any:
        return self.shared.held(command, self.events)

    def note(self, node: str) -> None:
        private_dir(self.paths.root)
        node_state.note(self.paths, nodes={node: {"stage": "made", "ok": None}})

    def noted(self) -> set[str]:
        return set(node_state.load(self.paths).nodes)


@pytest.fixture
def ann(tmp_path: Path, store: Store) -> Run:
    return Run(tmp_path / "ann", store)


@pytest.fixture
def ben(tmp_path: Path, store: Store) -> Run:
    return Run(tmp_path / "ben", store)


def foreign(store: Store, name: str = HOLDER) -> None:
    """Another run writes its holder, whatever was there."""
    holder = Holder("down", "ben", "elsewhere", "/home/ben", "another", 7, 0.0)
    store.blobs[name] = json.dumps(asdict(holder)).encode(), "foreign"


def unreachable() -> ProviderError:
    return ProviderError("the store does not answer")


LOST_ANSWERS = pytest.mark.parametrize(
    "answer", [Conflict("its own repetition"), unreachable()], ids=["412", "silence"]
)


@LOST_ANSWERS
def test_a_renewal_whose_answer_was_lost_keeps_the_lease(
    answer: BaseException, ann: Run, store: Store, fast: None
) -> None:
    with ann.held():
        ann.note("train-0")
        store.lose_answer("write", HOLDER, answer)
        store.renewals(4)
    assert set(store.blobs) == {FLEET}
    assert not [message for message in ann.seen if "took the lease" in message]


@LOST_ANSWERS
def test_a_lease_whose_first_answer_was_lost_is_held(answer: BaseException, ann: Run, store: Store) -> None:
    store.lose_answer("write", HOLDER, answer)
    with ann.held():
        assert HOLDER in store.blobs
    assert store.blobs == {}


@LOST_ANSWERS
def test_a_lease_of_a_dead_run_here_is_taken_over_though_the_answer_is_lost(
    answer: BaseException, ann: Run, store: Store
) -> None:
    private_dir(ann.paths.root)
    dead = Holder("up", "ann", socket.gethostname(), str(ann.paths.root), lease.token(ann.paths.root), 7, 0.0)
    store.blobs[HOLDER] = json.dumps(asdict(dead)).encode(), "dead"
    store.fail("write", HOLDER, Conflict("the dead run's"))
    store.lose_answer("write", HOLDER, answer)
    with ann.held():
        state = current(store)  # type: ignore[arg-type]
        assert state is not None and state.holder is not None and state.holder.pid == os.getpid()
    assert store.blobs == {}


@LOST_ANSWERS
def test_a_removal_whose_answer_was_lost_is_done(answer: BaseException, ann: Run, store: Store) -> None:
    store.lose_answer("remove", HOLDER, answer)
    with ann.held():
        ann.note("train-0")
    assert set(store.blobs) == {FLEET}


def test_a_removal_that_fails_costs_the_run_nothing_and_is_reported(ann: Run, store: Store) -> None:
    store.fail("remove", HOLDER, unreachable())
    with ann.held():
        ann.note("train-0")
    assert set(store.blobs) == {FLEET, HOLDER}
    assert "holder.json could not be removed" in ann.seen[-1] and "gpuprov unlock" in ann.seen[-1]


def test_a_removal_that_fails_hides_no_error_of_the_run(ann: Run, store: Store) -> None:
    store.fail("remove", HOLDER, unreachable())
    with pytest.raises(ProviderError, match="no capacity"), ann.held():
        raise ProviderError("no capacity for train")


def test_a_holder_that_comes_and_goes_is_not_asked_for_without_end(ann: Run, store: Store) -> None:
    store.fail("write", HOLDER, *[Conflict("just there")] * 10_000)
    with pytest.raises(LockedError, match="changes too fast"), ann.held():
        pytest.fail("it was never written")


def test_the_error_of_the_run_goes_out_though_its_lease_is_lost(ann: Run, store: Store, fast: None) -> None:
    with pytest.raises(ProviderError, match="no capacity") as caught, ann.held():
        foreign(store)
        assert ann.warned.wait(60)
        raise ProviderError("no capacity for train")
    assert caught.value.exit_code == 3
    assert any("took the lease" in message for message in ann.seen)


def test_the_error_of_the_run_goes_out_though_its_results_cannot_be_shared(ann: Run, store: Store) -> None:
    with pytest.raises(ProviderError, match="no capacity"), ann.held():
        ann.note("train-0")
        store.fail("write", FLEET, unreachable())
        raise ProviderError("no capacity for train")
    assert ann.seen == ["the results of this run are not shared: the store does not answer"]


def test_a_run_whose_lease_is_lost_shares_nothing_and_leaves_the_other_holder(
    ann: Run, store: Store, fast: None
) -> None:
    with pytest.raises(LockedError, match="took the lease"), ann.held():
        ann.note("train-0")
        foreign(store)
        assert ann.warned.wait(60)
        with pytest.raises(LockedError, match="took the lease"):
            ann.shared.share()
        with pytest.raises(LockedError, match="took the lease"):
            ann.shared.remove()
    assert {name: tag for name, (_, tag) in store.blobs.items()} == {HOLDER: "foreign"}


def test_a_run_whose_lease_is_lost_stops_its_children_and_ends_locked(
    ann: Run, store: Store, fast: None, tmp_path: Path
) -> None:
    """As Ctrl-C does: Terraform is asked, and writes down what it has made."""
    note = tmp_path / "note"

    def read(_: str) -> None:
        foreign(store)

    with pytest.raises(LockedError, match="took the lease"), ann.held():
        ann.note("train-0")
        argv = [sys.executable, "-c", ASKED, str(note)]
        process.follow(argv, read, cwd=tmp_path, grace_s=60, stopping=lambda: None)
    assert note.read_text() == f"{signal.SIGINT.name}\n"
    assert FLEET not in store.blobs
    assert process.follow(["true"], print, cwd=tmp_path, grace_s=1, stopping=lambda: None).status == 0


def test_the_beat_survives_a_subscriber_that_raises(ann: Run, store: Store, fast: None) -> None:
    """Events on a full disk."""

    def full(event: Event) -> None:
        raise OSError(28, "No space left on device")

    ann.events.subscribe(full)
    with ann.held():
        store.fail("write", HOLDER, unreachable(), unreachable())
        store.renewals(5)
    assert store.blobs == {}


def test_an_unexpected_error_of_the_store_is_a_renewal_that_failed(ann: Run, store: Store, fast: None) -> None:
    with ann.held():
        store.fail("write", HOLDER, KeyError("ETag"))
        store.renewals(3)
    assert any("was not renewed: KeyError" in message for message in ann.seen)
    assert store.blobs == {}


def test_a_lease_whose_thread_died_is_lost(ann: Run, store: Store, fast: None) -> None:
    with pytest.raises(LockedError, match="not renewed any more"), ann.held():
        store.fail("write", HOLDER, SystemExit())
        assert ann.warned.wait(60)


@pytest.mark.parametrize(("seconds", "lost"), [(119.0, False), (121.0, True)])
def test_a_lease_that_was_not_renewed_for_two_minutes_is_lost(
    seconds: float, lost: bool, ann: Run, store: Store, clock: Clock
) -> None:
    """The network of this machine is cut. No thread has to run for it: the end of the run asks."""
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        clock.monotonic_s += seconds
        if lost:
            with pytest.raises(LockedError, match="not renewed for 120 seconds"):
                own_lease.refuse_lost()
        else:
            own_lease.refuse_lost()
    assert store.blobs == {}  # nobody took it: it is removed in any case


def test_a_renewal_that_hangs_does_not_keep_the_run_from_stopping(
    ann: Run, store: Store, clock: Clock, fast: None
) -> None:
    hanging, answer, real = threading.Event(), threading.Event(), store.write

    def hang(*arguments: Any) -> str:
        hanging.set()
        assert answer.wait(60)
        return real(*arguments)

    lost = threading.Event()
    with Lease(store, private_dir(ann.paths.root), "up", ann.events, lambda _: lost.set()) as own_lease:  # type: ignore[arg-type]
        store.write = hang  # type: ignore[method-assign]
        assert hanging.wait(60)
        clock.monotonic_s += 121
        assert lost.wait(60)
        assert own_lease.lost
        answer.set()


def test_a_renewal_counts_from_its_write_and_not_from_its_reading(
    ann: Run, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer was lost, and the store says that the write was 100 s ago."""
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        clock.monotonic_s += 100
        store.ages[HOLDER] = 100.0
        store.lose_answer("write", HOLDER, Conflict("its own repetition"))
        own_lease._renew()
        own_lease.refuse_lost()
        clock.monotonic_s += 21
        with pytest.raises(LockedError, match="not renewed"):
            own_lease.refuse_lost()


@pytest.mark.parametrize(("age_s", "dead"), [(31.0, False), (199.0, False), (201.0, True)])
def test_a_holder_is_dead_after_200_seconds_and_unlock_waits_for_that(
    age_s: float, dead: bool, ben: Run, store: Store
) -> None:
    foreign(store)
    store.ages[HOLDER] = age_s
    with pytest.raises(LockedError, match="of ben on elsewhere") as caught, ben.held():
        pytest.fail("nobody takes a lease over but by unlock")
    assert ("unlock" in caught.value.hint) == dead
    if dead:
        assert ben.shared.clear() == [HOLDER]
        return
    with pytest.raises(LockedError, match="in the last 200 seconds"):
        ben.shared.clear()
    assert HOLDER in store.blobs


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"token": "x"}', b"\xff"], ids=repr)
def test_a_holder_that_cannot_be_read_is_another_run(content: bytes, ann: Run, store: Store) -> None:
    store.blobs[HOLDER] = content, "unreadable"
    with pytest.raises(LockedError, match=r"holder\.json cannot be read"), ann.held():
        pytest.fail("it may be of a newer gpuprov")
    with pytest.raises(LockedError, match="in the last 200 seconds"):
        ann.shared.clear()
    assert store.blobs == {HOLDER: (content, "unreadable")}
    store.ages[HOLDER] = 201.0
    assert ann.shared.clear() == [HOLDER]


def left_by(run: Run, store: Store, root: Path) -> None:
    """What a killed run in this directory leaves."""
    holder = Holder("up", "ann", socket.gethostname(), str(root), lease.token(root), 7, 0.0)
    store.blobs[HOLDER] = json.dumps(asdict(holder)).encode(), "left"


def test_the_next_run_of_the_same_directory_follows_a_killed_one(ann: Run, store: Store) -> None:
    left_by(ann, store, private_dir(ann.paths.root))
    assert ann.shared.clear() == [HOLDER]
    left_by(ann, store, ann.paths.root)
    with ann.held():
        pass
    assert store.blobs == {}


def test_a_copy_of_the_run_directory_takes_no_lease_of_a_living_run(ann: Run, store: Store, tmp_path: Path) -> None:
    """`cp -r`, a restored backup, a folder on a network drive without locks."""
    private_dir(ann.paths.root)
    with ann.held():
        shutil.copytree(tmp_path / "ann", tmp_path / "copy")
        copy = Run(tmp_path / "copy", store)
        with pytest.raises(LockedError, match="another run is active"), copy.held("down"):
            pytest.fail("both are active")
        with pytest.raises(LockedError, match="in the last 200 seconds"):
            copy.shared.clear()
    assert store.blobs == {}


@pytest.mark.parametrize("part", ["machine id", "hostname", "inode"])
def test_the_same_path_elsewhere_is_another_owner(
    part: str, ann: Run, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "MACHINE_ID", tmp_path / "machine-id", raising=False)
    (tmp_path / "machine-id").write_text("a" * 32 + "\n")
    left_by(ann, store, private_dir(ann.paths.root))
    if part == "machine id":
        (tmp_path / "machine-id").write_text("b" * 32 + "\n")
    elif part == "hostname":
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    else:
        shutil.copytree(ann.paths.root, tmp_path / "backup")
        shutil.rmtree(ann.paths.root)
        (tmp_path / "backup").rename(ann.paths.root)
    with pytest.raises(LockedError, match="another run is active"), ann.held():
        pytest.fail("both are active")
    with pytest.raises(LockedError, match="in the last 200 seconds"):
        ann.shared.clear()


def test_a_machine_without_an_id_goes_by_its_hostname(
    ann: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "MACHINE_ID", tmp_path / "none")
    first = lease.token(ann.paths.root)
    assert lease.token(ann.paths.root) == first
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert lease.token(ann.paths.root) != first


def test_the_machine_id_leaves_the_machine_as_part_of_a_hash_only(ann: Run, store: Store) -> None:
    with ann.held():
        content = store.blobs[HOLDER][0].decode()
    assert not lease.MACHINE_ID.exists() or lease.MACHINE_ID.read_text().strip() not in content


def test_a_folder_whose_name_is_not_utf8_has_a_readable_holder(tmp_path: Path, store: Store) -> None:
    root = private_dir(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    with Lease(store, root, "up", Events()):  # type: ignore[arg-type]
        state = current(store)  # type: ignore[arg-type]
        assert state is not None and state.holder is not None and state.holder.folder.endswith("\\udcff")


@LOST_ANSWERS
def test_shared_files_whose_answer_was_lost_are_shared(answer: BaseException, ann: Run, ben: Run, store: Store) -> None:
    """At the end of the run nothing has changed, or more is known: the second push is over the first one."""
    silent = isinstance(answer, ProviderError)
    with ann.held():
        ann.note("train-0")
        store.lose_answer("write", FLEET, answer)
        if silent:
            with pytest.raises(ProviderError):
                ann.shared.share()
        else:
            ann.shared.share()
        ann.note("train-1")
    with ben.held("status"):
        assert ben.noted() == {"train-0", "train-1"}


def test_notes_after_a_push_whose_answer_was_lost_survive_the_next_pull(ann: Run, store: Store) -> None:
    """The store has an older file of this very directory: it may not overwrite the newer one."""
    with pytest.raises(ProviderError), ann.held():
        ann.note("train-0")
        store.lose_answer("write", FLEET, unreachable())
        try:
            ann.shared.share()
        finally:
            ann.note("train-1")
            store.fail("write", FLEET, unreachable())
    ann.shared.pull()
    assert ann.noted() == {"train-0", "train-1"}
    with ann.held():
        pass
    assert b"train-1" in gzip.decompress(store.blobs[FLEET][0])


def test_shared_files_of_another_run_are_not_overwritten_after_a_lost_answer(ann: Run, ben: Run, store: Store) -> None:
    with ann.held():
        ann.note("train-0")
    ben.shared.pull()
    ben.note("train-7")
    with pytest.raises(LockedError, match="changed by another run"), ann.held():
        ann.note("train-1")
        store.lose_answer("write", FLEET, unreachable())
        with pytest.raises(ProviderError):
            ann.shared.share()
        ben.shared.pull()
        ben.note("train-7")
        ben.shared.share()
    ann.shared.pull()
    assert ann.noted() == {"train-0", "train-1", "train-7"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "LIMIT", 20_000)


def with_report(run: Run, size: int) -> None:
    folder = private_dir(run.paths.runs / "1")
    (folder / "report.json").write_text(json.dumps({"nodes": [], "level": "x" * size}))
    node_state.note(run.paths, report="runs/1/report.html")


def names_in(store: Store) -> set[str]:
    return set(json.loads(gzip.decompress(store.blobs[FLEET][0]))["files"])


@pytest.mark.parametrize(
    ("measures", "report", "left_out"),
    [(100, 100, set()), (30_000, 100, {"measures.jsonl"}), (15_000, 15_000, {"measures.jsonl"}),
     (100, 30_000, {"measures.jsonl", "runs/1/report.json"})],
    ids=["room for all", "measures", "both are too much", "report"],
)  # fmt: skip
def test_the_least_important_files_are_left_out_where_all_are_too_large(
    measures: int, report: int, left_out: set[str], ann: Run, ben: Run, store: Store, small: None
) -> None:
    with ann.held():
        ann.note("train-0")
        ann.paths.measures.write_text("m" * measures)
        with_report(ann, report)
        ann.shared.share()
    all_files = {"state.json", "measures.jsonl", "runs/1/report.json"}
    assert names_in(store) == all_files - left_out
    warned = [message for message in ann.seen if "not shared, because" in message]
    assert len(warned) == (1 if left_out else 0)
    assert all(name in warned[0] for name in left_out)
    ben.shared.pull()
    assert ben.noted() == {"train-0"}
    assert ann.paths.measures.exists()


def test_what_is_left_out_is_not_removed_from_other_machines(ann: Run, ben: Run, store: Store, small: None) -> None:
    with ann.held():
        ann.note("train-0")
        ann.paths.measures.write_text("m" * 100)
    ben.shared.pull()
    assert ben.paths.measures.exists()
    with ann.held():
        ann.paths.measures.write_text("m" * 30_000)
    ben.shared.pull()
    assert ben.paths.measures.read_text() == "m" * 100


def test_files_that_are_too_large_are_refused_before_anything_is_written(ann: Run, store: Store, small: None) -> None:
    """What nobody could read again, `down` included."""
    with ann.held():
        ann.note("train-0")
    former = dict(store.blobs)
    with pytest.raises(GpuprovError, match=r"larger than 0 MiB; the largest is state\.json") as caught, ann.held():
        node_state.note(ann.paths, other="x" * 30_000)
    assert store.blobs == former
    assert caught.value.hint
    ann.shared.pull()
    assert len(stored.load(ann.paths.root / node_state.FILE)["other"]) == 30_000, "the local files stay"


def test_what_may_be_pushed_is_what_can_be_pulled() -> None:
    """Both sides go by LIMIT; an object of the store may be as large (providers/state_folder.py)."""
    from provisioner.machines.providers.state_folder import LIMIT

    assert shared_files.LIMIT == LIMIT


def test_a_holder_has_no_field_that_a_renewal_changes() -> None:
    """A lost answer is recognised by the whole holder."""
    fields = {field.name for field in dataclasses.fields(Holder)}
    assert fields == {"command", "person", "machine", "folder", "token", "pid", "since"}
