"""gpuprov's own checks on nodes, without the process of their own that `gpuprov verify` gives them: a second less.

tests/unit/verify/test_checks.py holds it to what pytest_runner.judge says; what that process is for (own checks, those
that hang or crash) is test_pytest_runner.py's and test_hostile_nodes.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from provisioner.verify import check_runner, health
from provisioner.verify.baseline import measured
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.plugin_nodes import peers_by_node, to_json
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import plain_checks
from provisioner.verify.results import CheckResult, blame


def judge(cases: Mapping[str, Case]) -> dict[str, Judged]:
    """What pytest_runner.judge says of the same nodes."""
    nodes = {
        name: check_runner.NodeUnderTest(name, read(case.bundle), case.expected, case.host, case.group, case.baseline)
        for name, case in cases.items()
    }
    peers = peers_by_node(nodes.values())
    return {name: _judged(node, peers[name]) for name, node in nodes.items()}


def _judged(node: check_runner.NodeUnderTest, peers: check_runner.Peers) -> Judged:
    results: dict[str, CheckResult] = {}
    declared_of = {}
    for function, declared in plain_checks():
        outcome = check_runner.run(function, declared, node, peers).bounded()
        compared = {
            key: json.loads(to_json(value))
            for key in ("expected", "actual")
            if (value := getattr(outcome, key)) is not None
        }
        result = health.result(declared, outcome)
        results[declared.id] = replace(result, **compared) if compared else result
        declared_of[declared.id] = declared
    checks = blame(
        results,
        {id: declared.follows for id, declared in declared_of.items()},
        {id: declared.silences for id, declared in declared_of.items()},
    )
    return Judged(tuple(checks), json.loads(to_json(facts_document(node.facts))), measured(node.facts))
