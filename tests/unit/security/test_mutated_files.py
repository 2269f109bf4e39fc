"""The files of a run directory, as a hostile bucket, a killed run or a bad disk leaves them: what reads them gives an
answer or a told error, and never a traceback. `run_directory` is of a real sandbox; a file that once broke a reader
is kept in `breakers`, under the name of the file that it stood for."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle import baselines, diff, down, running_cost, status
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir import fleet
from provisioner.rundir.release import Ledger, assigned_releases
from provisioner.stack import lockfile
from provisioner.transport import ssh_pins
from tests.support.sandbox_cluster import ROOT

HERE = Path(__file__).parent
SEED = HERE / "run_directory"
FILES = sorted(str(path.relative_to(SEED)) for path in SEED.rglob("*") if path.is_file())
BREAKERS = sorted((HERE / "breakers").glob("*/*"))
FEW, MANY = 12, 600
VALUES = [
    b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 400, b'""', b'"x"', b"[]", b"{}", b"[[[[", b'"\\ud800"', b"\xff",
    b"\x00", b'"{{ 7*7 }}"', b'"../../x"', b'"-oProxyCommand=x"', b"{" * 5000, b'{"a":' * 3000,
    b'"' + b"a" * 70_000 + b'"',
]  # fmt: skip
READERS: dict[str, Callable[[Cluster], object]] = {
    "nodes": lambda cluster: fleet.load(cluster.paths),
    "pins": lambda cluster: ssh_pins.load_pins(cluster.paths),
    "lock": lambda cluster: lockfile.read(cluster.paths.lock_file),
    "releases": lambda cluster: assigned_releases(cluster.spec, Ledger(cluster.paths), cluster.nodes(), cluster.lock),
    "quarantine": lambda cluster: quarantine_book.load(cluster.paths),
    "replace": replace_journal.load,
    "upgrade": lambda cluster: upgrade_journal.load(cluster.paths),
    "baseline": lambda cluster: baselines.load(cluster.paths),
    "status": lambda cluster: json.dumps(status.status(cluster, ask=False).to_json()).encode(),
    "wanted": diff.compare,
    "spent": running_cost.so_far,
    "made": down.recorded_nodes,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("mutated")
    shutil.copy(ROOT / "examples" / "aws-p4d.yaml", folder / "cluster.yaml")
    shutil.copytree(SEED, folder / ".gpuprov" / "vision.sandbox")
    return open_cluster(folder / "cluster.yaml", sandbox=True)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A value put in another's place, a span left out, doubled or cut off, bytes changed."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        match rng.randrange(6):
            case 0:
                data = data[:at] + rng.choice(VALUES) + data[at:]
            case 1:  # a whole value: from a colon to the next comma or end of line
                start = data.find(b": ", at)
                end = min((p for p in (data.find(b",", start), data.find(b"\n", start)) if p > 0), default=len(data))
                data = data[: start + 2] + rng.choice(VALUES) + data[end:] if start > 0 else data
            case 2:
                data = data[:at] + data[min(to, at + 40) :]
            case 3:
                data = data[:at]
            case 4:
                data = data[:to] + data[at:to] + data[to:]
            case _:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def read_all(cluster: Cluster, name: str, content: bytes) -> None:
    path = cluster.paths.root / name
    path.write_bytes(content)
    try:
        for reader_name, reader in READERS.items():
            fresh = Cluster(cluster.file, cluster.spec, cluster.paths)
            try:
                reader(fresh)
            except GpuprovError as error:
                assert str(error), reader_name
            except Exception as error:
                raise AssertionError(
                    f"{reader_name} of {name}: {type(error).__name__}: {error}\n{content[:3000]!r}"
                ) from error
    finally:
        path.write_bytes((SEED / name).read_bytes())


def test_the_seed_is_read_by_all(cluster: Cluster) -> None:
    for reader_name, reader in READERS.items():
        assert reader(Cluster(cluster.file, cluster.spec, cluster.paths)) is not None or reader_name in (
            "baseline",
            "spent",
        )


@pytest.mark.parametrize("name", FILES)
def test_a_mutated_file_is_told(name: str, cluster: Cluster) -> None:
    rng = random.Random(name)
    for _ in range(FEW):
        read_all(cluster, name, mutate((SEED / name).read_bytes(), rng))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_mutations(name: str, cluster: Cluster) -> None:
    rng = random.Random(f"many {name}")
    for _ in range(MANY):
        read_all(cluster, name, mutate((SEED / name).read_bytes(), rng))


@pytest.mark.parametrize("file", BREAKERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_broke_a_reader(file: Path, cluster: Cluster) -> None:
    read_all(cluster, file.parent.name.replace("__", "/"), file.read_bytes())
