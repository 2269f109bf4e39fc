"""A cluster's folder in an object store: what the clouds' places for state have in common (providers/state.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Protocol

from provisioner.common.errors import ProviderError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.trouble import Trouble

LIMIT = 64 << 20
"""Bytes of an object that is read; what operators share is some hundred kilobytes."""

VERSIONS = "check who wrote it; its versions have the previous one"


class Settings(Protocol):
    """Of cluster.yaml's block `state`: the folder that clusters' folders are in, and whether the store is made."""

    @property
    def prefix(self) -> str: ...

    @property
    def create(self) -> bool: ...


class StateFolder(ABC):
    """One cluster's folder. `there`: False once `prepare` has found that the store is still to be made."""

    missing: ClassVar[Collection[str]]
    """Codes of a store that is not there."""

    def __init__(self, settings: Settings, cluster: str) -> None:
        self._settings, self._cluster = settings, cluster
        self.there = True

    @property
    def _folder(self) -> str:
        return "/".join(part for part in (self._settings.prefix.strip("/"), self._cluster) if part)

    @property
    @abstractmethod
    def _store(self) -> str:
        """The bucket or container in words: bucket acme in eu-west-1."""

    @abstractmethod
    def _look(self) -> Any:
        """Ask for the store; what it says of itself. Raises Trouble."""

    @abstractmethod
    def _make(self) -> None:
        """Make it, closed before anything is in it. Raises ProviderError."""

    @abstractmethod
    def _looked_at(self, info: Any) -> list[Finding]:
        """What is wrong with one that was there; what could not be asked is unknown."""

    @abstractmethod
    def _store_error(self, error: Trouble) -> ProviderError:
        """What the store said, for people."""

    def _just_made(self) -> list[Finding]:
        """What is to be said of one that was made here."""
        return []

    def prepare(self, *, make: bool = True) -> list[Finding]:
        """See providers/state.py for the contract."""
        try:
            store_info = self._look()
        except Trouble as error:
            if error.code not in self.missing:
                raise self._store_error(error) from None
            if not self._settings.create:
                hint = "state.create: true has gpuprov make it"
                raise ProviderError(f"there is no {self._store}", where="state", hint=hint) from None
            if not make:
                self.there = False
                return [Finding("ok", "state", f"`up` will make the {self._store}")]
            self._make()
            return [Finding("ok", "state", f"made the {self._store}"), *self._just_made()]
        return self._looked_at(store_info)


def refuse_oversized(content: bytes, hint: str) -> bytes:
    """What was read of an object, LIMIT + 1 bytes at most. Raises ProviderError for one that is none of ours."""
    if len(content) > LIMIT:
        message = f"an object of the cluster's state is longer than {LIMIT >> 20} MiB"
        raise ProviderError(message, where="state", hint=hint)
    return content


def age_s(date: str | None, modified: datetime) -> float:
    """Seconds since an object was written, both moments by the store's clock; by this machine's where the answer has no
    date."""
    current_time = parsedate_to_datetime(date) if date else datetime.now(UTC)
    return float((current_time - modified).total_seconds())
