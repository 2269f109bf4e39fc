"""Many questions at once, and no answer waited for longer than it is worth."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.market import Unanswered

DEADLINE_S = 20.0
"""For all questions together: a person is waiting."""
PARALLEL = 8

Key = TypeVar("Key")
Value = TypeVar("Value")


def answers(
    questions: Mapping[Key, Callable[[], Value]], *, deadline_s: float = DEADLINE_S
) -> dict[Key, Value | Unanswered]:
    """Ask them all; a question that has no answer in time is Unanswered. Threads that still wait then are left behind:
    they end with the process."""
    waiting: queue.SimpleQueue[tuple[Key, Callable[[], Value]]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Key, Value | Unanswered | BaseException]] = queue.SimpleQueue()
    for item in questions.items():
        waiting.put(item)

    def work() -> None:
        while True:
            try:
                key, question = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((key, question()))
            except GpuprovError as error:  # the provider's SDK is not installed
                done.put((key, Unanswered(error.message, f"{error.hint}, or give --offline" if error.hint else "")))
            except BaseException as error:  # the thread that waits raises it
                done.put((key, error))

    for _ in range(min(PARALLEL, len(questions))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[Key, Value | Unanswered] = {}
    end = time.monotonic() + deadline_s
    while len(results) < len(questions):
        try:
            key, answer = done.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, BaseException) and not isinstance(answer, Unanswered):
            raise answer
        results[key] = answer
    late = Unanswered(f"no answer in {deadline_s:g} s", "look at network and proxy, or give --offline")
    return {key: results.get(key, late) for key in questions}
