"""`gpuprov verify`, `facts`, `collect`: prove a fleet, one machine or a bundle; show or fetch what the tools say."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from provisioner.cli import answer, tables
from provisioner.errors import Exit, GpuprovError
from provisioner.printable import printable

if TYPE_CHECKING:
    from provisioner.events import Event, Subscriber
    from provisioner.lifecycle.baselines import Saved
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.request import ProbeRequest
    from provisioner.verify.results import Report
    from provisioner.verify.run import Subject

Level = Literal["quick", "standard", "stress"]
File = Annotated[Path | None, typer.Argument(help="cluster.yaml", show_default=False)]
BundleDir = Annotated[Path | None, typer.Option("--bundle", help="a directory of raw outputs", show_default=False)]
Host = Annotated[str | None, typer.Option("--host", help="USER@ADDRESS, or local", show_default=False)]
MachineName = Annotated[str | None, typer.Option("--machine", help="what the machine is: a catalogue name")]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on standard output")]
Sandbox = Annotated[bool | None, typer.Option("--sandbox/--no-sandbox", help="the rehearsal, or the real fleet")]


def verify(
    file: File = None,
    bundle: BundleDir = None,
    host: Host = None,
    machine: MachineName = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="only this node; may be given again")] = None,
    level: Annotated[Level | None, typer.Option("--level", help="quick, standard or stress")] = None,
    report: Annotated[Path | None, typer.Option("--report", help="write report.json, .xml and .html here")] = None,
    as_json: Json = False,
    sandbox: Sandbox = None,
    save_baseline: Annotated[
        bool, typer.Option("--save-baseline", help="what healthy nodes reach now is what they are held to from now on")
    ] = False,
) -> None:
    """Prove the fleet of FILE again, one machine (--host) or a bundle (--bundle). Exit status 1: not healthy."""
    from provisioner.events import Events
    from provisioner.verify.run import verify as run

    _one_of(file, bundle, host)
    unkept: list[str] = []
    if report is not None:
        _room(report)
    if save_baseline and file is None:
        raise GpuprovError("--save-baseline is for a fleet: give FILE")
    if file is not None:
        found, healthy, title, previous = _fleet(
            file, sandbox, node, level, unkept, saving=save_baseline, as_json=as_json
        )
    else:
        subject = _lone(bundle, host, machine, level or ("standard" if host else "quick"))
        with _screen(as_json=as_json) as show:
            found = run([subject], events=Events(show))
        healthy, title, previous = found.ok, subject.name, None
    if report is not None:
        from provisioner.verify.report import write

        with _kept(unkept):
            print(f"report: {write(found, report, title=title, previous=previous)}", file=sys.stderr)
    if as_json:
        answer.give(found.to_json() | {"ok": healthy})
    else:
        from provisioner.verify.report.terminal import table

        tables.show(table(found))
    for trouble in unkept:
        print(f"gpuprov: the verdict above could not be written down: {trouble}", file=sys.stderr)
    raise typer.Exit(Exit.CHECK_FAILED if not healthy else Exit.BAD_INPUT if unkept else Exit.OK)


def _fleet(
    file: Path,
    sandbox: bool | None,
    node: list[str] | None,
    level: Level | None,
    unkept: list[str],
    *,
    saving: bool,
    as_json: bool,
) -> tuple[Report, bool, str, str | None]:
    """Prove the nodes of a fleet and act on the verdict: the report, whether it is enough, the fleet's name, and where
    the report before it is. `unkept` gets why something could not be written down."""
    from provisioner.lifecycle import baselines, quarantine, wanted
    from provisioner.verify.report import write
    from provisioner.verify.run import verify as run

    cluster = _cluster(file, sandbox)
    looked = wanted.wanted(cluster)
    machines = list(looked.here)
    for name in looked.unwanted:
        print(f"{name}: not looked at, cluster.yaml wants it no more: `gpuprov up` removes it", file=sys.stderr)
    deep = level or cluster.spec.verify.level
    if saving and deep == "quick":
        raise GpuprovError("level quick measures nothing that could be saved", hint="--level standard, or stress")
    subjects = [_at(subject, level) for subject in _chosen(cluster.subjects(machines), node)]
    subjects = baselines.beside(cluster, subjects, machines)
    checks = [file.absolute().parent / path for path in cluster.spec.verify.checks]
    saved = None
    with _screen(as_json=as_json) as show:
        cluster.events.subscribe(show)
        found = run(subjects, checks=checks, events=cluster.events)
        with _kept(unkept), cluster.noted("verify") as holding:
            found = baselines.note(cluster, found, machines, deep)
            saved = baselines.save(cluster, found, machines, deep) if saving else None
            found = quarantine.after_verdict(cluster, found, machines, deep, holding=holding)
            cluster.note_verdicts(found)
    previous = cluster.state().get("report")
    judged = found
    if not node:
        found = replace(found, nodes=(*found.nodes, *wanted.unseen(cluster, looked)))
    if machines and not node:
        with _kept(unkept):
            page = write(found, cluster.run_dir(), title=cluster.spec.name, previous=previous)
            cluster.note_verdicts(judged, page)
            print(f"report: {page}", file=sys.stderr)
    healthy = found.enough("100%" if node else cluster.spec.verify.min_healthy)
    if saved is not None:
        _tell_saved(saved, cluster.paths.baseline)
    return found, healthy, str(cluster.spec.name), previous


def _room(folder: Path, what: str = "report") -> None:
    """Raises GpuprovError where nothing can be written."""
    from provisioner.paths import private_dir

    try:
        private_dir(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        if folder.is_file():
            reason = "it is a file"
        raise GpuprovError(f"no {what} can be written: {reason}", where=str(folder), hint="give a directory") from None


@contextlib.contextmanager
def _kept(troubles: list[str]) -> Iterator[None]:
    """A verdict that took minutes is told also where a full disk keeps it from being written; the list says why."""
    try:
        yield
    except OSError as error:
        troubles.append(str(error))


def _tell_saved(saved: Saved, file: Path) -> None:
    """What is in the record now, what was left out of it, and where it asks for less than before."""
    for name, why in saved.left.items():
        print(f"baseline: {name} left out: {why}", file=sys.stderr)
    for name, what in saved.slower.items():
        print(f"baseline: {name} is held to less than before: {what}", file=sys.stderr)
    where = f"saved in {file}" if saved.saved else "nothing was saved"
    print(f"baseline: {len(saved.saved)} of {len(saved.saved) + len(saved.left)} nodes, {where}", file=sys.stderr)


def _screen(*, as_json: bool) -> AbstractContextManager[Subscriber]:
    """What is going on, where somebody looks at a terminal; elsewhere what a verdict did to nodes alone."""
    from provisioner.cli.display import Bars, display

    screen = display(quiet=as_json)
    return screen if isinstance(screen, Bars) else contextlib.nullcontext(_tell_quarantine)


def _tell_quarantine(event: Event) -> None:
    """What a verdict did to nodes is said even where nothing else is."""
    if event.stage == "quarantine" and event.kind in ("warning", "done"):
        print(f"{event.node}: {event.message}" if event.node else event.message, file=sys.stderr)


def facts(
    file: File = None,
    node: Annotated[str | None, typer.Argument(help="a node of FILE", show_default=False)] = None,
    bundle: BundleDir = None,
    host: Host = None,
    as_json: Json = False,
    sandbox: Sandbox = None,
) -> None:
    """Show what was read, tool by tool, before any judgement. Exit status 1: nothing could be read."""
    from provisioner.verify.facts import read
    from provisioner.verify.facts_document import facts_document

    _one_of(file, bundle, host)
    raw = _fetch(file, node, bundle, host, sandbox)
    found = read(raw)
    document = facts_document(found)
    if as_json:
        answer.give(document)
    else:
        _print_facts(printable(document))
    nothing = not any(source.state == "read" for source in found.sources.values())
    if nothing:
        print(printable(raw.error) or "no file of the bundle could be read", file=sys.stderr)
    raise typer.Exit(Exit.CHECK_FAILED if nothing else Exit.OK)


def collect(
    file: Annotated[Path, typer.Argument(help="cluster.yaml")],
    node: Annotated[str, typer.Argument(help="a node of it")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the directory to write")],
    sandbox: Sandbox = None,
) -> None:
    """Fetch a node's raw outputs as a support bundle."""
    _room(output, "bundle")
    if any(output.iterdir()):
        raise GpuprovError("there is something in it", where=str(output), hint="give a new directory")
    raw = _fetch(file, node, None, None, sandbox)
    if raw.error:
        raise GpuprovError(raw.error, where=node, hint="`gpuprov status` says where the node should be")
    raw.write(output)
    print(f"{len(raw.files)} files in {output}", file=sys.stderr)


def _one_of(file: Path | None, bundle: Path | None, host: str | None) -> None:
    if sum(given is not None for given in (file, bundle, host)) != 1:
        raise GpuprovError("give one of FILE, --bundle DIRECTORY and --host USER@ADDRESS")


def _cluster(file: Path, sandbox: bool | None) -> Any:
    from provisioner.session import open_cluster

    return open_cluster(file, sandbox=sandbox)


def _chosen(subjects: Sequence[Subject], nodes: Sequence[str] | None) -> list[Subject]:
    """The named subjects, or all. GpuprovError for a name that none has."""
    names = {subject.name for subject in subjects}
    for name in nodes or ():
        if name not in names:
            _no_node(name, names)
    return [subject for subject in subjects if not nodes or subject.name in nodes]


def _no_node(name: str, names: set[str]) -> NoReturn:
    from rapidfuzz import process

    near = process.extractOne(name, names, score_cutoff=60) if names else None
    hint = f"did you mean {near[0]}?" if near else f"nodes: {', '.join(sorted(names)[:10]) or 'none'}"
    raise GpuprovError(f"there is no node {name!r}", hint=hint)


def _at(subject: Subject, level: Level | None) -> Subject:
    return replace(subject, expected=replace(subject.expected, level=level)) if level else subject


def _lone(bundle: Path | None, host: str | None, machine: str | None, level: Level) -> Subject:
    """One machine that gpuprov did not make, or its bundle."""
    from provisioner.catalog import load
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.expectations import expect
    from provisioner.verify.request import request_for
    from provisioner.verify.run import Subject

    if machine is None:
        raise GpuprovError("--machine is missing: what should it be?", hint="`gpuprov catalog` lists the names")
    catalog = load()
    row = catalog.machine(machine)
    expected = expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level=level)
    if bundle is not None:
        read = Bundle.read(bundle)
        return Subject(bundle.absolute().name, "", "", machine, read, replace(expected, simulated=read.simulated))
    assert host is not None
    connection = "local://" if host == "local" else f"ssh://{host}"
    found = _probe(host, request_for(expected))
    as_found = replace(expected, simulated=found.simulated)
    return Subject(host, "", "", machine, found, as_found, host_spec=connection, reach=_target(host))


def _target(host: str) -> tuple[str, ...]:
    """The argv prefix that runs a shell command there. The host key must be in the user's known_hosts already."""
    if host == "local":
        return ("sh", "-c")
    if host.startswith("-") or any(c.isspace() for c in host):
        raise GpuprovError(f"not a host: {host!r}", hint="--host USER@ADDRESS, or --host local")
    return ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15", "--", host)


def _probe(host: str, request: ProbeRequest) -> Bundle:
    """The raw outputs of a host that gpuprov did not make. GpuprovError where its key is not the pinned one."""
    from provisioner.verify.collect import collect as probe

    raw = probe({host: _target(host)}, request)[host]
    if "Host key verification failed" in raw.error:
        address = host.rpartition("@")[2]
        if "has changed" in raw.error:
            raise GpuprovError(
                "its host key is not that of your known_hosts: another machine answers there, or somebody in between",
                where=host,
                hint="nothing was asked of it. Only where you know that the machine was made anew: `ssh-keygen -R "
                f"{shlex.quote(address)}`, and compare the new key's fingerprint with what its console says",
            )
        pin = f"ssh-keyscan {shlex.quote(address)} >> ~/.ssh/known_hosts, after comparing the key's fingerprint"
        raise GpuprovError("its host key is not in your known_hosts", where=host, hint=pin)
    return raw


def _fetch(file: Path | None, node: str | None, bundle: Path | None, host: str | None, sandbox: bool | None) -> Bundle:
    """The raw outputs of a node of a file, of a host, or in a directory."""
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.collect import collect as probe
    from provisioner.verify.request import request_for, unknown_machine_request

    if bundle is not None:
        return Bundle.read(bundle)
    if host is not None:
        return _probe(host, unknown_machine_request())
    assert file is not None
    if node is None:
        raise GpuprovError("which node? gpuprov facts FILE NODE")
    cluster = _cluster(file, sandbox)
    subject = cluster.subjects([cluster.node(node)])[0]
    if isinstance(subject.source, Bundle):
        return subject.source
    return probe({node: subject.source}, request_for(subject.expected))[node]


def _print_facts(document: dict[str, Any]) -> None:
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{key}:")
            for entry in value:
                print("  " + ", ".join(f"{k} {v}" for k, v in entry.items() if v not in (None, "", [])))
        elif value is not None:
            print(f"{key}: {json.dumps(value, default=str)}")
