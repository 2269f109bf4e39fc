"""The address that this computer is seen with: ssh is opened to it where cluster.yaml names nobody."""

from __future__ import annotations

from functools import cached_property
from ipaddress import ip_address

from provisioner.common.errors import GpuprovError
from provisioner.plan.models import Plan
from provisioner.stack.fetch import ask

MY_ADDRESS = "https://checkip.amazonaws.com/"
"""Answers with the address that it was called from (Amazon's own service, open to everybody)."""
TIMEOUT_S = 10.0


class PublicAddress:
    """Asked once, and only where it is needed. `called`: whether ssh calls public addresses at this site."""

    def __init__(self, *, called: bool) -> None:
        self._called = called

    def is_needed(self, plan: Plan) -> bool:
        """Whether ssh is opened to this computer, because its address is called and nobody was named."""
        return self._called and not plan.spec.access.allow

    @cached_property
    def network(self) -> str:
        """The network of that one address, 203.0.113.7/32. Raises GpuprovError where it can't be known."""
        try:
            answer = ask(MY_ADDRESS, who="address", limit=1024, deadline_s=TIMEOUT_S)
            return f"{ip_address(answer.body.decode().strip())}/32"
        except (GpuprovError, ValueError) as error:
            reason = error.message if isinstance(error, GpuprovError) else str(error)[:200]
            raise GpuprovError(
                f"this computer's public address is not known: {reason}", hint="say in access.allow who may log in"
            ) from None
