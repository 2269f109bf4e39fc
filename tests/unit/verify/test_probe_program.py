"""The probe as a program of its own, and its answer as a bundle: a machine that ssh does not reach."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.verify.bundle import Bundle
from provisioner.verify.expectations import Expected, expect
from provisioner.verify.facts import read as read_facts
from provisioner.verify.health import judge
from provisioner.verify.probe.runner import MARK
from provisioner.verify.request import load_request, request_for, single_request
from provisioner.verify.support_bundle import read
from scripts import probe_program
from tests.support.healthy_bundle import bundle as bundle_of
from tests.support.healthy_bundle import expected, healthy, nth

P4D = "p4d.24xlarge"


def answer(bundle: Bundle) -> str:
    """What the probe prints of these outputs, behind what a login prints."""
    packed = base64.b64encode(zlib.compress(json.dumps(bundle.to_json()).encode())).decode()
    return f"Last login: Sat Nov 28\n\n{MARK}{packed}\n"


def written(folder: Path, text: str) -> Path:
    (folder / "answer.txt").write_text(text)
    return folder / "answer.txt"


def test_an_answer_is_the_bundle_that_ssh_would_have_brought(tmp_path: Path) -> None:
    direct = bundle_of(healthy(P4D))
    supplied = read(written(tmp_path, answer(direct)))
    assert supplied.bundle == direct
    assert not supplied.foreign
    statuses = {check.status for check in judge(read_facts(supplied.bundle), expected(P4D, "quick")).checks}
    assert "fail" not in statuses


def test_a_later_answer_is_joined_to_the_first(tmp_path: Path) -> None:
    files = bundle_of(healthy(P4D)).files
    look = Bundle({name: out for name, out in files.items() if name != "load.json"}, collected=1.0)
    load_answer = Bundle({"load.json": files["load.json"]}, collected=2.0)
    supplied = read(written(tmp_path, answer(look) + answer(load_answer)))
    assert supplied.bundle.files == files


def test_answers_of_two_machines_are_refused(tmp_path: Path) -> None:
    text = answer(bundle_of(nth(P4D, 1))) + answer(bundle_of(nth(P4D, 2)))
    with pytest.raises(GpuprovError, match="other GPUs"):
        read(written(tmp_path, text))


def test_a_cut_answer_proves_nothing(tmp_path: Path) -> None:
    text = answer(bundle_of(healthy(P4D)))
    supplied = read(written(tmp_path, text[: len(text) // 2]))
    assert supplied.is_unrecognised
    ((name, reason),) = supplied.unplaced
    assert (name, reason.partition(" (")[0]) == ("answer.txt", "invalid answer from the probe: cut or damaged")


def of(level: str) -> Expected:
    catalog = load()
    row = catalog.machine(P4D)
    return expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level=level)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["standard", "stress"])
def test_one_run_asks_for_what_two_rounds_ask(level: str) -> None:
    """The load comes last, so that what looks at the node sees it idle."""
    request, load_round = single_request(of(level)), load_request(of(level))
    assert load_round is not None
    assert list(request.files) == [*request_for(of(level)).files, *load_round.files]
    assert request.load == load_round.load
    assert request.deadline > sum(request.files.values())
    assert single_request(of("quick")) == request_for(of("quick"))


def test_the_program_runs_by_itself_and_its_answer_is_read(tmp_path: Path) -> None:
    program = tmp_path / "probe.py"
    probe_program.main([str(program)])
    done = subprocess.run(
        [sys.executable, "-I", program], capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path
    )
    supplied = read(written(tmp_path, done.stdout))
    assert read_facts(supplied.bundle).kernel
    assert "lspci.txt" in supplied.bundle.files


def test_a_level_that_loads_needs_the_machine_type(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--level stress needs --machine"):
        probe_program.main([str(tmp_path / "probe.py"), "--level", "stress"])
    with pytest.raises(SystemExit, match="no machine 'p4'"):
        probe_program.main([str(tmp_path / "probe.py"), "--machine", "p4"])
    assert not list(tmp_path.iterdir())


def test_the_python_that_has_pytorch_is_named(tmp_path: Path) -> None:
    request = probe_program.request(P4D, None, "standard", "/opt/venv/bin/python3")
    assert request.load is not None
    assert request.load["python"] == "/opt/venv/bin/python3"
