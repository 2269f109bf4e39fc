"""File systems that all nodes of a site share, as cluster.yaml asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from provisioner.spec.source_map import Loc


class MountArguments(NamedTuple):
    """What mount(8) is given for a file system, and what /proc/self/mounts shows of it then (`*` for what nobody can
    know before)."""

    type: str
    source: str
    options: str
    shows_type: str
    shows_source: str


@dataclass(frozen=True, slots=True)
class SharedFileSystem:
    """One file system. `type`: as the Terraform module's output has it; `key`: where it stands below its site in
    cluster.yaml; `title`: for errors; `component`: of the stack whose packages mount it, empty where the distribution's
    own do."""

    path: str
    key: Loc
    title: str
    type: str = "nfs4"
    component: str = ""
    access: Literal["rw", "ro"] = "rw"

    def arguments(self, source: str, options: str) -> MountArguments:
        """For the source and options that Terraform has given; the source is empty where it is not made yet."""
        return MountArguments(self.type, source, options, self.type, source)


@dataclass(frozen=True, slots=True)
class Lustre(SharedFileSystem):
    """A Lustre file system. Its client comes as packages of its own."""

    type: str = "lustre"
    component: str = "lustre"

    def arguments(self, source: str, options: str) -> MountArguments:
        """mount.lustre puts the server's address in the place of its name; the name behind it is the file system's."""
        shows = f"*@tcp:/{source.rpartition('@tcp:/')[2]}" if source else ""
        return MountArguments(self.type, source, options, self.type, shows)
