"""`dcgmi diag -r N` as people see it: a table of tests.

Traps: a message that a row cannot hold goes on in the next rows, in the midst of a word; a result may name the GPUs
("Fail - GPU: 3", "Skip - All"), and a test's GPUs can have several, in rows without its name, with "GPU0: " before each
in DCGM 4; older releases underline with = only; a test is named Diagnostic, as the head of the column is; an error of
the test can stand where its result should; people paste the rows without the head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import lines

_ROW = re.compile(r"^\|\s(.{1,60}?)\s*\| (.*)\|$")
_RESULT = re.compile(r"^(?:GPU\s?\d{1,3}: )?(Pass|Fail|Warn|Skip)\b(?: - (.*))?$")
_SECTION = re.compile(r"^[+|]-----  (Metadata|Deployment|Integration|Hardware|Stress)  -", re.M)
_BROKEN = re.compile(r"\b(?:error|fail(?:ed|ure)|unable|could not|cannot|invalid)\b", re.I)
"""An error in the place of a result."""
WORST_FIRST = ("fail", "warn", "pass", "skip")
"""Results of a test's GPUs: the first of these that one has is the test's."""
WIDTH = 45
"""Characters of a message in one row; a blank at their end is one of the message's."""


@dataclass(frozen=True, slots=True)
class Table:
    """`results`: pass, fail, warn or skip → tests; `about`: what stands under Metadata."""

    results: dict[str, list[str]]
    messages: list[str]
    about: dict[str, str]


def read(text: str) -> Table | None:
    """None where the text is no such table."""
    if "| Diagnostic " not in text and _SECTION.search(text) is None:
        return None
    results: dict[str, list[str]] = {"pass": [], "fail": [], "warn": [], "skip": []}
    messages: list[tuple[str, bool, str]] = []
    about: dict[str, str] = {}
    states_by_test: dict[str, set[str]] = {}
    test = "?"
    open_message = in_metadata = False
    for line in lines(text):
        if section := _SECTION.match(line):
            in_metadata = section[1] == "Metadata"
        if (match := _ROW.match(line)) is None or (match[1] == "Diagnostic" and match[2].strip() == "Result"):
            continue
        name, value = match[1].strip(), match[2].rstrip()
        if result := _RESULT.match(value):
            test = name or test
            states_by_test.setdefault(test, set()).add(result[1].lower())
            open_message = False
        elif name in ("DCGM Version", "Driver Version Detected", "GPU Device IDs Detected"):
            about[name] = value
        elif name and re.match(r"(?:Error|Warning|Info)\b", name):
            messages.append((test, name.startswith("Info"), match[2][:WIDTH]))
            open_message = True
        elif name and value and not in_metadata and states_by_test and _BROKEN.search(value):
            test = name
            states_by_test.setdefault(test, set()).add("fail")
            messages.append((test, False, f"{name}: {match[2]}"[: WIDTH + len(name) + 2]))
            open_message = True
        elif not name and open_message and value:
            of_test, is_info, message = messages[-1]
            messages[-1] = (of_test, is_info, (message + match[2][:WIDTH])[:1000])
    for test, states in states_by_test.items():  # the worst of its GPUs is the test's result
        results[next(state for state in WORST_FIRST if state in states)].append(test)

    def weight(entry: tuple[str, bool, str]) -> tuple[int, bool]:
        of_test, is_info, _ = entry
        states = states_by_test.get(of_test, set())
        return next((n for n, state in enumerate(WORST_FIRST) if state in states), len(WORST_FIRST)), is_info

    # what is said of a test that failed comes before what is said of one that passed
    texts = [message.strip() for _, _, message in sorted(messages, key=weight)]
    return Table(results, texts, about) if any(results.values()) else None
