"""What is found before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One preflight finding. `blocks`: nothing may be spent while it stands. `account`: the number of the account that
    answers, where the finding is about that. `no_capacity`: the site has no machines for a group, or the account may
    have no more of them there."""

    status: Literal["ok", "warning", "blocks", "unknown"]
    subject: str
    message: str
    action: str = ""
    account: str = ""
    no_capacity: bool = False
