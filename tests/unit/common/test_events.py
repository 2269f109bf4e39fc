"""The stream of events: what a subscriber raises breaks off no work, and a person learns of it once."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from provisioner.common.events import Event, Events, jsonl_writer


def full(event: Event) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/runs/1/events.jsonl")


def test_a_log_that_cannot_be_written_breaks_off_no_work_and_is_reported_once() -> None:
    received_events: list[Event] = []
    events = Events(full, received_events.append)
    for message in ("first", "second"):
        events("terraform", "progress", message)
    assert [(event.kind, event.message) for event in received_events] == [
        ("progress", "first"),
        ("warning", "the log is incomplete: /runs/1/events.jsonl: No space left on device"),
        ("progress", "second"),
    ]


def test_a_person_learns_of_it_whatever_the_order_of_the_subscribers() -> None:
    messages: list[str] = []
    events = Events(lambda event: messages.append(event.message), full)
    events("run", "log", "first")
    assert messages == ["first", "the log is incomplete: /runs/1/events.jsonl: No space left on device"]


def test_the_events_file_on_a_full_disk_is_reported_by_its_name() -> None:
    messages: list[str] = []
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        events = Events(jsonl_writer(stream), lambda event: messages.append(event.message))
        events("run", "started", "begins")
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or closing it fails again
    assert messages == ["begins", "the log is incomplete: /dev/full: No space left on device"]


def test_all_subscribers_may_fail() -> None:
    another = partial(full)
    Events(full, another)("run", "log", "nobody hears this")


def test_ctrl_c_in_a_subscriber_goes_on() -> None:
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events(interrupted)("run", "log", "x")


def test_the_next_run_reports_it_again() -> None:
    """Each run has a file of its own, and the display of the process stays."""
    messages: list[str] = []
    events = Events(lambda event: messages.append(event.message))
    for _ in range(2):
        events.subscribe(full)
        events("run", "log", "x")
        events.unsubscribe(full)
    assert len([message for message in messages if "incomplete" in message]) == 2
