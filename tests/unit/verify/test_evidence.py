"""What checks and limits rest on: a fatal check has evidence, and a limit without any warns and condemns nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.common.events import Events
from provisioner.verify import health
from provisioner.verify.check import Failed
from provisioner.verify.check_runner import Outcome
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from provisioner.verify.report.document import report_document
from provisioner.verify.report.terminal import table
from provisioner.verify.results import CheckResult, Report
from provisioner.verify.run import verify
from provisioner.verify.subject import Subject
from scripts import evidence_docs
from tests.support.healthy_bundle import bundle, edit, expected, healthy, nth
from tests.support.healthy_load import ran, result
from tests.support.judging import judge

CAPTURES = Path(__file__).parent / "captures"
GENERATION = "pci__pci_gpu_link_info__pcie_gen__current_link_gen"


@pytest.mark.parametrize("check", [c for c in declared() if c.severity == "fatal"], ids=lambda check: check.id)
def test_a_fatal_check_rests_on_a_capture_or_a_document(check: object) -> None:
    measured, documented = getattr(check, "measured"), getattr(check, "documented")  # noqa: B009
    assert bool(measured) != bool(documented)
    if measured:
        assert any(path.is_file() for path in CAPTURES.glob(f"{measured}.*")), measured


def test_the_page_is_what_the_code_and_the_catalogue_say() -> None:
    page = evidence_docs.PAGE.read_text(encoding="utf-8")
    assert page.endswith(evidence_docs.text()), "run: python scripts/check_docs.py"


def test_a_measured_limit_names_what_was_measured() -> None:
    for rows in load().limit_rows.values():
        for row in rows:
            reached = getattr(row, "measured", None)
            assert (row.basis == "measured") == (reached is not None), row
            assert reached is None or reached > row.threshold


def slow(machine: str, **values: float | None) -> Case:
    texts = healthy(machine)
    document = result(load().machine(machine))
    document["gpus"][3] |= values
    return Case(bundle(texts | {"load.json": ran(document)}), expected(machine))


def link(machine: str) -> Case:
    texts = healthy(machine)
    texts["nvidia-smi-load.xml"] = edit(str(texts["nvidia-smi-load.xml"]), 3, **{GENERATION: "3"})
    return Case(bundle(texts), expected(machine))


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    ndv4 = "Standard_ND96asr_v4"
    unbound = result(load().machine(ndv4))
    unbound["gpus"][3] |= {"h2d_gbps": 12.0, "numa_node": None}
    elsewhere = result(load().machine(ndv4))
    elsewhere["gpus"][0] |= {"numa_node": None}
    elsewhere["gpus"][3] |= {"h2d_gbps": 12.0}
    return judge(
        {
            "documented host copy": slow(ndv4, h2d_gbps=12.0),
            "unverified host copy": slow("p4d.24xlarge", h2d_gbps=6.0),
            "no limit for host copy": slow("p3dn.24xlarge", h2d_gbps=20.0),
            "host copy of an unknown NUMA node": Case(
                bundle(healthy(ndv4) | {"load.json": ran(unbound)}), expected(ndv4)
            ),
            "unverified peer copy": slow("p4d.24xlarge", peer_gbps=150.0),
            "far below an unverified limit": slow("p4d.24xlarge", h2d_gbps=0.3),
            "far below its neighbours": slow("p3dn.24xlarge", h2d_gbps=5.0),
            "far below, of an unknown NUMA node": slow(ndv4, h2d_gbps=0.3, numa_node=None),
            "another GPU's NUMA node is unknown": Case(
                bundle(healthy(ndv4) | {"load.json": ran(elsewhere)}), expected(ndv4)
            ),
            "unverified compute": slow("p3dn.24xlarge", tflops=61.0, tflops_last=60.0),
            "far below unverified compute": slow("p3dn.24xlarge", tflops=11.0, tflops_last=11.0),
            "link of a virtual machine": link("p4d.24xlarge"),
            "link of bare metal": link("dgx-h100"),
        }
    )


@pytest.mark.parametrize(
    ("name", "check", "severity", "limit"),
    [
        ("documented host copy", "load.host_copy", "fatal", ""),
        ("unverified host copy", "load.host_copy", "warn", "host_copy"),
        ("no limit for host copy", "load.host_copy", "warn", "load.copy_spread"),
        ("host copy of an unknown NUMA node", "load.host_copy", "warn", "host memory of no known NUMA node"),
        ("unverified peer copy", "load.peer_copy", "warn", "peer_copy"),
        ("far below an unverified limit", "load.host_copy", "fatal", ""),
        ("far below its neighbours", "load.host_copy", "fatal", ""),
        ("far below, of an unknown NUMA node", "load.host_copy", "fatal", ""),
        ("another GPU's NUMA node is unknown", "load.host_copy", "fatal", ""),
        ("unverified compute", "load.compute_rate", "warn", "gpu_compute"),
        ("far below unverified compute", "load.compute_rate", "fatal", ""),
        ("link of a virtual machine", "load.pcie_link", "warn", "the PCIe generation in a virtual machine"),
        ("link of bare metal", "load.pcie_link", "fatal", ""),
    ],
)
def test_a_limit_without_evidence_warns_and_says_so(
    judged: dict[str, Judged], name: str, check: str, severity: str, limit: str
) -> None:
    # That one GPU is far behind its neighbours rests on nothing but them.
    (failure,) = (
        candidate for candidate in judged[name].checks if candidate.status == "fail" and candidate.id != "load.outlier"
    )
    assert (failure.id, failure.severity) == (check, severity)
    assert failure.condemns == (severity == "fatal")
    assert failure.message.endswith(f" (unverified: {limit})") == bool(limit)


def test_what_only_warns_explains_no_fatal_failure() -> None:
    """One slow node of a group: its own limit is unverified, that it is the group's outlier is not."""
    slow_one = result(load().machine("p4d.24xlarge"), busbw=100.0)
    cases = {}
    for i in range(3):
        texts = nth("p4d.24xlarge", i) | ({"load.json": ran(slow_one)} if i == 1 else {})
        texts.pop("all_reduce.txt")
        cases[f"n{i}"] = Case(bundle(texts), expected("p4d.24xlarge"), group="train")
    failures = {check.id: check for check in judge(cases)["n1"].checks if check.status == "fail"}
    assert {id: check.severity for id, check in failures.items()} == {
        "nccl.bandwidth": "warn",
        "fleet.slow_nccl": "fatal",
    }


def test_the_nodes_own_timer_warns_alike() -> None:
    check = next(c for c in declared() if c.id == "nvlink.speed")
    for unverified, severity in (((), "fatal"), (("nvlink",), "warn")):
        assert health.result(check, Outcome.of(Failed("slow", unverified=unverified))).severity == severity


def test_a_warning_never_becomes_fatal() -> None:
    check = next(c for c in declared() if c.severity == "info")
    assert health.result(check, Outcome.of(Failed("x", unverified=("y",)))).severity == "info"


def test_the_report_says_how_many_limits_are_unverified(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    p4d, dgx = expected("p4d.24xlarge", "quick"), expected("dgx-h100", "quick")
    assert len(dgx.unverified) < len(p4d.unverified) < len(p4d.limits)
    subjects = [
        Subject(f"{machine}-{i}", "", "", machine, bundle(healthy(machine)), want)
        for machine, want in (("p4d.24xlarge", p4d), ("dgx-h100", dgx))
        for i in range(2)
    ]
    report = verify(subjects, events=Events())
    everywhere = set(p4d.most)
    assert report.limits == len(everywhere) + len(set(p4d.limits) - everywhere) + len(set(dgx.limits) - everywhere)
    dgx_left_out = verify(subjects[:2], events=Events())
    assert (dgx_left_out.limits, dgx_left_out.unverified) == (len(p4d.limits), len(p4d.unverified))
    assert json.loads(json.dumps(report_document(dgx_left_out).to_json()))["limits"] == {
        "total": dgx_left_out.limits,
        "unverified": dgx_left_out.unverified,
    }
    Console(width=200).print(table(dgx_left_out, explains=True))
    output = capsys.readouterr().out
    assert (
        f"{dgx_left_out.unverified} of the {dgx_left_out.limits} limits for these machines have no measurement"
        in output
    )
    assert replace(dgx_left_out, limits=0, unverified=0).evidence == ""


def test_a_document_of_results_has_the_severity_that_counts() -> None:
    assert not CheckResult("a.b", "warn", "fail", "vendor").condemns
    assert Report((), {}, 0.0).evidence == ""
