"""`--bundle` and `--host`: machines that gpuprov did not make, or what was saved of one."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from provisioner.common.errors import GpuprovError
from provisioner.common.text import one_line

if TYPE_CHECKING:
    from provisioner.catalog import Catalog
    from provisioner.catalog.models import Gpu, Machine
    from provisioner.output.report import BundleOutput
    from provisioner.verify.bundle import Bundle
    from provisioner.verify.facts import Facts
    from provisioner.verify.request import ProbeRequest
    from provisioner.verify.subject import Subject
    from provisioner.verify.support_bundle import Supplied

Level = Literal["quick", "standard", "stress"]


def of_no_fleet(
    bundle: Path | None, host: str | None, machine: str | None, level: Level, machines: Path | None = None
) -> tuple[list[Subject], Supplied | None]:
    """Machines that gpuprov did not make, or what was saved of one. Those of a range are a group. `machines`: a file of
    machine types besides those of the catalogue."""
    from provisioner.catalog import load
    from provisioner.spec.machine_types import extended
    from provisioner.verify.expectations import expect, expect_no_machine
    from provisioner.verify.request import request_for, unknown_machine_request
    from provisioner.verify.subject import Subject

    catalog = extended(load(), machines)
    if machine is None and machines is not None:
        described = [row.name for row in catalog.machines() if row.basis.user]
        machine = described[0] if len(described) == 1 else None
    supplied = supplied_at(bundle, without_outputs=True) if bundle is not None else None
    hosts = _expanded(host) if host is not None else []
    scouted: Bundle | None = None
    if machine is not None:
        kind = _Kind(catalog.machine(machine))
    else:
        # Of a range the first says what all are: they are compared with each other as a group.
        scouted = supplied.bundle if supplied is not None else probe(hosts[0], unknown_machine_request())
        hints = supplied.told if supplied is not None else ""
        quiet = supplied is not None and supplied.is_unrecognised
        kind = _Kind(None) if quiet else _kind(scouted, hints, catalog, several=hosts[1:] != [])
    row = kind.row
    if row is None and supplied is None:
        level = "quick"
        print("level quick: nothing is started on a machine of no known type", file=sys.stderr)
    if row is None:
        expected = expect_no_machine(kind.vendor, catalog, gpu=kind.gpu, level=level)
    else:
        expected = expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level=level)
    if supplied is not None and bundle is not None:
        raw = supplied.bundle
        managed: dict[str, Any] | None = {} if "bmc.json" in raw.files else None
        as_found = replace(expected, simulated=raw.simulated, bmc=managed)
        name = "pasted" if bundle == STANDARD_INPUT else one_line(bundle.absolute().name)
        return [Subject(name, "", "", row.name if row else "", raw, as_found)], supplied
    if row is None:
        assert scouted is not None
        as_found = replace(expected, simulated=scouted.simulated)
        return [Subject(hosts[0], "", "", "", scouted, as_found)], None
    if len(hosts) > 1:
        transports = {address: target(address) for address in hosts}
        return [
            Subject(n, row.name, "", row.name, transport, expected, host_spec=f"ssh://{n}")
            for n, transport in transports.items()
        ], None
    connection = "local://" if host == "local" else f"ssh://{hosts[0]}"
    probed = probe(hosts[0], request_for(expected))
    as_found = replace(expected, simulated=probed.simulated)
    reach = target(hosts[0])
    return [Subject(hosts[0], "", "", row.name, probed, as_found, host_spec=connection, reach=reach)], None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a machine is: its row of the catalogue, else who made its GPUs and which they are."""

    row: Machine | None
    vendor: Literal["nvidia", "amd"] = "nvidia"
    gpu: Gpu | None = None


def _kind(scouted: Bundle, hints: str, catalog: Catalog, *, several: bool) -> _Kind:
    """What the outputs tell, said on standard error. Raises GpuprovError where they do not tell the type of `several`
    hosts."""
    from provisioner.verify.facts import read
    from provisioner.verify.support_bundle.machine import identify

    facts = read(scouted)
    try:
        row, origin_text = identify(facts, hints, catalog)
    except GpuprovError as error:
        if several:
            hint = "pass --machine TYPE (`gpuprov catalog` lists the types), or one host at a time"
            raise GpuprovError(f"machine: not known ({error.message})", hint=hint) from None
        vendor = _vendor(facts, scouted)
        gpu = _gpu(facts, vendor, catalog)
        model = f"; GPU: {gpu.model}, by its name" if gpu is not None else ""
        reason = one_line(error.message, 1000)
        print(f"machine: not known ({reason}); judged is what needs none{model}", file=sys.stderr)
        return _Kind(None, vendor, gpu)
    print(f"machine: {row.name}, from {one_line(origin_text)}", file=sys.stderr)
    return _Kind(row)


def _vendor(facts: Facts, bundle: Bundle) -> Literal["nvidia", "amd"]:
    """Who made the GPUs, by what lists them or by the driver that the kernel's log names."""
    log = bundle.files["dmesg.txt"].text if "dmesg.txt" in bundle.files else ""
    logged = "amdgpu" in log and "NVRM" not in log
    return "amd" if facts.smi is None and (facts.rocm is not None or logged) else "nvidia"


def _gpu(facts: Facts, vendor: Literal["nvidia", "amd"], catalog: Catalog) -> Gpu | None:
    """The catalogue's one model of which all listed GPUs are; a name that a table has cut says too little."""
    from provisioner.verify.products import CUT, products

    listed = facts.gpus or (facts.rocm.gpus if facts.rocm is not None else ())
    names = {gpu.model for gpu in listed if gpu.model}
    names = names or {links.model for links in (facts.nvlinks or {}).values() if links.model}
    models = products(names, [row for row in catalog.gpus() if row.vendor == vendor])
    is_cut = any(name.endswith(CUT) for name in names)
    return models[0] if names and not is_cut and len(models) == 1 else None


def _expanded(host: str) -> list[str]:
    """The hosts of a range, each once; a host itself."""
    from provisioner.spec.ranges import expand

    if re.search(r"[^:\]]:[0-9]+$", host):
        raise GpuprovError(
            f"--host {host} has a port", where="--host", hint="the port is ~/.ssh/config's: `Host` NAME, `Port` NUMBER"
        )
    if not host.rpartition("@")[2]:
        raise GpuprovError("--host names no machine", where="--host", hint="--host USER@ADDRESS, or --host local")
    try:
        return list(dict.fromkeys(expand(host)))
    except ValueError as error:
        hint = "a host, or a range such as ubuntu@dgx[01-16].lab"
        raise GpuprovError(f"--host: {error}", where=host, hint=hint) from None


STANDARD_INPUT = Path("-")
NO_OUTPUT = "nothing in it is the output of a tool that gpuprov reads"
BUNDLES = "`gpuprov docs verify bundles`"
LISTED = 1000
"""Pieces of a bundle in JSON, of each kind: a session can have hundreds of thousands of commands."""
SHOWN = 20
"""Lines of what was placed, and of what was not."""


def supplied_at(path: Path, *, without_outputs: bool = False) -> Supplied:
    """What lies at --bundle, and on standard error which texts were recognised as what. Raises GpuprovError where none
    was, unless `without_outputs`."""
    from provisioner.lifecycle.bmc_facts import with_tree
    from provisioner.verify.support_bundle import read

    supplied = _from_standard_input() if path == STANDARD_INPUT else read(path)
    if path.is_dir():
        supplied = replace(supplied, bundle=with_tree(supplied.bundle, path))
    # A table is kept in the form of a tool's other output (nvidia-smi.xml): the tool's name is what was read.
    used = [f"read as {Path(file).stem}: {one_line(piece)}" for piece, file in supplied.placed]
    unused = [f"not used: {one_line(piece)}: {one_line(reason)}" for piece, reason in supplied.unplaced]
    for lines, label in ((used, "read"), (unused, "not used")):
        more = [f"{label}: {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        for line in (*lines[:SHOWN], *more):
            print(line, file=sys.stderr)
    if supplied.is_unrecognised and not without_outputs:
        raise GpuprovError(NO_OUTPUT, where=str(path), hint=f"{BUNDLES} lists them")
    return supplied


def _from_standard_input() -> Supplied:
    """What is pasted or piped, as if it were a file."""
    from provisioner.verify.support_bundle import read
    from provisioner.verify.support_bundle.budget import TOTAL

    if sys.stdin.isatty():
        print("paste the outputs, then Ctrl-D on a line of its own", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gpuprov-paste-") as folder:
        pasted = Path(folder) / "pasted"
        size = 0
        with pasted.open("wb") as file:
            while block := sys.stdin.buffer.read(1 << 20):
                size += len(block)
                if size > TOTAL:
                    raise GpuprovError(f"larger than {TOTAL >> 20} MiB", where="standard input")
                file.write(block)
        if not size:
            raise GpuprovError("nothing came in", where="standard input", hint="dmesg | gpuprov verify --bundle -")
        try:
            return read(pasted)
        except GpuprovError as error:
            raise GpuprovError(error.message, where="standard input", hint=error.hint) from error


def target(host: str) -> tuple[str, ...]:
    """The argv prefix that runs a shell command there. The host key must be in the user's known_hosts already."""
    if host == "local":
        return ("sh", "-c")
    if host.startswith("-") or any(c.isspace() for c in host):
        raise GpuprovError(f"invalid host {host!r}", hint="--host USER@ADDRESS, or --host local")
    if "[" in host:
        raise GpuprovError(f"{host!r} is a range of hosts", hint="one at a time; `gpuprov verify` takes a range")
    return ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15", "--", host)


def probe(host: str, request: ProbeRequest) -> Bundle:
    """The raw outputs of a host that gpuprov did not make. GpuprovError where its key is not the pinned one."""
    from provisioner.transport.ssh_failure import CHANGED_KEY
    from provisioner.verify.collect import collect

    raw = collect({host: target(host)}, request)[host]
    if "Host key verification failed" in raw.error:
        address = host.rpartition("@")[2]
        if CHANGED_KEY in raw.error:
            raise GpuprovError(
                "host key verification failed: not the key in known_hosts; possible man-in-the-middle attack",
                where=host,
                hint="nothing was sent to it. If the machine was reinstalled: `ssh-keygen -R "
                f"{shlex.quote(address)}`, and compare the new key's fingerprint with that on its console",
            )
        pin = f"ssh-keyscan {shlex.quote(address)} >> ~/.ssh/known_hosts, after comparing the key's fingerprint"
        raise GpuprovError("host key is not in known_hosts", where=host, hint=pin)
    return raw


def origin(supplied: Supplied | None) -> BundleOutput | None:
    """What the bundle was made of, where it was told by content."""
    if supplied is None or not supplied.foreign:
        return None
    from provisioner.output.report import BundleOutput, PlacedPiece, UnplacedPiece

    placed = [PlacedPiece.model_validate({"from": piece, "file": file}) for piece, file in supplied.placed]
    unplaced = [UnplacedPiece.model_validate({"from": piece, "why": reason}) for piece, reason in supplied.unplaced]
    document = BundleOutput(placed=placed[:LISTED], unplaced=unplaced[:LISTED])
    if len(placed) > LISTED:
        document.placed_omitted = len(placed) - LISTED
    if len(unplaced) > LISTED:
        document.unplaced_omitted = len(unplaced) - LISTED
    return document
