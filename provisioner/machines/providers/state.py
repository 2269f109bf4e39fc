"""Where a cluster's state lies when several people work on it: `state` of cluster.yaml → a place that all reach.

Terraform keeps its own state there (`terraform`); what operators need beside it goes through `read` and `write`
(lifecycle/sharing/shared_files.py), and keeps two runs apart there (lifecycle/sharing/lease.py). A provider's folder
has the places that it offers: the model of cluster.yaml's block in `providers/<name>/state.py`, and `remote(spec)` in
`remote_state.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.spec.models import ClusterSpec
from provisioner.spec.state import LocalState


@dataclass(frozen=True, slots=True)
class Blob:
    """What lies there. Two blobs of one `tag` are equal; `age_s`: seconds since it was written, by the place's own
    clock."""

    content: bytes
    tag: str
    age_s: float = 0.0


class Conflict(Exception):
    """Somebody else wrote it meanwhile."""


class Remote(Protocol):
    """One cluster's part of the place. All methods raise ProviderError where it can't be reached or may not be used."""

    where: str
    """For people: s3://bucket/prefix/cluster."""

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        """Terraform's backend block for a site: its type and its values."""

    there: bool
    """False once `prepare` has found that it is still to be made."""

    def prepare(self, *, make: bool = True) -> list[Finding]:
        """See that it is there, make it where cluster.yaml asks for that (and `make` allows it), and say what is wrong
        with it."""

    def read(self, name: str, known: str | None = None) -> Blob | None:
        """A blob; None where there is none. Where its tag is `known` the content is empty."""

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        """Put it in place of the one with the tag `previous_tag` (None: there is none). Gives its tag. Raises
        Conflict."""

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        """Remove a blob; nothing happens where there is none. `previous_tag`: only the one with that tag, else
        Conflict."""

    def names(self) -> list[str]:
        """Every blob of the cluster."""


@runtime_checkable
class Marked(Protocol):
    """A place where a writer leaves a mark while it writes, which one that died leaves behind."""

    def unlock(self, names: Sequence[str]) -> list[str]:
        """Remove old marks of these blobs; says which. Raises ProviderError."""


def remote_of(spec: ClusterSpec) -> Remote | None:
    """The place of a cluster's state; None where that is this machine. Raises GpuprovError for a cluster that only one
    machine could log in to."""
    if isinstance(spec.state, LocalState):
        return None
    if spec.access.ssh_key is None:
        raise GpuprovError(
            "access.ssh_key is required with shared state: a generated key stays on this computer",
            where="access.ssh_key",
            hint="name a key that all operators have, such as ~/.ssh/fleet (made with `ssh-keygen -t ed25519`)",
        )
    folder = type(spec.state).__module__.rpartition(".")[0]
    remote: Remote = import_module(f"{folder}.remote_state").remote(spec)
    return remote
