"""init, validate, schema: everything about cluster.yaml that needs no cloud."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from provisioner import catalog, spec, stack
from provisioner.cli import json_output
from provisioner.common import ownership
from provisioner.common.errors import Exit, GpuprovError, InputError, Problem
from provisioner.common.paths import write_whole
from provisioner.spec.cluster_files import cluster_files, what_to_type

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]…", help="One or more cluster.yaml files (default: the only one of this folder)."),
]
SandboxOption = Annotated[
    bool, typer.Option("--sandbox", help="As a sandbox reads them, which needs neither hosts nor their keys.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def init(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The file to write.")] = "cluster.yaml",
    provider: Annotated[
        str | None,
        typer.Option(help="A provider of `gpuprov catalog` (default: who sells the machine)."),
    ] = None,
    machine: Annotated[str | None, typer.Option(help="A machine type of `gpuprov catalog`.")] = None,
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "my-fleet",
    host: Annotated[
        list[str] | None,
        typer.Option(help="A machine that exists already, or a range (dgx[01-04].lab); local: this one. Repeatable."),
    ] = None,
) -> None:
    """Write a commented cluster.yaml to start from. An existing file is not overwritten."""
    from provisioner.spec.starter import starter

    text = starter(catalog.load(), provider=provider, machine=machine, hosts=host or (), name=name)
    try:
        if os.path.lexists(file):
            raise GpuprovError("already exists and was not overwritten", where=file, hint="pass another file name")
        write_whole(Path(file), text, mode=0o644)
    except (OSError, ValueError) as error:
        raise GpuprovError(f"cannot be written: {getattr(error, 'strerror', None) or error}", where=file) from None
    typer.echo(f"wrote {file}; next: {_up(file, sandbox=not host)}", err=True)
    for problem in _problems(file, sandbox=not host):
        typer.echo(f"but: {problem}", err=True)


def _up(file: str, *, sandbox: bool) -> str:
    """The command that makes the fleet, to be typed as it is: a sandbox needs root."""
    if not sandbox:
        return shlex.join(["gpuprov", "up", file])
    root = os.geteuid() == 0 and ownership.person() is None
    return shlex.join([*(["gpuprov"] if root else ["sudo", ownership.program()]), "up", file, "--sandbox"])


def validate(files: Files = None, sandbox: SandboxOption = False, as_json: AsJson = False) -> None:
    """Show every problem as file:line:column: message. Exits with 2 where there is one."""
    by_file = {
        file: _problems(file, sandbox=sandbox) for file in files or [_only_file()]
    }  # a problem may be in a file that it names
    problems = [problem for file_problems in by_file.values() for problem in file_problems]
    if as_json:
        from provisioner.output.validate import ProblemOutput, ValidateOutput

        rows = [ProblemOutput.model_validate(asdict(problem)) for problem in problems]
        json_output.write(ValidateOutput(ok=not problems, problems=rows))
    else:
        for problem in problems:
            typer.echo(str(problem))
        for file, file_problems in by_file.items():
            if not file_problems:
                typer.echo(f"{file}: ok")
    if problems:
        raise typer.Exit(Exit.BAD_INPUT)


def _only_file() -> str:
    """The cluster.yaml of this folder. Raises GpuprovError where it has none, or several."""
    files = cluster_files(Path())
    if len(files) == 1:
        return files[0]
    reason = f"{len(files)} files of this folder are a cluster.yaml" if files else "FILE is missing"
    raise GpuprovError(reason, hint=what_to_type("gpuprov validate"))


def _problems(file: str, *, sandbox: bool) -> list[Problem]:
    """What the file itself has wrong; where that is nothing, whether any set of versions has what it pins, and what it
    lacks that only a sandbox does without."""
    try:
        loaded = spec.load(file)
        stack.solve(loaded, place=spec.placer(file))
    except InputError as error:
        return error.problems
    except stack.StackConflict as error:
        return [spec.problem_at(file, error.paths[0], error.message, error.hint)]
    return [] if sandbox else spec.unready(file, loaded)


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="cluster, or a --json output: validate, plan, report, upgrade, facts, status, down, gc, cost, doctor, "
            "error.",
        ),
    ] = "cluster",
) -> None:
    """Print a JSON schema (draft 2020-12). Editors take `cluster` for cluster.yaml."""
    from provisioner.spec import schema as schemas

    typer.echo(schemas.text(name), nl=False)
