"""`provider: baremetal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from provisioner.spec.groups import Group
from provisioner.spec.site import Site
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class BareMetalSite(Site):
    """Machines that are yours already."""

    provider: Literal["baremetal"] = Field(description="Machines that are yours already")
    method: Literal["ssh", "maas", "redfish"] = Field(
        default="ssh",
        description="How they are reached: ssh takes machines that run already; maas and redfish, which install them, "
        "are not available yet",
    )

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        if self.method != "ssh":
            yield Finding((*at, "method"), f"method: {self.method} is not available yet", "method: ssh")
