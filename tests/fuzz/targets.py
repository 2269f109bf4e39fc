"""What is fuzzed: each reader with the files that it is fed. Whatever a target raises is a defect: what its reader may
raise is caught here."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioner import spec
from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images.vulnerabilities import NotScannedError
from provisioner.lifecycle.images.vulnerabilities import parse as parse_scan
from provisioner.machines.providers.baremetal import inventory
from provisioner.machines.providers.first_boot import BEGIN, END, host_key_of
from provisioner.machines.redfish import tree
from provisioner.machines.redfish.document import of_tree
from provisioner.rundir import fleet
from provisioner.stack import lockfile, package_index
from provisioner.verify.collect import decode
from provisioner.verify.parsers import Unreadable
from provisioner.verify.report import restore
from provisioner.verify.support_bundle import read
from provisioner.verify.support_bundle.budget import Budget
from provisioner.verify.support_bundle.pieces import pieces
from provisioner.verify.tools import FILES
from tests.support import healthy_bundle
from tests.support.sandbox_cluster import ROOT

UNIT = ROOT / "tests" / "unit"
CAPTURES = UNIT / "verify" / "captures"
SMALL = 8 << 20
"""Bytes of the budget under which archives are opened here, so that a breach of it shows."""


KEY = "ssh-ed25519 " + "A" * 68


class BreachError(AssertionError):
    """A reader took more than its budget."""


@dataclass(frozen=True, slots=True)
class Target:
    """`corpus`: name → content; `run` is given each edited content."""

    corpus: Mapping[str, bytes]
    run: Callable[[bytes], object]


def targets() -> dict[str, Target]:
    """Name → target."""
    captures = {
        str(path.relative_to(CAPTURES)): path.read_bytes() for path in files(CAPTURES) if path.suffix != ".yaml"
    }
    table = {f"parser {name}": target for name, target in sorted(_parsers(captures).items())}
    texts = Target({name: raw for name, raw in captures.items() if len(raw) < 100_000}, _bundle("b.txt"))
    return table | {"bundle of one text": texts} | _archives(captures) | _documents()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _parsers(captures: Mapping[str, bytes]) -> dict[str, Target]:
    healthy = {machine: healthy_bundle.healthy(machine) for machine in healthy_bundle.ALL}
    table: dict[str, Target] = {}
    for file, tool in FILES.items():
        module = tool.parse.__module__.rpartition(".")[2]
        corpus = {name: raw for name, raw in captures.items() if name.startswith(f"{module}/")}
        corpus |= {
            f"{machine}/{file}": str(texts[file]).encode() for machine, texts in healthy.items() if file in texts
        }
        corpus = corpus or {"written": json.dumps(WRITTEN[file] if file in WRITTEN else _bmc()).encode()}
        name = f"{module}.{getattr(tool.parse, '__name__', 'parse')}"
        known = table.get(name)
        table[name] = Target({**(known.corpus if known else {}), **corpus}, _parser(tool.parse))
    return table


WRITTEN: dict[str, dict[str, object]] = {
    "imex.json": {"status": "UP", "nodes": {"0": {"host": "10.0.0.1", "status": "READY", "connections": {
        "1": {"host": "10.0.0.2", "status": "CONNECTED"}}}}},
    "interruption.json": {"hook": "ab12", "record": json.dumps({
        "notice": {"action": "terminate", "time": "2026-01-01T00:00:00Z", "seen": 1.0}, "withdrawn": None,
        "rebalance": {"time": "x"}, "hook": {"notice": "a", "state": "done", "status": 0, "output": ["x"]}})},
    "shared.json": {"/efs": {"mounted": "fs-1:/ /efs nfs4 rw,hard 0 0", "serves": "x", "written": {"rc": 0},
                             "answers": {"rc": 0, "seconds": 0.1, "timed_out": False, "error": ""}}},
    "stamp.json": {"node": "train-0", "roles": {"nccl": {"digest": "ab", "installed": "c", "configured": "d"}}},
}  # fmt: skip
"""Files of a bundle of which there is no capture, as their parsers describe them."""


def _bmc() -> dict[str, object]:
    (path, *_) = files(UNIT / "machines" / "redfish" / "trees")
    return of_tree(tree.saved(path))


def _parser(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    def run(content: bytes) -> object:
        try:
            return parse(content.decode("utf-8", "replace"))
        except Unreadable:
            return None

    return run


def _bundle(name: str) -> Callable[[bytes], object]:
    """Both halves of reading a bundle: what is unpacked, and what is made of it."""

    def run(content: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            try:
                size = sum(len(piece.text) for piece in pieces(path, Budget(size=SMALL, members=2000)))
                if size > SMALL:
                    raise BreachError(f"{size} characters came out of a budget of {SMALL}")
            except GpuprovError:
                pass
            try:
                return read(path)
            except GpuprovError:
                return None

    return run


def _archives(captures: Mapping[str, bytes]) -> dict[str, Target]:
    """Archives of a few small captures, some of them compressed once more."""
    chosen = {name.replace("/", "-"): raw for name, raw in captures.items() if len(raw) < 3000}
    parts = [dict(list(chosen.items())[at : at + 5]) for at in range(0, min(len(chosen), 30), 5)]
    for number, part in enumerate(parts):
        name, raw = next(iter(part.items()))
        part[f"{name}.z"] = (gzip.compress, bz2.compress, lzma.compress)[number % 3](raw)
    plain = {f"tar{number}-{form}": _tar(part, form) for number, part in enumerate(parts) for form in FORMS}
    packed = {f"{name}.gz": gzip.compress(raw, mtime=0) for name, raw in plain.items()}
    packed |= {f"{name}.bz2": bz2.compress(raw) for name, raw in plain.items()}
    packed |= {f"{name}.xz": lzma.compress(raw) for name, raw in plain.items()}
    zips = {f"zip{number}": _zip(part) for number, part in enumerate(parts)}
    run = _bundle("b")
    return {
        "bundle tar": Target(plain, lambda content: run(with_checksums(content))),
        "bundle tar.gz": Target(plain, lambda content: run(gzip.compress(with_checksums(content), 1))),
        "bundle packed": Target(packed, run),
        "bundle zip": Target(zips, run),
    }


FORMS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)


def _tar(parts: Mapping[str, bytes], form: int) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        for name, raw in parts.items():
            info = tarfile.TarInfo(name + "n" * 120)  # a long name is a header of its own
            info.size, info.pax_headers = len(raw), {"comment": "x"}
            archive.addfile(info, io.BytesIO(raw))
    return content.getvalue()


def with_checksums(content: bytes) -> bytes:
    """A tar whose edited headers are taken for whole: the sum of each is right (pax(1), ustar Interchange Format)."""
    blocks = bytearray(content)
    for at in range(0, len(blocks) - 511, 512):
        if blocks[at + 257 : at + 262] == b"ustar":
            blocks[at + 148 : at + 156] = b" " * 8
            blocks[at + 148 : at + 156] = f"{sum(blocks[at : at + 512]):06o}\0 ".encode()
    return bytes(blocks)


def _zip(parts: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in parts.items():
            archive.writestr(zipfile.ZipInfo(name), raw)
    return content.getvalue()


def _documents() -> dict[str, Target]:
    """What else other people write: locks, states, saved trees, scanners' reports, package lists, a node's answer."""
    directory = UNIT / "security" / "run_directory"
    trees = {path.name: gzip.decompress(path.read_bytes()) for path in files(UNIT / "machines" / "redfish" / "trees")}
    answer = {"files": {"topo.txt": {"text": "x", "rc": 0, "seconds": 1.0}}, "error": "", "collected": 1.0}
    examples = [path for path in files(ROOT / "examples") if path.suffix == ".yaml"]
    scans = [path for path in files(UNIT / "lifecycle" / "images" / "scans") if path.suffix == ".json"]
    packages = (
        b"Package: cuda\nVersion: 12.4.1-1\nDepends: libc6 (>= 2.31), a | b\nSHA256: " + b"ab" * 32 + b"\nSize: 7\n"
    )
    hosts = (
        b"[train]\ndgx[01:04].lab ansible_host=10.0.0.1 ansible_port=22 serial=A1 mac=b8:59:9f:00:00:01\nn1 jump=b\n"
    )
    report = {"ok": True, "nodes": [{"name": "n", "group": "g", "site": "s", "machine": "m", "checks": [
        {"id": "gpu.count", "severity": "fatal", "status": "fail", "action": "replace", "message": "x"}]}]}  # fmt: skip
    return {
        "cluster.lock": Target(
            {"lock": (directory / "cluster.lock").read_bytes()}, _text(lambda text: lockfile.parse(text, "x"))
        ),
        "cluster.yaml": Target({path.name: path.read_bytes() for path in examples}, _file("cluster.yaml", spec.check)),
        "nodes.json": Target({"nodes": (directory / "nodes.json").read_bytes()},
                             lambda raw: _unless(lambda: fleet.parse(stored.loads(raw)), ValueError)),
        "redfish tree": Target(trees, _file("x.redfish.json", lambda path: of_tree(tree.saved(path)))),
        "scanner report": Target({path.name: path.read_bytes() for path in scans},
                                 _text(lambda text: parse_scan(text, "debian-12"), NotScannedError)),
        "inventory": Target({"hosts": hosts},
                            _file("hosts", lambda path: inventory.read(str(path)), inventory.InventoryError)),
        "node's answer": Target({"answer": gzip.compress(json.dumps(answer).encode(), mtime=0),
                                 "plain": json.dumps(answer).encode()}, decode),
        "console": Target({"keys": f"x\n{BEGIN}\n{KEY}\n{END}\nlogin:".encode()},
                          lambda content: host_key_of(content.decode("utf-8", "replace"))),
        "package list": Target({"one": packages},
                               _text(lambda text: [package_index.read(part, "cuda") for part in text.split("\n\n")])),
        "report.json": Target({"report": json.dumps(report).encode()},
                              _file("report.json", lambda path: restore.write_page(path.parent, "x"))),
    }  # fmt: skip


def _unless(run: Callable[[], object], *errors: type[Exception]) -> object:
    try:
        return run()
    except (GpuprovError, *errors):
        return None


def _text(run: Callable[[str], object], *errors: type[Exception]) -> Callable[[bytes], object]:
    return lambda content: _unless(lambda: run(content.decode("utf-8", "replace")), *errors)


def _file(name: str, run: Callable[[Path], object], *errors: type[Exception]) -> Callable[[bytes], object]:
    def on(content: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(content)
            return _unless(lambda: run(Path(folder) / name), *errors)

    return on
