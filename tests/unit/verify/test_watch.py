"""Deadlines of what is done in turn: one that does not end costs itself alone."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from provisioner.verify.watch import TooLong, Watch, limited


@pytest.fixture
def watch() -> Iterator[Watch]:
    previous_handlers = {number: signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM)}
    created = Watch(0.05, 0.1)
    yield created
    created.end()
    for number, handler in previous_handlers.items():
        signal.signal(number, handler)


def spin() -> None:
    while True:
        pass


def test_a_turn_that_waits_ends_and_the_next_one_is_its_own(watch: Watch) -> None:
    with pytest.raises(TooLong):
        watch.run(time.sleep, 60)
    assert watch.run(sum, [1, 2]) == 3
    with pytest.raises(TooLong), watch.one():
        time.sleep(60)


def test_a_turn_that_computes_ends_also_in_a_regular_expression(watch: Watch) -> None:
    with pytest.raises(TooLong):
        watch.run(spin)
    with pytest.raises(TooLong):
        watch.run(re.match, "(a+)+!", "a" * 60)


def test_between_turns_nothing_is_broken_off(watch: Watch) -> None:
    watch.run(sum, [])
    time.sleep(0.5)


def test_a_limit_within_a_turn_leaves_the_watch_on(watch: Watch) -> None:
    def inner() -> None:
        with pytest.raises(TooLong), limited(0.02):
            spin()
        spin()

    with pytest.raises(TooLong):
        watch.run(inner)


def test_what_ends_in_time_is_left_alone_and_so_are_other_threads() -> None:
    with limited(0.05):
        time.sleep(0.2)
    done: list[int] = []

    def other() -> None:
        with limited(0.0001):
            done.append(sum(range(200_000)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert done
