"""The end of a check whose file was not read, where only a lock says that it has to be there."""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

from provisioner.verify.check import skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, not_given
from provisioner.verify.tools import FILES


def modules_are_whole(node: Facts, expected: Expected) -> bool:
    """Whether a module that is not listed is not loaded: people copy `lsmod | grep nvidia`
    (tests/unit/verify/sessions, akash-209). With a lock the list is the probe's."""
    return expected.packages is not None or node.collected is not None


NOBODY = ("absent", "missing")
"""States of a file that nobody has asked for, or of a tool that is not there."""


def end_unread(node: Facts, file: str, *, skips: str | None, states: Container[str] = NOBODY) -> NoReturn:
    """Unknown, as check_runner ends a check that `needs` the file; or skipped with the reason `skips`, where no lock
    wants the file (None: one does) and it is in one of `states`. What could not be read without a lock condemns nobody.
    Checks that lockless machines have declare the file as `reads` and come here."""
    source = node.source(file)
    if skips is not None and source.state in states:
        skip(skips)
    older = FILES[file].added_later and node.never_asked(file)
    reason = f"{source.reason}: it was collected by an older gpuprov" if older else source.reason
    look = source.state == "hung" or source == not_given(file)
    unknown(reason, file, action="none" if look else None, condemns=not older and skips is None)
