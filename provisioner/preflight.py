"""What is found before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One preflight finding. `blocks`: nothing may be spent while it stands."""

    status: Literal["ok", "warning", "blocks", "unknown"]
    subject: str
    message: str
    action: str = ""
