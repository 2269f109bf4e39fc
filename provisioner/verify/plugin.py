"""The pytest plugin behind every check: fixtures, the two rules of check.py, and results as lines of JSON.

Loaded by judge.py in a process of its own: `python -m pytest -p provisioner.verify.plugin --gpuprov-in FILE
--gpuprov-out FILE DIRECTORY…`. Every test is run once for each node. Fixtures: `node` (facts.Facts), `expected`
(expectations.Expected), `peers` (peers.Peers, the nodes of its group), `host` (pytest-testinfra, connected when first
used), `name` (the node's name).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from provisioner.verify import check as dsl
from provisioner.verify.bundle import Bundle
from provisioner.verify.check import Check, Failed, Skipped, Unknown, seen
from provisioner.verify.expectations import LEVELS, Expected
from provisioner.verify.facts import Facts, read
from provisioner.verify.peers import Peers


@dataclass(frozen=True, slots=True)
class NodeUnderTest:
    """What a check can ask for of one node. `host` is a testinfra connection or None."""

    name: str
    facts: Facts
    expected: Expected
    host: str | None
    group: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpuprov-in", help="JSON: bundles and expectations by node")
    parser.addoption("--gpuprov-out", help="JSON lines: what was found")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--gpuprov-in"):
        config.pluginmanager.register(Judgement(config), "gpuprov-judgement")


class Judgement:
    """One run over all nodes; every result is written as soon as it is there."""

    def __init__(self, config: pytest.Config) -> None:
        given = json.loads(Path(config.getoption("--gpuprov-in")).read_text())
        self.nodes = {name: _node(name, data) for name, data in given["nodes"].items()}
        self.peers_of = _peers(self.nodes.values())
        self.out: IO[str] = Path(config.getoption("--gpuprov-out")).open("w")  # noqa: SIM115 (closed at unconfigure)
        self.seen: dict[str, tuple[Any, Any, str]] = {}
        for node in self.nodes.values():
            self.write(kind="facts", node=node.name, facts=node.facts.to_json())

    def write(self, **record: Any) -> None:
        self.out.write(json.dumps(record, default=str) + "\n")
        self.out.flush()

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        self.out.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "node_under_test" not in metafunc.fixturenames:
            metafunc.fixturenames.append("node_under_test")
        metafunc.parametrize("node_under_test", list(self.nodes), indirect=True, scope="session")

    @pytest.fixture(scope="session")
    def node_under_test(self, request: pytest.FixtureRequest) -> NodeUnderTest:
        return self.nodes[request.param]

    @pytest.fixture(scope="session")
    def node(self, node_under_test: NodeUnderTest) -> Facts:
        return node_under_test.facts

    @pytest.fixture(scope="session")
    def expected(self, node_under_test: NodeUnderTest) -> Expected:
        return node_under_test.expected

    @pytest.fixture(scope="session")
    def peers(self, node_under_test: NodeUnderTest) -> Peers:
        return self.peers_of[node_under_test.name]

    @pytest.fixture(scope="session")
    def name(self, node_under_test: NodeUnderTest) -> str:
        return node_under_test.name

    @pytest.fixture(scope="session")
    def host(self, node_under_test: NodeUnderTest) -> Iterator[Any]:
        """pytest-testinfra's Host for the node; a bundle has none, so its checks are unknown."""
        if node_under_test.host is None:
            raise Unknown("needs the node itself, and there is only a bundle")
        import testinfra

        yield testinfra.get_host(node_under_test.host)

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            declared = declared_of(item)
            self.write(kind="collected", node=node_of(item), check=_record(declared), test=item.nodeid)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(kind="broken", where=report.nodeid, message=str(report.longrepr)[-600:])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """The first rule: what a check needs must have been read."""
        dsl.saw()
        facts, expected = self.nodes[node_of(item)].facts, self.nodes[node_of(item)].expected
        declared = declared_of(item)
        if reason := declared.inapplicable(expected):
            raise Skipped(reason)
        needs = [expected.gpu_file if need == "gpus" else need for need in declared.needs]
        asked = LEVELS.index(expected.level) >= LEVELS.index(declared.level)
        if not asked and (not needs or any(facts.source(need).state == "absent" for need in needs)):
            raise Skipped(f"only from level {declared.level} on")
        for need in needs:
            source = facts.source(need)
            if source.state != "read":
                raise Unknown(source.reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" or (call.excinfo is not None and call.when == "setup"):
            status, message, action = _verdict(call)
            self.write(
                kind="result",
                node=node_of(item),
                check=_record(declared_of(item)),
                test=item.nodeid,
                status=status,
                message=message or seen.note,
                action=action,
                expected=seen.expected if call.when == "call" else None,
                actual=seen.actual if call.when == "call" else None,
            )
        return report


def node_of(item: pytest.Item) -> str:
    return str(item.callspec.params["node_under_test"])  # type: ignore[attr-defined]


def declared_of(item: pytest.Item) -> Check:
    """The declaration of a check. A plain test of a user's directory is fatal and named after file and function."""
    declared = getattr(getattr(item, "function", None), "__check__", None)
    if isinstance(declared, Check):
        return declared
    function = getattr(item, "originalname", None) or item.name
    says = (getattr(item, "function", None).__doc__ or "").strip().split("\n")[0] or function.replace("_", " ")
    return Check(f"{item.path.stem}.{function.removeprefix('test_')}", "fatal", "reconfigure", says)


def _record(declared: Check) -> dict[str, Any]:
    return {
        "id": declared.id,
        "severity": declared.severity,
        "action": declared.action,
        "says": declared.says,
        "follows": list(declared.follows),
    }


def _verdict(call: pytest.CallInfo[None]) -> tuple[str, str, str | None]:
    """(status, message, action). What is neither a verdict nor an assertion is a crash, and a crash is unknown."""
    if call.excinfo is None:
        return "pass", "", None
    error = call.excinfo.value
    match error:
        case Failed():
            return "fail", error.message, error.action
        case Unknown():
            return "unknown", str(error), None
        case Skipped() | pytest.skip.Exception():
            return "skip", str(error), None
        case AssertionError() | pytest.fail.Exception() if call.when == "call":
            return "fail", str(error).strip()[:1000] or "assertion failed", None
        case _:
            return "unknown", f"the check crashed: {type(error).__name__}: {error}"[:1000], None


def _node(name: str, data: dict[str, Any]) -> NodeUnderTest:
    facts = read(Bundle.from_json(data["bundle"]))
    return NodeUnderTest(name, facts, Expected.from_json(data["expected"]), data.get("host"), data.get("group", ""))


def _peers(nodes: Iterable[NodeUnderTest]) -> dict[str, Peers]:
    """Node name → the nodes of its group, itself among them."""
    groups: dict[str, dict[str, Facts]] = {}
    for node in nodes:
        groups.setdefault(node.group or f"{node.name} alone", {})[node.name] = node.facts
    return {name: peers for members in groups.values() for peers in [Peers(members)] for name in members}
