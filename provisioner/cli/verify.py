"""`gpuprov verify`, `facts`, `collect`: prove a fleet, one machine or a bundle; show or fetch what the tools say."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from provisioner.cli import json_output, tables, testinfra
from provisioner.cli.one_machine import BUNDLES, NO_OUTPUT, of_no_fleet, origin, probe, supplied_at
from provisioner.cli.output_folder import refuse_unwritable
from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import counted, printable, single_line

if TYPE_CHECKING:
    from provisioner.common.events import Event, Subscriber
    from provisioner.lifecycle.baselines import Saved
    from provisioner.lifecycle.session import Cluster
    from provisioner.lifecycle.verifying import Verdict
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.subject import Subject

Level = Literal["quick", "standard", "stress"]
File = Annotated[Path | None, typer.Argument(help="cluster.yaml", show_default=False)]
BundleDir = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        help="saved outputs: a directory, an archive, nvidia-bug-report.log.gz; - for a paste",
        show_default=False,
    ),
]
Host = Annotated[str | None, typer.Option("--host", help="USER@ADDRESS, or local", show_default=False)]
Hosts = Annotated[
    str | None, typer.Option("--host", help="USER@ADDRESS, a range of them, or local", show_default=False)
]
MachineName = Annotated[
    str | None, typer.Option("--machine", help="The machine type of the catalogue. Default: read from the outputs.")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on standard output")]
Sandbox = Annotated[bool | None, typer.Option("--sandbox/--no-sandbox", help="the sandbox, or the real fleet")]


def verify(
    file: File = None,
    bundle: BundleDir = None,
    host: Hosts = None,
    machine: MachineName = None,
    machines: Annotated[
        Path | None, typer.Option("--machines", metavar="FILE", help="a file with machine types, as in cluster.yaml")
    ] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="only this node; can be repeated")] = None,
    checks: Annotated[
        list[Path] | None,
        typer.Option("--checks", help="a directory of your own checks, with --bundle or --host; can be repeated"),
    ] = None,
    alerting: Annotated[
        bool, typer.Option("--alerting", help="only nodes with a firing alert of severity page, at level quick")
    ] = False,
    level: Annotated[Level | None, typer.Option("--level", help="quick, standard or stress")] = None,
    report: Annotated[Path | None, typer.Option("--report", help="write report.json, .xml and .html here")] = None,
    as_json: Json = False,
    sandbox: Sandbox = None,
    save_baseline: Annotated[
        bool, typer.Option("--save-baseline", help="save what healthy nodes measure, to compare later")
    ] = False,
    as_testinfra: Annotated[
        bool, typer.Option("--testinfra", help="run the fleet's acceptance suite, plain pytest and testinfra")
    ] = False,
    export_testinfra: Annotated[
        Path | None,
        typer.Option("--export-testinfra", metavar="DIR", help="write that suite, to run without gpuprov"),
    ] = None,
) -> None:
    """Verify the fleet of FILE, other machines (--host) or a bundle (--bundle). Exits with 1 if it is not healthy."""
    from provisioner.lifecycle.verifying import keeping

    if as_testinfra or export_testinfra is not None:
        ignored: dict[str, object] = {
            "--bundle": bundle, "--host": host, "--machine": machine, "--machines": machines, "--checks": checks,
            "--level": level, "--json": as_json, "--save-baseline": save_baseline,
        }  # fmt: skip
        exclusive = {"--testinfra": as_testinfra, "--report": report} if export_testinfra is not None else {}
        testinfra.refuse_options(file, export_testinfra, ignored | exclusive)
        assert file is not None
        if export_testinfra is not None:
            return testinfra.export_suite(file, export_testinfra, sandbox, node or ())
        testinfra.run_suite(file, sandbox, node or (), report)
    _one_of(file, bundle, host)
    _of_a_fleet(file, sandbox, node)
    supplied, some_unknown = None, False
    if report is not None:
        refuse_unwritable(report)
    _refuse_options(file, node, machines, checks, alerting=alerting, save_baseline=save_baseline)
    fleet_file = ""
    if file is not None:
        cluster = _cluster(file, sandbox)
        fleet_file = cluster.typed_file
        if alerting:
            node, some_unknown = _alerting(cluster, as_json=as_json)
            level = level or "quick"
        verdict, title = _fleet(cluster, node or (), level, save_baseline=save_baseline, as_json=as_json)
    else:
        chosen, supplied = of_no_fleet(bundle, host, machine, level or ("standard" if host else "quick"), machines)
        verdict = _judged(chosen, checks or (), as_json=as_json)
        title = chosen[0].name if len(chosen) == 1 else str(host)
    if report is not None:
        from provisioner.verify.report import write

        with keeping(verdict.unsaved):
            page = write(verdict.report, report, title=title, previous=verdict.previous)
            print(f"report: {page}", file=sys.stderr)
    is_unrecognised = supplied is not None and supplied.is_unrecognised
    if is_unrecognised:
        sentence = f"{title}: UNKNOWN: {NO_OUTPUT} ({BUNDLES} lists them)"
        print(sentence, file=sys.stderr if as_json else sys.stdout)
    healthy = verdict.healthy and not some_unknown
    if as_json:
        from provisioner.verify.report.document import report_document

        document = report_document(verdict.report)
        document.ok = healthy
        if (origin_of_bundle := origin(supplied)) is not None:
            document.bundle = origin_of_bundle
        json_output.write(document)
    elif not is_unrecognised:
        from provisioner.verify.report.terminal import table

        tables.show(table(verdict.report, file=fleet_file, explains=True))
    for write_error in verdict.unsaved:
        print(f"gpuprov: the verdict above could not be written to disk: {write_error}", file=sys.stderr)
    raise typer.Exit(Exit.CHECK_FAILED if not healthy else Exit.BAD_INPUT if verdict.unsaved else Exit.OK)


def _refuse_options(
    file: Path | None, node: Sequence[str] | None, machines: Path | None, checks: Sequence[Path] | None, *,
    alerting: bool, save_baseline: bool,
) -> None:  # fmt: skip
    """Raise GpuprovError for options that what is verified does not have."""
    if alerting and (file is None or node):
        raise GpuprovError("--alerting asks Alertmanager for the nodes: pass cluster.yaml, and no --node")
    if save_baseline and file is None:
        raise GpuprovError("--save-baseline needs a fleet: pass its cluster.yaml")
    if machines is not None and file is not None:
        raise GpuprovError("--machines is for --bundle and --host", hint="in cluster.yaml: machines")
    if checks and file is not None:
        raise GpuprovError("--checks is for --bundle and --host", hint="in cluster.yaml: verify.checks")


def _alerting(cluster: Cluster, *, as_json: bool) -> tuple[list[str], bool]:
    """The nodes with a firing alert, and whether those of some Alertmanager are unknown; both on standard error. Ends
    the command where no node has one."""
    from provisioner.lifecycle import alertmanagers
    from provisioner.verify.report.document import report_document
    from provisioner.verify.results import Report

    answers = alertmanagers.alerting(cluster)
    for name, error in answers.failed.items():
        print(f"alerts of {name} are unknown: {error.message}", file=sys.stderr)
    for name, alerts in answers.nodes.items():
        print(single_line(printable(f"{name}: {', '.join(alerts)}")), file=sys.stderr)
    if not answers.nodes:
        if not answers.failed:
            print("no node has a firing alert of severity page", file=sys.stderr)
        if as_json:
            document = report_document(Report((), {}, time.time()))
            document.ok = not answers.failed
            json_output.write(document)
        raise typer.Exit(Exit.CHECK_FAILED if answers.failed else Exit.OK)
    return list(answers.nodes), bool(answers.failed)


def _judged(subjects: Sequence[Subject], checks: Sequence[Path], *, as_json: bool) -> Verdict:
    """Machines, or a bundle, that are of no fleet."""
    from provisioner.common.events import Events
    from provisioner.lifecycle.verifying import Verdict
    from provisioner.verify.fabric_run import Neighbours
    from provisioner.verify.run import verify as run

    with _screen(as_json=as_json) as show:
        # Nobody knows of other nodes: what is not reached is told, and no node is borrowed.
        report = run(subjects, checks=checks, events=Events(show), neighbours=lambda _: Neighbours())
    return Verdict(report, healthy=report.ok)


def _fleet(
    cluster: Cluster,
    nodes: Sequence[str],
    level: Level | None,
    *,
    save_baseline: bool,
    as_json: bool,
) -> tuple[Verdict, str]:
    """Prove the nodes of a fleet: the verdict and the fleet's name."""
    from provisioner.lifecycle import diff
    from provisioner.lifecycle.gc import is_run_lock_held as run_lock_held
    from provisioner.lifecycle.verifying import verify_fleet

    if run_lock_held(cluster.paths.root):
        unfinished = (
            f"a run is at work on {cluster.label} (`gpuprov status {cluster.typed_file} --watch`): "
            "what it has not finished yet"
        )
        print(f"{unfinished} is not healthy, and no node is moved by this verdict", file=sys.stderr)
    compared = diff.compare(cluster)
    for name in compared.unwanted:
        print(
            f"{name}: skipped, it is not in cluster.yaml any more; `gpuprov up {cluster.typed_file}` removes it",
            file=sys.stderr,
        )
    with _screen(as_json=as_json) as show:
        cluster.events.subscribe(show)
        verdict = verify_fleet(cluster, compared, only=nodes, level=level, save_baseline=save_baseline)
    if verdict.page is not None:
        print(f"report: {verdict.page}", file=sys.stderr)
    if verdict.saved is not None:
        _tell_saved(verdict.saved, cluster.paths.baseline)
    return verdict, cluster.spec.name


def _tell_saved(saved: Saved, file: Path) -> None:
    """What is in the record now, what was left out of it, and where it asks for less than before."""
    for name, reason in saved.left.items():
        print(f"baseline: {name} left out: {reason}", file=sys.stderr)
    for name, comparison in saved.slower.items():
        print(f"baseline: {name} is lower than its previous baseline: {comparison}", file=sys.stderr)
    destination = f"saved in {file}" if saved.saved else "nothing was saved"
    print(
        f"baseline: {len(saved.saved)} of {counted(len(saved.saved) + len(saved.left), 'node')}, {destination}",
        file=sys.stderr,
    )


def _screen(*, as_json: bool) -> AbstractContextManager[Subscriber]:
    """What is going on, where somebody looks at a terminal; elsewhere what a verdict did to nodes alone."""
    from provisioner.cli.display import Bars, display

    screen = display(quiet=as_json)
    return screen if isinstance(screen, Bars) else contextlib.nullcontext(_tell_quarantine)


def _tell_quarantine(event: Event) -> None:
    """What a verdict did to nodes is said even where nothing else is."""
    from provisioner.cli.display import print_event

    if event.stage == "quarantine" and event.kind in ("warning", "done"):
        print_event(event)


def facts(
    file: File = None,
    node: Annotated[str | None, typer.Argument(help="a node of FILE", show_default=False)] = None,
    bundle: BundleDir = None,
    host: Host = None,
    as_json: Json = False,
    sandbox: Sandbox = None,
) -> None:
    """Show the facts read from each tool, before any check. Exits with 1 if nothing could be read."""
    from provisioner.verify.facts import read
    from provisioner.verify.facts_document import facts_document

    _one_of(file, bundle, host)
    _of_a_fleet(file, sandbox, None)
    raw = _fetch(file, node, bundle, host, sandbox)
    node_facts = read(raw)
    document = facts_document(node_facts)
    if as_json:
        json_output.write(document)
    else:
        _print_facts(printable(document))
    nothing = not any(source.state == "read" for source in node_facts.sources.values())
    if nothing:
        print(single_line(raw.error) or "no file of the bundle could be read", file=sys.stderr)
    raise typer.Exit(Exit.CHECK_FAILED if nothing else Exit.OK)


def collect(
    file: Annotated[Path, typer.Argument(help="cluster.yaml")],
    node: Annotated[str, typer.Argument(help="a node of it")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the directory to write")],
    redact: Annotated[
        bool, typer.Option("--redact", help="Stand-ins for names, addresses, serial numbers and UUIDs.")
    ] = False,
    sandbox: Sandbox = None,
) -> None:
    """Fetch a node's raw outputs as a support bundle."""
    new = not output.exists()
    refuse_unwritable(output, "bundle")
    if any(output.iterdir()):
        raise GpuprovError("the directory is not empty", where=str(output), hint="pass a new directory")
    try:
        raw = _fetch(file, node, None, None, sandbox)
        if raw.error:
            raise GpuprovError(raw.error, where=node, hint="`gpuprov status` says where the node should be")
    except GpuprovError:
        if new:
            output.rmdir()
        raise
    if redact:
        from provisioner.verify.redact import redact as redacted

        raw, replaced = redacted(raw)
        print("replaced: " + ", ".join(f"{kind} {count}" for kind, count in replaced.items()), file=sys.stderr)
        print("kernel logs are free text: read them before you publish this", file=sys.stderr)
    raw.write(output)
    print(f"{counted(len(list(output.iterdir())), 'file')} in {output}", file=sys.stderr)


def _one_of(file: Path | None, bundle: Path | None, host: str | None) -> None:
    if sum(source is not None for source in (file, bundle, host)) != 1:
        raise GpuprovError(
            "pass exactly one of FILE, --bundle PATH and --host USER@ADDRESS",
            hint="for example `gpuprov verify cluster.yaml`, `gpuprov verify --bundle nvidia-smi.txt` or "
            "`gpuprov verify --host ubuntu@gpu7`",
        )


def _of_a_fleet(file: Path | None, sandbox: bool | None, nodes: Sequence[str] | None) -> None:
    """What says something of a fleet alone is refused beside one machine, and not passed over."""
    if file is None and sandbox is not None:
        option = "--sandbox" if sandbox else "--no-sandbox"
        hint = "a bundle, or a machine, says itself whether it is simulated"
        raise GpuprovError(f"{option} is for the fleet of a cluster.yaml", hint=hint)
    if file is None and nodes:
        raise GpuprovError("--node is for the fleet of a cluster.yaml", hint="a bundle, or a machine, is one node")


def _cluster(file: Path, sandbox: bool | None) -> Any:
    from provisioner.lifecycle.session import open_cluster

    return open_cluster(file, sandbox=sandbox)


def _fetch(file: Path | None, node: str | None, bundle: Path | None, host: str | None, sandbox: bool | None) -> Bundle:
    """The raw outputs of a node of a file, of a host, or in a directory."""
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.collect import collect as collect_all
    from provisioner.verify.request import request_for, unknown_machine_request

    if bundle is not None:
        return supplied_at(bundle).bundle
    if host is not None:
        return probe(host, unknown_machine_request())
    assert file is not None
    if node is None:
        raise GpuprovError("NODE is required: gpuprov facts FILE NODE")
    cluster = _cluster(file, sandbox)
    from provisioner.lifecycle.subjects import subjects_of

    subject = subjects_of(cluster, [cluster.node(node)])[0]
    if isinstance(subject.source, Bundle):
        return subject.source
    return collect_all({node: subject.source}, request_for(subject.expected))[node]


def _print_facts(document: dict[str, Any]) -> None:
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{key}:")
            for entry in value:
                values = ", ".join(f"{k} {v}" for k, v in entry.items() if v not in (None, "", []))
                print(f"  {single_line(values)}")
        elif value is not None:
            print(f"{key}: {json.dumps(value, default=str)}")
