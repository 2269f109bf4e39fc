"""The pytest plugin behind every check: fixtures, the two rules of check.py, and results as lines of JSON.

Loaded by pytest_runner.py in a process of its own: `python -m pytest -p provisioner.verify.plugin --gpuprov-in FILE
--gpuprov-out FILE DIRECTORY…`. Fixtures: `node` (facts.Facts), `expected` (expectations.Expected), `peers`
(peers.Peers, the nodes of its group), `baseline` (baseline.Baseline, what the fleet's own record says of it, or None),
`name` (the node's name), `host` (pytest-testinfra's; testinfra_host.py).

A declared check that asks for none but these, `host` apart, is one item that goes over all nodes: an item of pytest
costs a thousand times what such a function does. Of many nodes each core takes a share for gpuprov's own
checks. Any other test is run once for each node, as pytest does it.
"""

from __future__ import annotations

import functools
import gc
import inspect
import multiprocessing
import os
import unittest
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from _pytest.outcomes import OutcomeException

from provisioner.verify import check_runner, user_checks
from provisioner.verify.baseline import Baseline
from provisioner.verify.check import Check, Skipped, Unknown, seen
from provisioner.verify.check_runner import COMPARED, NodeUnderTest, Outcome, ready
from provisioner.verify.document import DETAILED
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.peers import Peers
from provisioner.verify.plugin_nodes import cores, late_document, nodes_of, peers_by_node, to_json
from provisioner.verify.watch import TooLong, Watch

OURS = Path(__file__).parent / "checks"
PROCESSOR_S, CLOCK_S = 2.0, 30.0
"""A check on one node ends after one to two times these seconds, of the processor or of the clock. The slowest of
gpuprov's own takes some milliseconds."""
TOGETHER = 256
"""Results of gpuprov's own checks that are written at once: a fleet of a thousand nodes has 270,000. What a user's own
check has found is written before the next begins, which may end the program."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpuprov-in", help="JSON: expected values of the nodes, in the folder of their bundles (pytest_runner.py)"
    )
    parser.addoption("--gpuprov-out", help="JSON lines: what was found")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--gpuprov-in"):
        config.pluginmanager.register(Judgement(config), "gpuprov-judgement")


class Judgement:
    """One run over all nodes; what was found is written while it goes on."""

    def __init__(self, config: pytest.Config) -> None:
        out = Path(config.getoption("--gpuprov-out"))
        self.out: IO[str] = out.open("w", encoding="utf-8")
        self.nodes: dict[str, NodeUnderTest] = {}
        self.outcomes: dict[Hashable, int] = {}
        """Of what was written lately: how a check ended → the number of its line."""
        self.written, self.process = 0, os.getpid()
        self.results: list[tuple[str, int]] = []
        gc.disable()  # nothing that reading makes goes in circles
        for node, document in nodes_of(Path(config.getoption("--gpuprov-in"))):
            self.nodes[node.name] = node
            self.out.write(document)
        self.out.flush()
        self.peers_of = peers_by_node(self.nodes.values())
        self.wrong: set[str] = set()
        """Nodes on which a fatal check failed or is unknown, and whose documents are not written yet."""
        self.late: dict[str, str] = {}
        """Node → the check of gpuprov's own that had not ended on it in its time: none other of them is begun there."""
        gc.freeze()  # facts stay until the end: no collection need go through them
        gc.enable()
        self.watch = Watch(PROCESSOR_S, CLOCK_S)

    def write(self, **record: Any) -> None:
        self._end_foreign()
        self.out.write(to_json(record) + "\n")
        self.out.flush()

    def _end_foreign(self) -> None:
        """End the child that a user's check has forked, and that came back here."""
        if os.getpid() != self.process:
            os._exit(0)

    def record_error(self, node: str, item: pytest.Item, error: BaseException | None, *, called: bool = True) -> None:
        """Write how a check ended on a node."""
        self.record(node, item.nodeid, declared_of(item), Outcome.of(_plainly(error), called=called))

    def record(self, node: str, test: str, declared: Check, outcome: Outcome, *, together: bool = False) -> None:
        """An outcome is written once; the nodes on which a check ended so name it by its number. `together`: the line
        may wait for others."""
        self._end_foreign()
        if outcome.status in ("fail", "unknown") and declared.severity == "fatal":
            self.wrong.add(node)
        # 1, 1.0 and True are one key of a mapping, and three values in a report.
        key: Hashable = test, outcome, type(outcome.expected), type(outcome.actual)
        text = ""
        try:
            number = self.outcomes.get(key)
        except TypeError:
            number = self.outcomes.get(key := (text := to_json(_outcome(test, outcome))))
        if number is None:
            text = text or to_json(_outcome(test, outcome))
            if len(text) > COMPARED:
                text = to_json(_outcome(test, outcome.bounded()))
            number = self.outcomes[key] = self.written
            self.written += 1
            self.out.write(f'{{"kind": "outcome", "number": {number}, {text[1:]}\n')
        self.results.append((node, number))
        if not together or len(self.results) >= TOGETHER:
            self.write_results()

    def write_results(self) -> None:
        """What was recorded and is not written yet."""
        if self.results:
            self.write(kind="results", of=self.results)
            self.results.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """gpuprov's own checks that are one item each, on all cores; pytest's own loop takes what is left."""
        ours = [item for item in session.items if isinstance(item, FleetItem) and item.ours]
        session.items[:] = [item for item in session.items if item not in ours]
        nodes = list(self.nodes.values())
        shares = cores() if len(nodes) > DETAILED else 1
        parts = [nodes[len(nodes) * k // shares : len(nodes) * (k + 1) // shares] for k in range(shares)]
        self.out.flush()
        local_nodes, processes = list(parts[0]), []
        for number, part in enumerate(parts[1:], start=1):
            process = multiprocessing.get_context("fork").Process(target=self._judge_apart, args=(ours, part, number))
            try:
                process.start()
                processes.append(process)
            except OSError:  # no further process, or no memory for one
                local_nodes += part
        for item in ours:
            item.judge(local_nodes)
        self.write_documents(local_nodes)
        for process in processes:
            process.join()  # what one that was killed had not come to is unknown

    def _judge_apart(self, items: Sequence[FleetItem], nodes: Sequence[NodeUnderTest], number: int) -> None:
        """In a process of its own, with a file of its own beside the output."""
        self.written, self.process = number << 32, os.getpid()
        self.watch = Watch(PROCESSOR_S, CLOCK_S)  # timers are not inherited
        with Path(f"{self.out.name}.{number}").open("w", encoding="utf-8") as self.out:
            for item in items:
                item.judge(nodes)
            self.write_documents(nodes)

    def write_documents(self, nodes: Iterable[NodeUnderTest]) -> None:
        """The `facts` documents of those of a large fleet that have something wrong; of a small one all are written."""
        if len(self.nodes) > DETAILED:
            for node in nodes:
                if node.name in self.wrong:
                    self.out.write(late_document(node))
                    self.wrong.remove(node.name)
        self.out.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.write_documents(self.nodes.values())

    def pytest_pycollect_makeitem(self, collector: pytest.Module | pytest.Class, name: str, obj: object) -> Any:
        if inspect.isclass(obj) and issubclass(obj, unittest.TestCase):
            message = f"{name} is a unittest.TestCase, which is not run: write functions called test_…"
            self.write(kind="broken", where=str(collector.path), message=message)
        if check_runner.plain(obj) is not None:
            return FleetItem.from_parent(collector, name=name, function=obj, judgement=self)
        return None

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        self.watch.end()
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
        return node_under_test.watched

    @pytest.fixture(scope="session")
    def peers(self, node_under_test: NodeUnderTest) -> Peers:
        return self.peers_of[node_under_test.name]

    @pytest.fixture(scope="session")
    def baseline(self, node_under_test: NodeUnderTest) -> Baseline | None:
        return node_under_test.baseline

    @pytest.fixture(scope="session")
    def name(self, node_under_test: NodeUnderTest) -> str:
        return node_under_test.name

    @pytest.fixture(scope="session")
    def host(self, node_under_test: NodeUnderTest) -> Iterator[Any]:
        """pytest-testinfra's Host for the node: answered by what was collected, over ssh for the rest where there is a
        connection."""
        from provisioner.verify.testinfra_host import NodeHost

        yield NodeHost(node_under_test.name, node_under_test.facts, node_under_test.host)

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            node = None if isinstance(item, FleetItem) else node_of(item)
            self.write(kind="collected", node=node, check=_record(declared_of(item)), test=item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A file of checks that cannot be loaded costs itself; also one that ends the program."""
        try:
            report = yield
        except (SystemExit, pytest.exit.Exception) as error:
            self.write(kind="broken", **user_checks.broken(error, collector.path))
            return pytest.CollectReport(collector.nodeid, "failed", str(error), [])
        if report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            self.write(kind="broken", where=str(collector.path), message=f"no check of it is run: {reason}")
        if report.failed:
            call: pytest.CallInfo[Any] = report.call
            raised = call.excinfo.value if call.excinfo else None
            self.write(kind="broken", **user_checks.broken(raised, collector.path))
        return report

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """An id is one check's: a second one with it is refused, and said."""
        accepted, refused = user_checks.without_doubles(items, lambda item: declared_of(item).id)
        items[:] = accepted
        for record in refused:
            self.write(kind="broken", **record)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with self.watch.one():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if isinstance(item, FleetItem):
            yield
            return
        seen.begin()
        ready(declared_of(item), self.nodes[node_of(item)])
        with self.watch.one():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, FleetItem):
            return report
        if call.when == "call" or (call.excinfo is not None and call.when == "setup"):
            error = call.excinfo.value if call.excinfo else None
            self.record_error(node_of(item), item, error, called=call.when == "call")
        elif call.when == "teardown" and call.excinfo is not None:
            raised = Unknown(f"after the check: {type(call.excinfo.value).__name__}: {call.excinfo.value}")
            self.record_error(node_of(item), item, raised, called=False)
        return report


class FleetItem(pytest.Item):
    """One declared check over all nodes."""

    def __init__(self, *, function: Callable[..., None], judgement: Judgement, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function, self.judgement = function, judgement

    @property
    def ours(self) -> bool:
        return self.path.is_relative_to(OURS)

    def runtest(self) -> None:
        self.judge(list(self.judgement.nodes.values()))

    def judge(self, nodes: Sequence[NodeUnderTest]) -> None:
        @functools.wraps(self.function)
        def call(**arguments: Any) -> None:
            try:
                self.function(**arguments)
            except SystemExit as raised:
                raise Unknown(f"the check called sys.exit({raised.code!r})") from None
            except OutcomeException as raised:  # no Exception: it would end the whole run
                plainly = _plainly(raised)
                if plainly is None or plainly is raised:
                    raise Unknown(f"the check ended pytest: {raised}") from None
                raise plainly from None

        judgement, declared, test, ours = self.judgement, declared_of(self), self.nodeid, self.ours
        for node in nodes:
            if ours and (late := judgement.late.get(node.name)):
                outcome = Outcome.of(Unknown(f"not run: {late} timed out on this node"), called=False)
            else:
                try:
                    outcome = judgement.watch.run(check_runner.run, call, declared, node, judgement.peers_of[node.name])
                except TooLong as raised:
                    outcome = Outcome.of(raised, called=False)
                    if ours:
                        judgement.late[node.name] = declared.id
            judgement.record(node.name, test, declared, outcome, together=ours)
        judgement.write_results()
        judgement.outcomes.clear()  # the next check's are others, and each node has some of its own


def node_of(item: pytest.Item) -> str:
    return str(item.callspec.params["node_under_test"])  # type: ignore[attr-defined]


def declared_of(item: pytest.Item) -> Check:
    """The declaration of a check. A plain test of a user's directory is fatal and named after file and function."""
    declared = getattr(getattr(item, "function", None), "__check__", None)
    if isinstance(declared, Check):
        return declared
    function = getattr(item, "originalname", None) or item.name
    summary = (getattr(item, "function", None).__doc__ or "").strip().split("\n")[0] or function.replace("_", " ")
    return Check(f"{item.path.stem}.{function.removeprefix('test_')}", "fatal", "reconfigure", summary)


def _outcome(test: str, outcome: Outcome) -> dict[str, Any]:
    return {"test": test, **outcome._asdict()}


def _record(declared: Check) -> dict[str, Any]:
    return {
        "id": declared.id,
        "severity": declared.severity,
        "action": declared.action,
        "says": declared.says,
        "follows": list(declared.follows),
        "silences": list(declared.silences),
    }


def _plainly(error: BaseException | None) -> BaseException | None:
    """pytest's own words for a verdict, as checks have them."""
    match error:
        case pytest.skip.Exception():
            return Skipped(str(error))
        case pytest.fail.Exception():
            return AssertionError(str(error))
        case _:
            return error
