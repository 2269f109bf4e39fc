"""A fleet of more nodes than have all their facts in a report: judged by several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.verify.bundle import Output
from provisioner.verify.document import DETAILED
from provisioner.verify.pytest_runner import Case, Judged, judge
from tests.support.healthy_bundle import bundle, expected, healthy, nth

P4D = "p4d.24xlarge"
BROKEN = "n3"
SEVERAL = """
import os
from provisioner.verify import plugin
plugin.cores = lambda: 2
{more}
"""
KILLED = """
plugin.Judgement._judge_apart = lambda *given: os._exit(9)
"""


def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    """Have the judging process judge in two, whatever cores this machine has."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(SEVERAL.format(more=more), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    expectation = expected(P4D)
    healthy_cases = {f"n{k}": Case(bundle(nth(P4D, k)), expectation, None, "all") for k in range(DETAILED + 2)}
    texts = healthy(P4D)
    texts["nvidia-smi.xml"] = ""
    return healthy_cases | {BROKEN: Case(bundle(texts), expectation, None, "all")}


def unasked(verdict: Judged) -> list[str]:
    return [check.id for check in verdict.checks if check.message.startswith("not run: ")]


def condemned(verdicts: dict[str, Judged]) -> set[str]:
    return {name for name, verdict in verdicts.items() if any(check.condemns for check in verdict.checks)}


def test_every_node_is_judged_and_the_broken_one_has_all_its_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Case]
) -> None:
    several(tmp_path, monkeypatch)
    verdicts = judge(cases)
    assert condemned(verdicts) == {BROKEN}
    assert not any(unasked(verdict) for verdict in verdicts.values())
    assert len({len(verdict.checks) for verdict in verdicts.values()}) == 1
    assert {name for name, verdict in verdicts.items() if "gpus" in verdict.facts} == {BROKEN}
    assert all(set(verdict.facts) == {"fabric"} for name, verdict in verdicts.items() if name != BROKEN)
    assert {len(verdict.gpus) for name, verdict in verdicts.items() if name != BROKEN} == {8}


def test_nodes_of_a_process_that_was_killed_are_unknown_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Case]
) -> None:
    several(tmp_path, monkeypatch, KILLED)
    verdicts = judge(cases)
    lost = {name for name, verdict in verdicts.items() if unasked(verdict)}
    names = list(cases)
    assert lost == set(names[len(names) // 2 :])
    assert condemned(verdicts) == lost | {BROKEN}
    assert all(check.status == "unknown" for name in lost for check in verdicts[name].checks)


DIES = """
from provisioner.verify import plugin_nodes
read = plugin_nodes.read
def gone(bundle):
    if "no GPU answers" in (bundle.files["nvidia-smi.xml"].error if "nvidia-smi.xml" in bundle.files else ""):
        os.kill(os.getpid(), 9)
    return read(bundle)
plugin_nodes.read = gone
plugin_nodes.cores = plugin.cores
"""
NO_FORK = """
import multiprocessing.process
def start(process):
    raise BlockingIOError(11, "Resource temporarily unavailable")
multiprocessing.process.BaseProcess.start = start
from provisioner.verify import plugin_nodes
plugin_nodes.cores = plugin.cores
"""


def test_a_node_whose_answers_end_the_process_that_reads_them_is_unknown_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Case]
) -> None:
    several(tmp_path, monkeypatch, DIES)
    texts: dict[str, str | Output] = dict(healthy(P4D))
    texts["nvidia-smi.xml"] = Output("", rc=1, error="no GPU answers")
    verdicts = judge(cases | {BROKEN: Case(bundle(texts), expected(P4D), None, "all")})
    assert condemned(verdicts) == {BROKEN}
    assert any("the process that read its answers was killed" in check.message for check in verdicts[BROKEN].checks)


def test_where_no_further_process_starts_one_judges_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Case]
) -> None:
    several(tmp_path, monkeypatch, NO_FORK)
    verdicts = judge(cases)
    assert condemned(verdicts) == {BROKEN}
    assert not any(unasked(verdict) for verdict in verdicts.values())


def test_a_users_check_comes_last_and_names_nodes_whose_facts_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Case]
) -> None:
    several(tmp_path, monkeypatch)
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "mine.py").write_text(
        "import os\ndef test_name(name):\n    assert name != 'n40'\ndef test_zend(name):\n    assert name != 'n50'\n",
        encoding="utf-8",
    )
    verdicts = judge(cases, checks=[checks])
    assert condemned(verdicts) == {BROKEN, "n40", "n50"}
    assert {name for name, verdict in verdicts.items() if "gpus" in verdict.facts} == {BROKEN, "n40", "n50"}

    (checks / "mine.py").write_text("import os\ndef test_ends(name):\n    os._exit(7)\n", encoding="utf-8")
    verdicts = judge(cases, checks=[checks])
    ours = [check for verdict in verdicts.values() for check in verdict.checks if not check.id.startswith("mine.")]
    assert not any(check.message.startswith("not run: ") for check in ours)
    assert condemned(verdicts) == set(cases)  # the user's check is unknown on every node
