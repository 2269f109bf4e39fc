"""`provider: azure`: a site of cluster.yaml, with what is refused in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.machines.providers.azure import rules
from provisioner.machines.providers.azure.settings import AzureSettings
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class AzureSite(AzureSettings):
    """A region of Azure; zones are "1", "2" and "3"."""

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        yield from rules.account(at, self)
        yield from rules.bought(at, self, groups)
