"""Errors of a cloud: a class, the cloud's own code and text, whose it is, and what to do. What follows from a class is
the same for every cloud (AFTER); which code has which class is a provider's table (`errors.yaml` in its folder).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from provisioner.common import yaml_text

Class = Literal[
    "shortage", "quota", "unsupported", "spot-refused", "reservation-full", "credentials", "denied", "throttled",
    "image", "network", "transient", "conflict", "terms", "unknown",
]  # fmt: skip
"""shortage: it has none now; quota: the account may have no more; unsupported: not sold there, or not like that;
spot-refused: no spot machine at this price or for this account; reservation-full: the reservation has no room;
credentials: missing, wrong or expired; denied: they may not do it; throttled: asked too often; image, network: the
machine's image or a network is the cause; transient: the cloud's own fault, or no answer; conflict: something is in
the way; terms: the account or a contract; unknown: a code that no table has."""
Then = Literal["zone", "kind", "again", "stop"]
"""zone: ask in the next zone, then for the next kind; kind: another zone would not help; again: ask the same once more;
stop: no other way would help."""
AFTER: Mapping[Class, Then] = {
    "shortage": "zone", "unsupported": "zone", "network": "zone", "spot-refused": "zone", "quota": "kind",
    "reservation-full": "kind", "throttled": "again", "transient": "again",
}  # fmt: skip
"""What follows for a machine that can't be had; "stop" for every other class."""
ERROR_CODES: Mapping[Class, str] = {
    "shortage": "no_capacity", "reservation-full": "no_capacity", "quota": "quota", "credentials": "credentials",
    "denied": "permission_denied",
}  # fmt: skip
"""The code of gpuprov's error where Terraform fails with one of these first; for others it is the provider's."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of errors.yaml. `codes`: the cloud's own, with * for any text; none: the message alone decides. `text`: a
    pattern that the message must have. `then`: where something else follows than for others of the class. `quota`: the
    name of one in quotas.yaml, or `machines`: the one that counts the machine. `source`: where the meaning was read."""

    codes: tuple[str, ...]
    kind: Class
    source: str
    text: str = ""
    hint: str = ""
    then: Then | None = None
    quota: str = ""

    def fits(self, code: str, text: str) -> bool:
        if self.codes and not any(fnmatchcase(code, pattern) for pattern in self.codes):
            return False
        return not self.text or re.search(self.text, text, re.I | re.S) is not None


@dataclass(frozen=True, slots=True)
class CloudError:
    """What a cloud said of one resource. `code`: its own, empty where it gave none; `node`: the node whose machine it
    is; `zones`: those that the cloud names as having some, in its order."""

    kind: Class
    code: str
    text: str
    address: str = ""
    hint: str = ""
    node: str = ""
    zones: tuple[str, ...] = ()
    then: Then = "stop"

    @property
    def summary(self) -> str:
        """The error without whose it is."""
        if not self.code:
            return self.text
        return f"{self.code} ({self.kind}): {self.text}" if self.kind != "unknown" else f"{self.code}: {self.text}"


def has_table(provider: str) -> bool:
    """Whether a provider's folder has an errors.yaml."""
    return files(f"provisioner.machines.providers.{provider}").joinpath("errors.yaml").is_file()


@cache
def _document(provider: str) -> Mapping[str, Any]:
    text = files(f"provisioner.machines.providers.{provider}").joinpath("errors.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml_text.load(text)
    return document


def sandbox_texts(provider: str) -> Mapping[str, str]:
    """What a sandbox of a provider's site says in place of making a machine: class (and spot-quota) → text with
    {machine} and {zone}."""
    texts: dict[str, str] = _document(provider)["sandbox"]
    return texts


@cache
def table(provider: str) -> tuple[Row, ...]:
    """The rows of a provider's errors.yaml; the first that fits counts."""
    document = _document(provider)
    return tuple(
        Row(tuple(row.get("codes", ())), row["class"], document["sources"][row["source"]], row.get("text", ""),
            row.get("hint", ""), row.get("then"), row.get("quota", ""))
        for row in document["errors"]
    )  # fmt: skip


def row_of(rows: Sequence[Row], codes: Sequence[str], text: str) -> Row | None:
    """The first row that fits one of these codes, which stand for the same error; where none does, the first without
    codes whose pattern the text has."""
    coded = (row for row in rows if row.codes and any(row.fits(code, text) for code in codes))
    return next(coded, None) or next((row for row in rows if not row.codes and row.fits("", text)), None)


def error_lines(errors: Sequence[CloudError]) -> list[str]:
    """One line for each thing that was said: whose it is, and what. Nothing is left out but repetitions."""
    names_by_text: dict[str, list[str]] = {}
    for error in errors:
        names = names_by_text.setdefault(error.summary, [])
        name = error.node or error.address
        if name and name not in names:
            names.append(name)
    return [f"{_some(names)}: {text}" if names else text for text, names in names_by_text.items()]


def hints(errors: Sequence[CloudError]) -> str:
    """What to do about them, each once."""
    return "; ".join(dict.fromkeys(error.hint for error in errors if error.hint))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"


assert set(AFTER) < set(get_args(Class))
