"""The judging process: users' own checks, crashes, hangs, broken directories; isolation."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from provisioner.verify.bundle import Bundle
from provisioner.verify.pytest_runner import Case, Judged, judge
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support.healthy_bundle import bundle, expected, healthy

pytestmark = pytest.mark.heavy

P4D = "p4d.24xlarge"


def run(directory: Path, content: str, *, host: str | None = None, deadline_s: float = 60.0) -> dict[str, CheckResult]:
    """The results of a directory of checks of one file, on one healthy node."""
    directory.mkdir(exist_ok=True)
    (directory / "mine.py").write_text(content)
    case = Case(bundle(healthy(P4D)), expected(P4D), host)
    return {c.id: c for c in judge({"a": case}, checks=[directory], deadline_s=deadline_s)["a"].checks}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("conftest.py", "def pytest_collection_modifyitems(items):\n    items[:] = []\n", "no check was found"),
        ("conftest.py", "import nothing_of_that_name\n", "pytest ended with status 4"),
        ("conftest.py", "raise SystemExit(3)\n", ""),
        ("mine.py", "import os\nos._exit(0)\n", "no check was found"),
        ("mine.py", "import pytest\npytest.importorskip('nothing_of_that_name')\n", "no check of it is run: "),
        ("mine.py", "import unittest\nclass Test(unittest.TestCase):\n    def test(self): pass\n", "unittest.TestCase"),
    ],
)
def test_what_a_users_files_do_costs_no_check_of_gpuprovs(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "other.py").write_text("def test_other():\n    pass\n" if file == "mine.py" else "")
    (tmp_path / "checks" / file).write_text(content)
    texts = healthy(P4D)
    del texts["nvidia-smi.xml"]
    judged = judge({"a": Case(bundle(texts), expected(P4D))}, checks=[tmp_path / "checks"])["a"]
    assert (
        judge({"a": Case(bundle(texts), expected(P4D))})["a"].checks
        == judged.checks[: -2 if "other" in {check.id.partition(".")[2] for check in judged.checks} else -1]
    )
    (theirs,) = [check for check in judged.checks if check.id == "verify.checks"]
    assert (theirs.status, message in theirs.message) == ("unknown", True), theirs


def test_a_child_that_a_users_check_forks_reports_nothing(tmp_path: Path) -> None:
    checks = run(
        tmp_path / "checks",
        """
import os, sys
from provisioner.verify.check import check, fail

@check("site.fork", severity="warn", action="none", says="x")
def test_fork(node):
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    fail("the parent's")

def test_returns(node):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        assert False, "the parent's"
""",
    )
    assert (checks["site.fork"].status, checks["site.fork"].message) == ("fail", "the parent's")
    assert checks["mine.returns"].status == "fail"


def test_what_ends_badly_after_a_check_is_no_pass(tmp_path: Path) -> None:
    checks = run(
        tmp_path / "checks",
        """
import pytest

@pytest.fixture
def thing():
    yield 1
    raise ValueError("not put back")

def test_thing(thing):
    pass
""",
    )
    assert (checks["mine.thing"].status, checks["mine.thing"].message) == (
        "unknown",
        "after the check: ValueError: not put back",
    )


def test_checks_of_a_user_have_the_same_fixtures(tmp_path: Path) -> None:
    checks = run(
        tmp_path / "checks",
        """
from provisioner.verify.check import check, compare, unknown

@check("site.scratch", severity="warn", action="reconfigure", needs=("lsblk.json",), says="No scratch disk.")
def test_scratch(node, expected):
    compare(2, len(node.disks))

def test_plain(node, expected, name):
    \"\"\"All GPUs are there.\"\"\"
    assert (len(node.gpus), name) == (expected.gpu_count, "a")

def test_plain_fails(node):
    assert node.kernel == "9.9", "the kernel is old"

def test_crash(node):
    node.nothing

def test_system_exit():
    raise SystemExit(0)
""",
    )
    assert (checks["site.scratch"].status, checks["site.scratch"].expected, checks["site.scratch"].actual) == (
        "fail",
        2,
        9,
    )
    assert (checks["mine.plain"].status, checks["mine.plain"].severity) == ("pass", "fatal")
    assert checks["mine.plain"].says == "All GPUs are there."
    assert checks["mine.plain_fails"].status == "fail"
    assert "the kernel is old" in checks["mine.plain_fails"].message
    assert checks["mine.crash"].status == "unknown"
    assert "AttributeError" in checks["mine.crash"].message
    assert checks["mine.system_exit"].status != "pass"
    assert checks["gpu.count"].status == "pass"


def test_host_is_testinfra_and_only_where_the_node_can_be_reached(tmp_path: Path) -> None:
    content = 'def test_hosts(host):\n    assert host.file("/etc/hosts").exists\n'
    assert run(tmp_path / "one", content, host="local://")["mine.hosts"].status == "pass"
    offline = run(tmp_path / "two", content)["mine.hosts"]
    assert offline.status == "unknown"
    assert "not collected" in offline.message and "no connection to the node" in offline.message


def test_what_hangs_is_unknown_and_what_was_found_before_counts(tmp_path: Path) -> None:
    begun = time.monotonic()
    run(tmp_path / "quick", "def test_ends():\n    pass\n")
    deadline_s = 2.0 + 3 * (time.monotonic() - begun)  # for all but the one that hangs, on any computer
    hangs = "import time\n\ndef test_hang():\n    time.sleep(600)\n"
    checks = run(tmp_path / "checks", hangs, deadline_s=deadline_s)
    assert checks["mine.hang"].status == "unknown"
    assert f"did not end within {deadline_s:.0f} s" in checks["mine.hang"].message
    assert checks["gpu.count"].status == "pass"


def test_a_check_that_kills_the_process_costs_itself_only(tmp_path: Path) -> None:
    checks = run(
        tmp_path / "checks", "import os, signal\n\ndef test_kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert checks["mine.kill"].status == "unknown"
    assert checks["gpu.count"].status == "pass"


def test_a_broken_directory_is_said_and_condemns(tmp_path: Path) -> None:
    checks = run(tmp_path / "checks", "def broken(:\n")
    assert checks["verify.checks"].condemns
    assert "mine.py" in checks["verify.checks"].message
    assert checks["gpu.count"].status == "pass"


OWN = "from provisioner.verify.check import check\n\n@check('{}', severity='info', action='none', says='mine')\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\ndef broken(:\n", "checks/mine.py:2: SyntaxError: invalid syntax"),
        ("import nowhere\n", "checks/mine.py:1: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f():\n    return 1 / 0\n\nf()\n", "checks/mine.py:2: ZeroDivisionError: division by zero"),
        ("import sys\n\nsys.exit(3)\n", "checks/mine.py:3: it ends the program (sys.exit(3)) while it is loaded"),
        ("import pytest\npytest.exit('enough')\n", "checks/mine.py:2: it ends pytest while it is loaded: enough"),
        (
            OWN.format("gpu.count") + "def test_mine(node):\n    pass\n",
            "checks/mine.py:3: the id gpu.count is already a check of gpuprov (gpu.py): give it another one",
        ),
        (
            OWN.format("a.b") + "def test_b(node):\n    pass\n" + OWN.format("a.b") + "def test_c(node):\n    pass\n",
            "checks/mine.py:8: the id a.b is that of the check at checks/mine.py:3: give it another one",
        ),
        (
            OWN.format("a.b").replace("info", "error") + "def test_b(node):\n    pass\n",
            "checks/mine.py:3: ValueError: check a.b: severity 'error' is not one of fatal, warn, info",
        ),
    ],
    ids=("syntax", "import", "raises", "sys.exit", "pytest.exit", "an id of gpuprov's", "an id twice", "a severity"),
)
def test_what_cannot_be_taken_of_own_checks_is_said_in_a_line(tmp_path: Path, content: str, message: str) -> None:
    """A line that can be the reason of a quarantine; gpuprov's own checks are judged as ever."""
    folder = tmp_path / "checks"
    folder.mkdir()
    (folder / "mine.py").write_text(content)
    case = Case(bundle(healthy(P4D)), expected(P4D))
    verdicts = judge({"a": case, "b": case}, checks=[folder])
    for node_ in verdicts.values():
        broken = [check for check in node_.checks if check.condemns]
        assert [(check.id, check.message) for check in broken] == [("verify.checks", message)]
        assert [check.status for check in node_.checks if check.id == "gpu.count"] == ["pass"]


def test_a_check_of_ones_own_for_each_node_or_each_value_has_one_id(tmp_path: Path) -> None:
    content = "import pytest\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(node, n):\n    assert node\n"
    assert run(tmp_path / "checks", content)["mine.n"].status == "pass"


def test_the_users_pytest_settings_do_not_reach_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\npython_files = nothing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only -k nothing")
    checks = run(tmp_path / "checks", "def test_fine(node):\n    assert node\n")
    assert checks["mine.fine"].status == "pass"


def test_nodes_are_judged_each_by_its_own_expectations() -> None:
    short = healthy("Standard_ND96asr_v4")
    verdicts = judge({"a": Case(bundle(healthy(P4D)), expected(P4D)), "b": Case(bundle(short), expected(P4D))})
    assert [c.status for c in verdicts["a"].checks if c.id == "efa.devices"] == ["pass"]
    assert [c.status for c in verdicts["b"].checks if c.id == "efa.devices"] == ["unknown"]
    assert judge({}) == {}


def node(*checks: CheckResult) -> NodeReport:
    return NodeReport("a", "g", "s", P4D, False, checks)


def result(status: str, severity: str = "fatal") -> CheckResult:
    return CheckResult("x.y", severity, status, "reset")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checks", "ok"),
    [
        ((), False),
        ((result("skip"),), False),
        ((result("pass"),), True),
        ((result("pass"), result("skip")), True),
        ((result("pass"), result("fail")), False),
        ((result("pass"), result("unknown")), False),
        ((result("pass"), result("fail", "warn"), result("unknown", "info")), True),
    ],
)
def test_what_makes_a_node_healthy(checks: tuple[CheckResult, ...], ok: bool) -> None:
    assert node(*checks).ok is ok
    assert Report((node(*checks),), {}, 0.0).ok is ok


def test_a_fleet_of_none_is_not_healthy() -> None:
    assert not Report((), {}, 0.0).ok
    assert not Report((), {}, 0.0).enough("0%")
    half = Report((node(result("pass")), node(result("fail"))), {}, 0.0)
    assert (half.enough("50%"), half.enough("51%"), half.enough(1), half.enough(2)) == (True, False, True, False)


def test_judged_facts_are_the_facts_document() -> None:
    verdict: Judged = judge({"a": Case(Bundle(error="gone"), expected(P4D))})["a"]
    assert verdict.facts["gpus"] is None
    assert verdict.facts["error"] == "gone"
