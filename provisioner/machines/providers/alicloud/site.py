"""`provider: alicloud`: a site of cluster.yaml, with what is refused in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.machines.providers.alicloud import rules
from provisioner.machines.providers.alicloud.settings import AlicloudSettings
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class AlicloudSite(AlicloudSettings):
    """A region of Alibaba Cloud."""

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        yield from rules.bought(groups)
        yield from rules.disks(self, groups)
        yield from rules.account(at, self)
        yield from rules.network(at, self)
