"""A fault of a moment and one that lasts, on a simulated node that the probe looks at."""

from __future__ import annotations

import pytest

from provisioner.sandbox import faults
from provisioner.verify.probe import runner as probe
from provisioner.verify.pytest_runner import Case
from provisioner.verify.tools import FILES
from tests.support.healthy_bundle import bundle, expected
from tests.support.healthy_bundle import healthy as healthy_texts
from tests.support.judging import judge
from tests.support.sandbox_node import MakeNode, healthy

P4D = "p4d.24xlarge"


@pytest.mark.parametrize(("fault", "status", "looks"), [("power-brake", "fail", 3), ("power-brake-moment", "note", 2)])
def test_a_simulated_brake_lasts_or_is_over(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, fault: str, status: str, looks: int
) -> None:
    node = make_node(P4D, "580.173.02")
    node.become(faults.with_faults(healthy(P4D), [faults.Active(fault, 3)], "580.173.02"))
    monkeypatch.setattr(probe, "run", lambda argv, *_, **__: probe.result(node.says(*argv), 0))
    request = {"tools": {"nvidia-smi.xml": FILES["nvidia-smi.xml"].to_json()}, "wait": 0.0}
    answer = probe.job("nvidia-smi.xml", 30.0, request)
    answers = {"nvidia-smi.xml": answer, **answer.pop("beside", {})}
    assert len(answers) == looks
    texts = healthy_texts(P4D) | {name: look["text"] for name, look in answers.items()}
    judged = judge({"a": Case(bundle(texts), expected(P4D, "quick"), None)})["a"]
    result = next(check for check in judged.checks if check.id == "gpu.power_brake")
    assert (result.status, result.severity) == (status, "fatal")
    assert "GPU 3" in result.message
    node.become(faults.with_faults(healthy(P4D), [faults.Active(fault, 3)], "580.173.02"))  # injected again
    assert "Active<" in node.says("nvidia-smi", "-q", "-x")
