"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")]
Sandbox = Annotated[
    bool | None,
    typer.Option("--sandbox/--no-sandbox", help="Use podman nodes with simulated hardware on this machine."),
]
Sites = Annotated[
    list[str] | None, typer.Option("--site", metavar="NAME", help="Only this site of several (repeatable).")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
TerraformBinary = Annotated[
    str | None, typer.Option("--terraform", metavar="PATH", help="Path of the terraform or tofu binary.")
]
