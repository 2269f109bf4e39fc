"""`doctor`: what this machine lacks, with the command that mends it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from provisioner.cli import json_output
from provisioner.common.errors import Exit, GpuprovError

if TYPE_CHECKING:
    from provisioner.lifecycle.doctor import Diagnosis


def _sites(file: Path) -> list[Diagnosis]:
    """For each site of a cluster.yaml whether its cloud's SDK is there, and somebody signed in."""
    from provisioner import spec
    from provisioner.common.paths import ClusterPaths
    from provisioner.lifecycle.doctor import Diagnosis
    from provisioner.machines.providers.cluster import Providers

    loaded, diagnoses = spec.load(file), []
    providers = Providers(loaded, ClusterPaths(file, loaded.name, sandbox=False))
    for name, site in loaded.sites.items():
        job = f"machines of {site.provider}"
        try:
            account = providers.at(name).account()
        except GpuprovError as error:
            diagnoses.append(Diagnosis(f"site {name}", "unknown", error.message, job, error.hint))
            continue
        if account is not None:
            status: Literal["ok", "missing", "unknown"] = {"ok": "ok", "blocks": "missing"}.get(
                account.status, "unknown"
            )  # type: ignore[assignment]
            diagnoses.append(Diagnosis(f"site {name}", status, account.message, job, account.action))
    return diagnoses


def _keys(file: Path) -> list[Diagnosis]:
    """The signing keys of a cluster.yaml's lock; a lock that is missing or damaged is a finding. Raises
    GpuprovError for a file that is no cluster.yaml."""
    from provisioner import spec
    from provisioner.common.paths import ClusterPaths
    from provisioner.lifecycle import signing_keys
    from provisioner.lifecycle.doctor import Diagnosis
    from provisioner.stack import lockfile

    in_sandbox = ClusterPaths(file, spec.load(file).name, sandbox=True).exists()
    path = file.with_suffix(".lock")
    try:
        lock = lockfile.read(path)
        message, mend = (
            f"no {path.name}: signing keys were not compared",
            f"gpuprov lock {file}{' --no-sandbox' * in_sandbox}",
        )
    except GpuprovError as error:
        lock, message, mend = None, f"{error.where}: {error.message}: signing keys were not compared", error.hint
    if lock is None:
        return [Diagnosis("signing keys", "unknown", message, "the repositories that nodes install from", mend)]
    return signing_keys.examine(lock)


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A cluster.yaml: its clouds' SDKs, credentials and signing keys too.",
            metavar="FILE",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show what this machine lacks. Exits with 2 if something is missing."""
    from provisioner.lifecycle.doctor import examine
    from provisioner.output.doctor import DiagnosisOutput, DoctorOutput

    keys = _keys(file) if file is not None else []
    diagnoses = examine() + (_sites(file) if file is not None else []) + keys
    healthy = all(d.status == "ok" for d in diagnoses)
    if json_:
        findings = [DiagnosisOutput.model_validate(asdict(diagnosis)) for diagnosis in diagnoses]
        json_output.write(DoctorOutput(ok=healthy, findings=findings))
    else:
        width = max(len(d.subject) for d in diagnoses)
        for d in diagnoses:
            mark = {"ok": "ok     ", "missing": "MISSING", "unknown": "unknown"}[d.status]
            typer.echo(f"{mark}  {d.subject:<{width}}  {d.found}")
            if d.status != "ok":
                typer.echo(f"         needed for {d.needed_for}" + (f": {d.mend}" if d.mend else ""))
    raise typer.Exit(Exit.OK if healthy else Exit.BAD_INPUT)
