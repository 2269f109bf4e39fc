"""`provider: aws`: a site of cluster.yaml, with what is refused in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.machines.providers.aws import rules
from provisioner.machines.providers.aws.settings import AwsSettings
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc
from provisioner.spec.stack_request import StackRequest


class AwsSite(AwsSettings):
    """A region of Amazon EC2."""

    def findings(self, at: Loc, groups: Mapping[str, Group], stack: StackRequest | None) -> Iterator[Finding]:
        if self.jump and self.connect != "direct":
            yield Finding(
                (*at, "jump"), f"ssh goes through connect: {self.connect} already", "leave one of the two out"
            )
        yield from rules.bought(groups)
        yield from rules.account(at, self)
        yield from rules.storage((*at, "storage"), self, stack)
