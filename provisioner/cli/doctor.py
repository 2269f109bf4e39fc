"""`doctor`: what this machine lacks, with the command that mends it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.errors import Exit, GpuprovError

if TYPE_CHECKING:
    from provisioner.doctor import Diagnosis


def _keys(file: Path) -> list[Diagnosis]:
    from provisioner.stack import lockfile

    lock = lockfile.read(file.with_suffix(".lock"))
    if lock is None:
        raise GpuprovError("no lock is beside it", where=str(file), hint=f"gpuprov lock {file}")
    from provisioner import signing_keys

    return signing_keys.examine(lock)


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(help="A cluster.yaml: the keys of its lock's repositories are compared too.", metavar="FILE"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show what this machine lacks. Exits with 2 if something is missing."""
    from provisioner.doctor import examine

    found = examine() + (_keys(file) if file is not None else [])
    healthy = all(d.status == "ok" for d in found)
    if json_:
        json_output.write({"ok": healthy, "findings": [asdict(d) for d in found]})
    else:
        width = max(len(d.subject) for d in found)
        for d in found:
            mark = {"ok": "ok     ", "missing": "MISSING", "unknown": "unknown"}[d.status]
            typer.echo(f"{mark}  {d.subject:<{width}}  {d.found}")
            if d.status != "ok":
                typer.echo(f"         needed for {d.needed_for}" + (f": {d.mend}" if d.mend else ""))
    raise typer.Exit(Exit.OK if healthy else Exit.BAD_INPUT)
