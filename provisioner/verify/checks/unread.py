"""The end of a check whose file was not read, where only a lock says that it has to be there."""

from __future__ import annotations

from typing import NoReturn

from provisioner.verify.check import skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, not_given
from provisioner.verify.tools import FILES


def modules_are_whole(node: Facts, expected: Expected) -> bool:
    """Whether a module that is not listed is not loaded: people copy `lsmod | grep nvidia`
    (tests/unit/verify/sessions, akash-209). With a lock the list is the probe's."""
    return expected.packages is not None or node.collected is not None


def end_unread(node: Facts, file: str, *, skips: str | None) -> NoReturn:
    """Skip with the reason `skips` (None: a lock wants the file), else unknown, as check_runner ends a check that
    `needs` the file. Checks of lockless machines declare the file as `reads` and come here."""
    source = node.source(file)
    if skips is not None:
        skip(skips)
    older = FILES[file].added_later and node.never_asked(file)
    reason = f"{source.reason}: it was collected by an older gpuprov" if older else source.reason
    look = source.state == "hung" or source == not_given(file)
    unknown(reason, file, action="none" if look else None, never_asked=older)
