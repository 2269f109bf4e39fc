"""The lease: how its numbers fit together, what a holder.json may hold, and what is left when a run ends."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common import ownership
from provisioner.common.errors import LockedError, ProviderError
from provisioner.common.events import Event
from provisioner.common.paths import private_dir
from provisioner.lifecycle.sharing import lease
from provisioner.lifecycle.sharing.lease import HOLDER, Holder, Lease, LeaseState, clear, current
from provisioner.machines.providers.state import Conflict
from provisioner.machines.terraform.workspace import STOP_GRACE_S
from tests.unit.lifecycle.sharing.test_lease import Run, Store, ann, fast, foreign, store, unreachable

__all__ = ["ann", "fast", "store"]

HOLD = Holder("up", "ann", "laptop", "/home/ann/vision", "token", 7, 5 * 3600.0)


def test_a_holder_reads_as_a_sentence() -> None:
    assert str(HOLD) == "`gpuprov up` of ann on laptop, process 7, since 05:00:00 UTC"


def test_a_run_that_lost_its_lease_has_stopped_before_others_may_take_over() -> None:
    assert lease.LOST_S == 4 * lease.BEAT_S
    killed_s = 10  # process.stop waits so long for a child that it has killed
    assert lease.LOST_S + STOP_GRACE_S + killed_s + 10 <= lease.DEAD_S


def test_a_holder_is_dead_when_it_is_older_than_that() -> None:
    ages = (lease.DEAD_S - 1, lease.DEAD_S, lease.DEAD_S + 1)
    assert [LeaseState(None, "", age_s).dead for age_s in ages] == [False, False, True]


def test_a_lease_that_is_as_old_as_that_is_still_held(ann: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(lease, "monotonic", lambda: seconds[0])
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        seconds[0] += lease.LOST_S
        own_lease.refuse_lost()
        seconds[0] += 1
        with pytest.raises(LockedError, match="not renewed"):
            own_lease.refuse_lost()
        assert own_lease.lost


def test_no_thread_of_the_lease_keeps_a_process_alive(ann: Run) -> None:
    with ann.held():
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("lease")]
        assert [(thread.name, thread.daemon) for thread in threads] == [("lease", True), ("lease-watch", True)]
    assert not any(thread.is_alive() for thread in threads)


def test_a_lease_is_asked_for_five_times(ann: Run, store: Store) -> None:
    store.fail("write", HOLDER, *[Conflict("just there")] * 9)
    with pytest.raises(LockedError, match="changes too fast"), ann.held():
        pytest.fail("it was never written")
    assert len(store.failures["write", HOLDER]) == 4


def test_a_loss_is_reported_once_as_a_warning_of_the_run(ann: Run, store: Store, fast: None) -> None:
    events: list[Event] = []
    lost: list[LockedError] = []
    ann.events.subscribe(events.append)
    with Lease(store, private_dir(ann.paths.root), "up", ann.events, lost.append) as own_lease:  # type: ignore[arg-type]
        foreign(store)
        assert ann.warned.wait(60)
        own_lease._lose("again")
    assert [(event.stage, event.kind) for event in events] == [("run", "warning")]
    assert lost == [own_lease.error]
    assert store.blobs[HOLDER][1] == "foreign"


def test_a_holder_that_was_renewed_without_an_answer_is_removed_at_the_end(ann: Run, store: Store) -> None:
    """Neither the renewal nor the question after it was answered: the tag that this run knows is an old one."""
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        store.lose_answer("write", HOLDER, unreachable())
        store.fail("read", HOLDER, unreachable())
        own_lease._renew()
    assert store.blobs == {}
    assert ann.seen == ["the lease of s3://bucket/vision was not renewed: the store does not answer"]


def test_a_holder_of_another_run_is_not_removed_at_the_end(ann: Run, store: Store) -> None:
    with Lease(store, private_dir(ann.paths.root), "up", ann.events):  # type: ignore[arg-type]
        foreign(store)
    assert store.blobs[HOLDER][1] == "foreign"
    assert ann.seen == []


def test_a_renewal_that_was_not_done_is_none(ann: Run, store: Store) -> None:
    """The store answers again, and holder.json is the one before: nothing was renewed."""
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        previous = own_lease._renewed
        store.fail("write", HOLDER, unreachable())
        own_lease._renew()
        assert own_lease._renewed == previous
    assert len(ann.seen) == 1


def written(store: Store, **changed: Any) -> LeaseState:
    store.blobs[HOLDER] = json.dumps({**asdict(HOLD), **changed}).encode(), "tag"
    state = current(store)  # type: ignore[arg-type]
    assert state is not None
    return state


@pytest.mark.parametrize(
    "changed",
    [{}, {"pid": 0}, {"pid": (1 << 32) - 1}, {"since": 0}, {"since": 0.5}, {"since": 1e11 - 1}, {"person": "x" * 4096}],
)
def test_a_holder_of_any_machine_is_read(store: Store, changed: dict[str, Any]) -> None:
    assert written(store, **changed).holder == replace(HOLD, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"pid": True}, {"pid": 7.0}, {"pid": "7"}, {"pid": -1}, {"pid": 1 << 32}, {"since": "now"}, {"since": -0.5},
        {"since": 1e11}, {"since": None}, {"person": "x" * 4097}, {"command": None}, {"machine": 7}, {"folder": []},
        {"token": {}}, {"more": "x"},
    ],
)  # fmt: skip
def test_a_holder_that_another_program_wrote_is_not_readable(store: Store, changed: dict[str, Any]) -> None:
    state = written(store, **changed)
    assert (state.holder, state.tag) == (None, "tag")


class MarkedStore(Store):
    """A store whose writes leave marks, and one that holds locks of Terraform."""

    def __init__(self) -> None:
        super().__init__()
        self.unlocked: list[str] = []
        self.blobs["here.tflock"] = b"", "a"
        self.blobs["here.tfstate"] = b"", "b"

    def unlock(self, names: list[str]) -> list[str]:
        self.unlocked += names
        return ["mark"]


def test_unlock_removes_the_holder_marks_and_locks_of_terraform(tmp_path: Path) -> None:
    store = MarkedStore()
    foreign(store)
    store.ages[HOLDER] = lease.DEAD_S + 1
    assert clear(store, tmp_path) == [HOLDER, "mark", "here.tflock"]  # type: ignore[arg-type]
    assert (store.unlocked, set(store.blobs)) == ([HOLDER], {"here.tfstate"})


def test_unlock_of_a_run_of_this_directory_waits_for_nothing(tmp_path: Path, store: Store) -> None:
    store.blobs[HOLDER] = json.dumps(asdict(replace(HOLD, token=lease.token(tmp_path)))).encode(), "own"
    assert clear(store, tmp_path) == [HOLDER]  # type: ignore[arg-type]


def test_unlock_of_a_holder_that_is_renewed_meanwhile_is_refused(tmp_path: Path, store: Store) -> None:
    foreign(store)
    store.ages[HOLDER] = lease.DEAD_S + 1
    store.fail("remove", HOLDER, Conflict("renewed"))
    with pytest.raises(LockedError, match="another run has just started"):
        clear(store, tmp_path)  # type: ignore[arg-type]


def test_a_run_directory_keeps_its_name(tmp_path: Path) -> None:
    first = lease.token(tmp_path)
    name = (tmp_path / lease.FOLDER).read_text()
    assert (len(first), len(name)) == (64, 33)
    assert lease.token(tmp_path) == first
    assert (tmp_path / lease.FOLDER).read_text() == name


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no such user")])
def test_a_person_without_an_account_has_a_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def unknown() -> str:
        raise error

    monkeypatch.setattr(ownership.getpass, "getuser", unknown)
    assert ownership.account_name() == f"uid {os.getuid()}"


def test_a_holder_is_one_line(ann: Run, store: Store) -> None:
    with ann.held():
        text = store.blobs[HOLDER][0].decode()
    assert text.endswith("}\n") and text.count("\n") == 1


def test_an_error_of_the_store_is_reported_in_its_own_words() -> None:
    assert lease._reason(ProviderError("no answer", where="s3", hint="later")) == "no answer"
    assert lease._reason(KeyError("ETag")) == "KeyError: 'ETag'"


def test_a_lease_is_taken_by_a_single_write(ann: Run, store: Store) -> None:
    with ann.held():
        assert store.blobs[HOLDER][1] == "tag-0"


def test_a_run_that_takes_the_lease_of_a_dead_one_first_is_another_run(ann: Run, store: Store) -> None:
    root = private_dir(ann.paths.root)
    store.blobs[HOLDER] = json.dumps(asdict(replace(HOLD, token=lease.token(root)))).encode(), "dead"
    store.fail("write", HOLDER, Conflict("the dead run's"), Conflict("of the run that was faster"))
    with pytest.raises(LockedError, match="another run has just started"), ann.held():
        pytest.fail("somebody else holds it")


def test_a_lease_that_is_lost_is_not_renewed_any_more(ann: Run, store: Store, fast: None) -> None:
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        own_lease._lose("the network was cut")
        own_lease._beater.join(timeout=60)
        own_lease._watcher.join(timeout=60)
        assert not own_lease._beater.is_alive() and not own_lease._watcher.is_alive()


@pytest.mark.parametrize("content", [None, b"\xff\n"])
def test_a_machine_whose_id_cannot_be_read_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    file = tmp_path / "machine-id"
    monkeypatch.setattr(lease, "MACHINE_ID", file)
    if content is not None:
        file.write_bytes(content)
    assert lease._machine_id() == ""


def test_a_holder_that_another_run_takes_while_it_is_removed_is_none_of_this_run(ann: Run, store: Store) -> None:
    store.fail("remove", HOLDER, Conflict("an answer was lost"), Conflict("taken by another run"))
    with ann.held():
        pass
    assert ann.seen == []


def test_a_run_ends_only_after_the_renewal_that_it_has_begun(ann: Run, store: Store, fast: None) -> None:
    """Else that would write a holder which nobody removes."""
    hanging, answer, real = threading.Event(), threading.Event(), store.write

    def hang(*arguments: Any) -> str:
        hanging.set()
        assert answer.wait(60)
        return real(*arguments)

    own_lease = Lease(store, private_dir(ann.paths.root), "up", ann.events).__enter__()  # type: ignore[arg-type]
    store.write = hang  # type: ignore[method-assign]
    assert hanging.wait(60)
    ending = threading.Thread(target=own_lease.__exit__, args=(None, None, None))
    ending.start()
    ending.join(0.2)
    assert ending.is_alive() and HOLDER in store.blobs
    answer.set()
    ending.join(60)
    assert store.blobs == {}


def test_a_renewal_that_fails_beside_the_holder_of_another_run_says_why_it_failed(ann: Run, store: Store) -> None:
    with Lease(store, private_dir(ann.paths.root), "up", ann.events) as own_lease:  # type: ignore[arg-type]
        foreign(store)
        store.fail("write", HOLDER, unreachable())
        own_lease._renew()
    assert ann.seen == ["the lease of s3://bucket/vision was not renewed: the store does not answer"]
