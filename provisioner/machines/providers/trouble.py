"""Questions to a cloud that have no answer: why, and what is said of it.

A cloud's SDK has hundreds of error codes; what follows for whoever asked depends on seven kinds of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from provisioner.common.preflight import Finding

Kind = Literal["settings", "credentials", "denied", "absent", "throttled", "silent", "refused"]


class Trouble(Exception):
    """Why a question has no answer. `kind`: settings: the cloud's configuration on this machine is wrong; credentials:
    they are missing, wrong or expired; denied: they may not ask that; absent: what was asked for is not there;
    throttled; silent: no answer or no network; refused: the rest. `code`: the cloud's own, empty where it gave none."""

    def __init__(self, kind: Kind, message: str, code: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.code = kind, message, code


def unknown(subject: str, error: Trouble, permission: str, *, cloud: str, settings: str) -> Finding:
    """A question without an answer. `permission`: what has to be allowed; `settings`: what to do about wrong ones."""
    if error.kind == "denied":
        return Finding("unknown", subject, f"not allowed to look: {error.message}", f"allow {permission}")
    if error.kind == "settings":
        return Finding("unknown", subject, error.message, settings)
    kind_texts = {"throttled": f"{cloud} is asked too often just now", "silent": "no answer in time"}
    reason = kind_texts.get(error.kind, error.code or "refused")
    return Finding("unknown", subject, f"{reason}: {error.message}", "run it again")


def signed_in(ask: Callable[[], Mapping[str, Any]], account: str, credentials: Callable[[Trouble], Finding]) -> Finding:
    """Who asks, by a cloud's GetCallerIdentity; a finding that blocks where that is nobody. `account`: what the answer
    calls the account's number."""
    try:
        caller = ask()
    except Trouble as error:
        return credentials(error)
    number = str(caller.get(account) or "")
    return Finding("ok", "credentials", f"{caller.get('Arn')}, account {number}", account=number)


@contextmanager
def gone_is_fine() -> Iterator[None]:
    """For what removes something: that it is gone already is no trouble."""
    try:
        yield
    except Trouble as error:
        if error.kind != "absent":
            raise
