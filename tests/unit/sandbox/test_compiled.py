"""Code out of a zip is compiled once on a node, and is what Python would compile."""

from __future__ import annotations

import marshal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

NODE = Path(__file__).parents[3] / "provisioner/sandbox/node/compiled.py"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
exec(compile(open(sys.argv[2]).read().replace("/var/cache/gpuprov-compiled/", sys.argv[3] + "/"), "compiled", "exec"))
import part
print(part.answer())
"""


def run(folder: Path, archive: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", PROGRAM, str(archive), str(NODE), str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def zipped(path: Path, answer: int) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr("part.py", f"def answer():\n    return {answer}\n")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def test_the_second_import_takes_what_the_first_compiled(tmp_path: Path, cache: Path) -> None:
    archive = zipped(tmp_path / "a.zip", 42)
    assert run(cache, archive).stdout == "42\n"
    (file,) = cache.iterdir()
    source = "def answer():\n    return 43\n"
    file.write_bytes(marshal.dumps(compile(source, "part.py", "exec")))
    assert run(cache, archive).stdout == "43\n"


def test_another_source_is_another_code(tmp_path: Path, cache: Path) -> None:
    assert run(cache, zipped(tmp_path / "a.zip", 42)).stdout == "42\n"
    assert run(cache, zipped(tmp_path / "b.zip", 44)).stdout == "44\n"
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff\x00"])
def test_what_is_damaged_or_cannot_be_kept_costs_nothing_but_time(tmp_path: Path, cache: Path, damage: bytes) -> None:
    archive = zipped(tmp_path / "a.zip", 42)
    run(cache, archive)
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert run(cache, archive).stdout == "42\n"
    assert run(tmp_path / "nowhere", archive).stdout == "42\n"
