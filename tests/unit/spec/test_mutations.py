"""Files that nobody wrote on purpose: 5,000 mutations and random documents. Each loads or raises InputError."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner import spec
from provisioner.common.errors import InputError
from provisioner.spec import schema
from provisioner.spec.models import ClusterSpec

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MUTATIONS = 5_000
THROUGH_THE_CLI = 4

BYTES = [bytes([b]) for b in range(256)]
TOKENS = [
    b"\t", b"\n", b"\r", b"  ", b": ", b"- ", b"&a ", b"*a", b"<<: *a\n", b"!!str ", b"!!python/object:os.system ",
    b"[", b"]", b"{", b"}", b'"', b"'", b"#", b"|", b">", b"---\n", b"...\n", b"%", b"@", b"`", b"?", b"? ", b",",
    b"null", b"true", b"yes", b"~", b"0x10", b"017", b"2.10", b"-1", b"1e999", b".nan", b"9" * 40,
    b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xe2\x80\xa8", b"\xf0\x9f\x92\xa9", b'"\\ud800"', b'"\\x00"',
    b"${file(\"/etc/passwd\")}", b"%{ if true }", b"name: x\n", b"groups:\n", b"stack: {driver: 580}\n",
]  # fmt: skip


def mutate(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 40))):
        at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        to = min(to, at + rng.choice((1, 4, 40, 400)))
        piece = data[at:to]
        match rng.randrange(8):
            case 0:
                data = data[:at] + data[to:]
            case 1:
                data = data[:at] + piece * rng.choice((2, 3, 50)) + data[to:]
            case 2:
                data = data[:at] + rng.choice(BYTES) + data[at + 1 :]
            case 3:
                data = data[:at] + rng.choice(TOKENS) + data[at:]
            case 4:
                data = data[:at] + rng.choice(TOKENS) + data[to:]
            case 5:
                lines = data.splitlines(keepends=True) or [b""]
                rng.shuffle(lines)
                data = b"".join(lines)
            case 6:
                data = data[:at]
            case 7:
                data = data[:at] + rng.choice(EXAMPLES).read_bytes()[at:to] + data[to:]
        data = data or b" "
    return data[: 1 << 18]


def accepts_or_refuses(path: Path) -> bool:
    try:
        loaded = spec.load(path)
    except InputError as error:
        assert error.problems
        assert all(p.line >= 1 and p.column >= 1 and p.message for p in error.problems)
        assert all("\n" not in str(p) for p in error.problems)
        return False
    assert isinstance(loaded, ClusterSpec)
    return True


@pytest.mark.parametrize("part", range(10))
def test_mutated_files(part: int, tmp_path: Path) -> None:
    rng = random.Random(f"mutation {part}")
    path = tmp_path / "cluster.yaml"
    accepted = 0
    for _ in range(MUTATIONS // 10):
        path.write_bytes(mutate(rng.choice(EXAMPLES).read_bytes(), rng))
        accepted += accepts_or_refuses(path)
    assert 0 < accepted < MUTATIONS // 10, "mutations that all pass or all fail prove little"


def test_mutated_files_through_the_command_line(tmp_path: Path) -> None:
    rng = random.Random("command line")
    for number in range(THROUGH_THE_CLI):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(mutate(rng.choice(EXAMPLES).read_bytes(), rng))
        done = subprocess.run(
            [sys.executable, "-m", "provisioner", "validate", "--json", path],
            cwd=ROOT,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode in (0, 2), done.stderr
        assert done.stderr == b""
        document = json.loads(done.stdout)
        assert document["ok"] == (done.returncode == 0) == (document["problems"] == [])


WORDS = st.sampled_from(["on", "580", "2.10", "us-east-1", "p5.48xlarge", "spot", "1g.5gb", "", "${x}"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
KEYS = sorted({part for key in schema.key_names() for part in key.split(".") if part != "<name>"} | {"train", "lab"})


@st.composite
def almost_clusters(draw: Any) -> dict[str, Any]:
    """A valid file with some of its values replaced and keys added."""
    document = yaml.safe_load(draw(st.sampled_from(EXAMPLES)).read_text())
    for _ in range(draw(st.integers(0, 4))):
        node = document
        while True:
            key = draw(st.sampled_from([*node, draw(st.sampled_from(KEYS))]))
            if isinstance(node.get(key), dict) and node[key] and draw(st.booleans()):
                node = node[key]
                continue
            node[key] = draw(VALUES)
            break
    return dict(document)


relaxed = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(document=almost_clusters())
def test_documents_with_other_values(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    accepts_or_refuses(path)


@relaxed
@given(text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(string.punctuation + " \n"), max_size=200))
def test_any_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text.encode())
    assert not accepts_or_refuses(path)


@relaxed
@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(data)
    assert not accepts_or_refuses(path)
