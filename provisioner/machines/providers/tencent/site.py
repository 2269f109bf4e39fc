"""`provider: tencent`: a site of cluster.yaml, with what is refused in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.machines.providers.tencent import rules
from provisioner.machines.providers.tencent.settings import TencentSettings
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class TencentSite(TencentSettings):
    """A region of Tencent Cloud."""

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:  # noqa: ARG002
        yield from rules.account(at, self)
        yield from rules.network(at, self)
        if self.storage.cfs is not None and self.storage.cfs.zone is not None:
            yield from rules.among_zones((*at, "storage", "cfs", "zone"), self.storage.cfs.zone, self)
