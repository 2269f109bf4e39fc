"""Errors that a user can cause: what happened, where, and what to do next.

Everything raised on purpose derives from `GpuprovError`; the CLI prints it without a traceback and exits
with its `exit_code`. Anything else that reaches the CLI is a bug in gpuprov.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from provisioner.common.text import printable, single_line


class Exit(IntEnum):
    """Process exit codes, part of the stable interface (docs/reference/cli/README.md)."""

    OK = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    PROVIDER_FAILED = 3
    CONFIGURE_FAILED = 4
    LOCKED = 5
    INTERRUPTED = 130


CODES = {
    "refused": "The request can't be carried out as things are: a missing node, file or right, or a contradiction.",
    "invalid_file": "A file of yours is missing or has errors; `problems` has each with its line and column.",
    "usage": "The command line has an error.",
    "declined": "A person was asked and said no.",
    "interrupted": "Ctrl-C or SIGTERM. Progress is saved.",
    "locked": "Another run holds the cluster.",
    "damaged_file": "A file of the run directory is not what gpuprov writes.",
    "version_conflict": "No set of versions satisfies the pins of cluster.yaml together.",
    "download_failed": "A repository, registry or download did not give a file.",
    "provider_failed": "The provider, podman or Terraform failed in another way than those below.",
    "no_capacity": "The site has no machines for a group.",
    "quota": "The account may have no more machines there.",
    "credentials": "The cloud's credentials are missing, wrong or expired.",
    "permission_denied": "The credentials do not permit an action.",
    "machines_incomplete": "Some of a site's machines were not created.",
    "removal_refused": "The provider refused to remove a part of the cluster.",
    "machine_of_another_cluster": "A machine belongs to another cluster.",
    "login_refused": "A machine's sshd refuses gpuprov's key.",
    "another_host": "Another host of the cluster answers at the address.",
    "bmc_failed": "A BMC refused, failed, or can't be reached.",
    "configure_failed": "A node could not be configured.",
    "not_proven": "What had to be proven was not.",
    "tests_not_run": "pytest did not run the tests: the nodes are unknown.",
    "bundle_too_large": "A bundle is larger than its limits.",
    "this_machine": "This machine refused: a full disk, a missing right, too many open files.",
    "internal_error": "A bug in gpuprov.",
    "ended": "The command said on standard error why it ended.",
}
"""Code of an error in the document of `--json` → its meaning. Codes are added, never renamed or removed."""


class GpuprovError(Exception):
    """A failure with its place and its remedy.

    `where` is a file:line, a node or a Terraform resource; `hint` is the next thing to do. `code` tells programs what
    kind of failure it is, by a name that stays (CODES).
    """

    exit_code: Exit = Exit.BAD_INPUT
    code: str = "refused"

    def __init__(self, message: str, *, where: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code
        self.message = printable(message)
        self.where = single_line(where)
        self.hint = printable(hint)

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input file. `line` and `column` start at 1; `path` is dotted (groups.train.count)."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.message}"
        if self.hint and "\n" in self.message:
            return f"{text}\n  {self.hint}"
        return f"{text} ({self.hint})" if self.hint else text


class InputError(GpuprovError):
    """One or more problems in a file that the user wrote. Nothing was made, nothing was changed."""

    exit_code = Exit.BAD_INPUT
    code = "invalid_file"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


_QUERY = re.compile(
    r"((?:https?://(?!aws\.amazon\.com/marketplace/)|with url: /)[^\s\"'<>?]*)\?(?:[^\s\"'<>]*[^\s\"'<>:;,.)])?", re.I
)
"""Without the punctuation behind it, which is the sentence's."""


def without_queries(text: str) -> str:
    """A text without the query strings of URLs, which may hold signatures and tokens; a link to AWS Marketplace, where
    the query names the product, is kept whole."""
    return _QUERY.sub(r"\1", text)


MAX_TEXT = 32_768
"""Characters of one diagnostic; Azure's longest, with errors in errors, have some 5,000."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One diagnostic of Terraform, as its JSON log has it. `address`: the resource's; empty where it is of none.
    https://developer.hashicorp.com/terraform/internals/machine-readable-ui#diagnostic"""

    summary: str
    detail: str = ""
    address: str = ""
    severity: str = "error"

    @property
    def text(self) -> str:
        """What was said, on one line, without the address and what signs a URL; of more than MAX_TEXT characters the
        beginning and the end, because patterns of errors take the square of it."""
        full = f"{self.summary}: {self.detail}"
        if len(full) > MAX_TEXT:
            full = f"{full[: MAX_TEXT // 2]} … {full[-MAX_TEXT // 2 :]}"
        return without_queries(" ".join(full.split()).removesuffix(":"))

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


class ProviderError(GpuprovError):
    """A cloud, podman or Terraform refused or broke. `diagnostics`: what Terraform said, where it was Terraform."""

    exit_code = Exit.PROVIDER_FAILED
    code = "provider_failed"

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", diagnostics: Sequence[Diagnostic] = (), code: str = ""
    ) -> None:
        super().__init__(message, where=where, hint=hint, code=code)
        self.diagnostics = tuple(diagnostics)


class ConfigureError(GpuprovError):
    """A node could not be brought to what the lock says."""

    exit_code = Exit.CONFIGURE_FAILED
    code = "configure_failed"


class DamagedFileError(GpuprovError):
    """A file of the run directory is not what gpuprov writes. Nothing was changed."""

    code = "damaged_file"

    def __init__(self, reason: str, file: str, *, hint: str) -> None:
        super().__init__(f"is damaged: {reason}" if reason else "is damaged", where=file, hint=hint)


class VerifyError(GpuprovError):
    """What had to be proven was not."""

    exit_code = Exit.CHECK_FAILED
    code = "not_proven"


class LockedError(GpuprovError):
    """Somebody else is working on the same cluster."""

    exit_code = Exit.LOCKED
    code = "locked"


class Interrupted(GpuprovError):
    """Ctrl-C, or a request to end. What was done is kept."""

    exit_code = Exit.INTERRUPTED
    code = "interrupted"


class Declined(GpuprovError):
    """A person was asked and said no: nothing was done, as they wanted."""

    exit_code = Exit.OK
    code = "declined"
