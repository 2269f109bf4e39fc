"""What can go wrong with a BMC."""

from __future__ import annotations

from provisioner.common.errors import ProviderError


class BmcError(ProviderError):
    """A BMC refused, broke, or can't be reached. `where`: the machine's name; `kind`: one of `answers.KINDS`, or
    `unreachable`, `certificate`, `identity`."""

    code = "bmc_failed"

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", kind: str = "", status: int | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind
        self.status = status
        self.offers_basic = False
        """Whether a 401 asked for basic authentication."""
