"""docs/extending/tool.md and check.md are true: their blocks, put into a copy of the code, are a tool and its check."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support import extending
from tests.support.sandbox_cluster import ROOT

pytestmark = pytest.mark.heavy

PAGES = [ROOT / "docs" / "extending" / name for name in ("tool.md", "check.md")]
BLOCK = re.compile(r"^`([\w./-]+)`:\n\n```(\w*)\n(.*?)^```", re.M | re.S)

PROBE = """
import json, subprocess, sys
import provisioner
from provisioner.verify.collect import decode, probe_source
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.health import judge
from provisioner.verify.request import request_for
from tests.support.healthy_bundle import expected

want = expected("dgx-h100", "quick")
asked = request_for(want).to_json()
program = f"{probe_source()}\\nPATH = {sys.argv[1]!r} + ':' + PATH\\nmain(json.loads({json.dumps(asked)!r}))\\n"
done = subprocess.run(["python3", "-I", "-"], input=program, capture_output=True, text=True, timeout=120, check=True)
bundle = decode(done.stdout.encode())
(check,) = [one for one in judge(read(bundle), want).checks if one.id == "host.power_supply"]
print(json.dumps({
    "package": provisioner.__file__,
    "asked of a cloud's machine": "power-supplies.txt" in request_for(expected("p4d.24xlarge")).files,
    "fact": facts_document(read(bundle))["power_supplies"],
    "check": [check.status, check.message],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code, its tests and docs with all blocks of both pages."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("provisioner", "tests/unit/verify", "tests/support", "docs", "scripts", "ansible", "templates"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/unit/conftest.py"):
        shutil.copy(ROOT / file, root / file)
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        assert len(blocks) >= 3, page.name
        for name, kind, text in blocks:
            file = root / name
            if kind == "diff":
                for hunk in text.split("@@\n"):
                    file.write_text(extending.patched(file.read_text(encoding="utf-8"), hunk), encoding="utf-8")
            else:
                assert not file.exists(), name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("printed", "fact", "verdict"),
    [
        ("one-failed.txt", {"present": 2, "failed": ["PS2 Status"]}, ["fail", "failed power supplies: PS2 Status"]),
        ("nothing", None, ["unknown", "power-supplies.txt: no list of sensors: Could not open device"]),
    ],
)
def test_the_tools_output_arrives_and_is_judged(
    copy: Path, tmp_path: Path, printed: str, fact: object, verdict: list[str]
) -> None:
    """The real probe runs ipmitool; it is a script here."""
    capture = copy / "tests/unit/verify/captures/power_supplies" / printed
    text = capture.read_text() if capture.exists() else "Could not open device\n"
    (tmp_path / "answer").write_text(text)
    (tmp_path / "ipmitool").write_text(f'#!/bin/sh\n[ "$*" = "sdr type Power Supply" ] && cat {tmp_path}/answer\n')
    (tmp_path / "ipmitool").chmod(0o755)
    done = extending.python(copy, "-c", PROBE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["package"].startswith(str(copy))
    assert document["asked of a cloud's machine"] is False
    assert (document["fact"], document["check"]) == (fact, verdict)


def test_the_tests_that_the_pages_name_pass(copy: Path) -> None:
    assert extending.python(copy, "scripts/check_docs.py").returncode == 0
    row = "| [`host.power_supply`](../runbook/host.md#hostpower_supply) | warn | vendor |"
    assert row in (copy / "docs/reference/checks/host.md").read_text()
    folder = "tests/unit/verify/"
    files = [
        folder + name for name in ("test_tools.py", "test_captures.py", "test_check_tables.py", "test_verify_docs.py")
    ]
    done = extending.python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_fault_fails_the_check(copy: Path) -> None:
    """FAULTS' row alone: all the others are judged by test_checks.py."""
    script = (
        "from tests.unit.verify.test_checks import *\n"
        "fault = FAULTS['a power supply has failed']; texts = healthy(fault.machine); well = bundle(dict(texts))\n"
        "fault.breaks(texts)\n"
        "found = judge({'well': Case(well, expected(DGX)), 'bad': Case(bundle(texts), expected(DGX))})\n"
        "print({name: ids(result, 'fail') for name, result in found.items()})\n"
        "assert 'host.power_supply' in ids(found['well'], 'pass')\n"
    )
    done = extending.python(copy, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'well': set(), 'bad': {'host.power_supply'}}"
