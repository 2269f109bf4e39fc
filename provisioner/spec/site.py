"""What every site of cluster.yaml is: who provides its machines, and what it answers of itself.

A provider's folder has the model of its own sites (`providers/<name>/site.py`); spec/sites.py puts them together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import BeforeValidator, Field

from provisioner.spec.base import Model, Text
from provisioner.spec.groups import Group
from provisioner.spec.shared_storage import SharedFileSystem
from provisioner.spec.source_map import Finding, Loc, shown
from provisioner.spec.stack_request import StackRequest

Region = Annotated[
    Text, Field(title="a region name", description="Region in the provider's own spelling", examples=["us-east-1"])
]
Zones = Annotated[
    tuple[Text, ...],
    Field(
        max_length=32,
        title="a list of zones",
        description="Zones that machines may be in, tried in this order; empty: any",
        examples=[["us-east-1a", "us-east-1b"]],
    ),
]


LoginName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
Jump = Annotated[
    str,
    Field(
        pattern=r"^([a-z_][a-z0-9_-]{0,31}@)?[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(:"
        r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$"
    ),
]


class JumpHost(NamedTuple):
    """A jump host as cluster.yaml names it. `user` is empty where the file has none."""

    user: str
    name: str
    port: int

    @classmethod
    def parse(cls, text: str) -> JumpHost:
        """Of [user@]host[:port].

        >>> JumpHost.parse("me@bastion.example.com")
        JumpHost(user='me', name='bastion.example.com', port=22)
        """
        user, _, address = text.rpartition("@")
        name, _, port = address.partition(":")
        return cls(user, name, int(port or 22))


class Site(Model):
    """Where machines come from. A subclass says which provider it is of (`provider: Literal["aws"]`)."""

    provider: str = Field(description="Who sells the machines")
    user: LoginName | None = Field(
        default=None,
        title="a login name",
        description="Account on its nodes; null: that of `access`",
        examples=["ubuntu"],
    )
    jump: Jump | None = Field(
        default=None,
        title="[user@]host[:port]",
        description="Jump host on ssh's way to its nodes, as your own ssh knows it: its host key, your account and "
        "your key there come from your ssh configuration",
        examples=["me@bastion.example.com"],
    )
    refused_users: ClassVar[frozenset[str]] = frozenset()
    """Names of accounts that machines can't be made with."""
    shares: ClassVar[bool] = False
    """Whether its nodes can share file systems at all."""

    def home(self) -> dict[str, str]:
        """Where its machines are, by the keys of cluster.yaml that say so. Machines do not move when one is edited."""
        return {"provider": self.provider}

    def jump_hosts(self, nodes: Collection[str]) -> dict[str, str]:
        """Node → its jump host, of these nodes of a sandbox (GROUP-NUMBER); those without one are left out."""
        return dict.fromkeys(nodes, self.jump) if self.jump else {}

    def file_systems(self) -> tuple[SharedFileSystem, ...]:
        """What every node of the site mounts over the network."""
        return ()

    def not_in_sandbox(self) -> tuple[str, ...]:
        """What of the site a sandbox leaves out, a sentence each."""
        return ()

    def located(self, folder: Path) -> Self:  # noqa: ARG002
        """The site with paths of files as they are from anywhere; `folder`: that of cluster.yaml."""
        return self

    def this_machine(self) -> bool:
        """Whether one of its nodes is the machine that gpuprov runs on."""
        return False

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        """What cannot work at this site, beside what holds for all sites. `at`: where the site stands in the file;
        `groups`: those at this site; `stack`: None where it could not be read."""
        return iter(())

    def unready(self, at: Loc) -> Iterator[Finding]:  # noqa: ARG002
        """What a run lacks here that a sandbox does without. `at` as above; files of this computer are looked for,
        and nobody is asked."""
        return iter(())


def among_zones(at: Loc, zone: str, region: str, zones: Collection[str]) -> Iterator[Finding]:
    """Of a zone that something of a site stands in; `zones`: the site's, whose names begin with its region."""
    if zone in zones:
        return
    if not zone.startswith(region):
        message, hint = f"{shown(zone)} is not a zone of {region}", f"its zones are called {region}-…"
    else:
        message = f"{shown(zone)} is not among the site's zones"
        hint = f"write zones: [{zone}, …] at the site"
    yield Finding(at, message, f"one of {', '.join(zones)}" if zones else hint)


def _price(value: object) -> object:
    """A price in quotes, as one."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,4})?", value) else value


SpotPrice = Annotated[
    float,
    BeforeValidator(_price),
    Field(gt=0, le=100_000, title="a price an hour above 0, or null", examples=[25.5]),
]
"""The most that a spot machine may cost an hour, in the account's currency; in quotes or not."""


TagValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9_ .:/=+@-]{0,256}$")]


class CloudSite(Site):
    """A region of a cloud."""

    region: Region
    zones: Zones = ()
    tags: dict[str, TagValue] = Field(
        default_factory=dict,
        max_length=40,
        title="a text for each key, such as cost-center: ml",
        description="Tags for everything that is made at the site, besides gpuprov's own",
        examples=[{"cost-center": "ml", "owner": "platform"}],
    )

    def home(self) -> dict[str, str]:
        return {**super().home(), "region": self.region}
