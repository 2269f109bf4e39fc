"""What a node reached, the record of it, and the checks that compare both: each red by a record that was faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.verify import pytest_runner
from provisioner.verify.baseline import (
    MEASURES,
    NAMED,
    Baseline,
    Entry,
    Reached,
    Record,
    gpu_identities,
    is_slower,
    measured,
    reached,
)
from provisioner.verify.facts import Facts, read
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from provisioner.verify.report.document import measure_output
from tests.support.healthy_bundle import ALL, bundle, edit, expected, healthy, without_gpu
from tests.support.healthy_load import ran, result
from tests.support.judging import judge

pytestmark = pytest.mark.heavy

P4D, RTX = "p4d.24xlarge", "workstation-rtx4090"
BASELINE = {check.id for check in declared() if check.id.startswith("baseline.") and "scratch" not in check.id}
MHZ = 1410.0


def texts(machine: str = P4D, **values: Any) -> dict[str, Any]:
    """A healthy node at work; `values` are of the load program's result."""
    files = healthy(machine)
    files["load.json"] = ran(deepcopy(result(load().machine(machine))) | values)
    if "nvidia-smi-load.xml" in files:
        for gpu in range(load().machine(machine).gpu_count):
            files["nvidia-smi-load.xml"] = edit(str(files["nvidia-smi-load.xml"]), gpu, clocks__sm_clock=f"{MHZ:g} MHz")
    return files


def facts(machine: str = P4D, *without: str, **values: Any) -> Facts:
    return read(bundle({name: text for name, text in texts(machine, **values).items() if name not in without}))


def gpus(machine: str = P4D, at: int = 3, **values: Any) -> list[dict[str, Any]]:
    """The load program's GPUs, one of them with other values."""
    rows: list[dict[str, Any]] = deepcopy(result(load().machine(machine))["gpus"])
    rows[at] |= values
    return rows


def test_a_gpu_that_was_changed_is_told_by_the_machines_own_record() -> None:
    node_facts = facts()
    present = gpu_identities(node_facts)
    record = Baseline(measured(node_facts), True, "2026-01-31T12:00:00Z", gpus=present)
    other = replace(record, gpus=(*present[:-1], replace(present[-1], uuid="GPU-0000", serial="0001")))
    cases = {
        "same": record,
        "other": other,
        "of its group": replace(record, own=False, gpus=()),
        "none": None,
    }
    judged = judge({name: Case(bundle(texts()), expected(P4D), baseline=baseline) for name, baseline in cases.items()})
    checks = {name: next(c for c in verdict.checks if c.id == "gpu.replaced") for name, verdict in judged.items()}
    status = {name: gpu_check.status for name, gpu_check in checks.items()}
    assert status == {"same": "pass", "other": "fail", "of its group": "skip", "none": "skip"}
    uuids = f"UUID GPU-0000 → {present[-1].uuid}"
    since = "the hardware changed since its own record of 2026-01-31: GPU 7: "
    assert checks["other"].message == f"{since}serial 0001 → {present[-1].serial}, {uuids}"


def test_a_gpu_that_is_gone_is_named_by_its_serial_number() -> None:
    present = gpu_identities(facts())
    record = Baseline(measured(facts()), True, "2026-01-31T12:00:00Z", gpus=present)
    files = texts() | {"nvidia-smi.xml": without_gpu(str(texts()["nvidia-smi.xml"]), 3)}
    verdict = judge({"train-0": Case(bundle(files), expected(P4D), baseline=record)})["train-0"]
    checks = {check.id: check for check in verdict.checks}
    change = f"GPU count: 8 → 7, GPU 3: serial {present[3].serial}, UUID {present[3].uuid} → none"
    assert checks["gpu.count"].message.endswith(f"; since its own record of 2026-01-31: {change}")
    assert checks["gpu.replaced"].explained_by == "gpu.count"


HEALTHY = {
    "host_copy": 55.0, "peer_copy": 390.0, "memory": 2900.0, "compute": 620.0, "clock": MHZ, "busbw": 231.72,
    "training": 3600.0,
}  # fmt: skip
"""What tests/support/healthy_load.py gives a p4d."""


def test_every_measure_is_read_and_named() -> None:
    assert measured(facts()) == HEALTHY
    assert list(HEALTHY) == [name for name in NAMED if not name.startswith("scratch")]  # those are test_fio.py's
    assert {f"baseline.{name}" for name in HEALTHY} == BASELINE
    every = {check.id for check in declared() if check.id.startswith("baseline.")}
    assert {f"baseline.{measure.name}" for measure in MEASURES} == every


@pytest.mark.parametrize(
    ("values", "name", "value"),
    [
        ({"h2d_gbps": 11.0}, "host_copy", 11.0),
        ({"d2h_gbps": 12.0}, "host_copy", 12.0),
        ({"peer_gbps": 200.0}, "peer_copy", 200.0),
        ({"memory_gbps": 2000.0}, "memory", 2000.0),
        ({"tflops_last": 300.0}, "compute", 300.0),
        ({"tflops": 300.0}, "compute", 620.0),
        ({"tflops_last": None}, "compute", None),
        ({"tflops_last": float("nan")}, "compute", None),
        ({"tflops_last": 0.0}, "compute", None),
        ({"memory_gbps": -1.0}, "memory", None),
    ],
)
def test_the_slowest_gpu_counts_and_one_that_is_silent_leaves_nothing(
    values: dict[str, Any], name: str, value: float | None
) -> None:
    assert measured(facts(gpus=gpus(**values))).get(name) == value


def test_the_best_message_counts_where_nccl_tests_were_not_run() -> None:
    assert measured(facts(P4D, "all_reduce.txt"))["busbw"] == 900.0
    assert "busbw" not in measured(facts(P4D, "all_reduce.txt", all_reduce=[]))


def test_the_clock_is_the_median_gpus() -> None:
    files = texts()
    files["nvidia-smi-load.xml"] = edit(files["nvidia-smi-load.xml"], 2, clocks__sm_clock="300 MHz")
    files["nvidia-smi-load.xml"] = edit(files["nvidia-smi-load.xml"], 3, clocks__sm_clock="N/A")
    assert measured(read(bundle(files)))["clock"] == MHZ
    assert "clock" not in measured(facts(P4D, "nvidia-smi-load.xml"))


@pytest.mark.parametrize(
    "document",
    [
        ran(None),
        ran(None, timed_out=True, rc=None),
        json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]}),
        json.dumps({"state": "absent", "why": "no locked image has PyTorch"}),
        ran(result(load().machine(P4D)) | {"device": "cpu"}),
        "not JSON",
    ],
)
def test_what_is_no_measurement_gives_nothing(document: str) -> None:
    files = texts() | {"load.json": document}
    assert measured(read(bundle(files))) == ({} if "busy" in document else {"busbw": HEALTHY["busbw"]})
    del files["all_reduce.txt"]
    assert measured(read(bundle(files))) == {}


# the checks


def record(**values: float) -> Baseline:
    return Baseline(HEALTHY | values, at="2026-11-02T10:00:00Z")


def case(baseline: Baseline | None, files: dict[str, Any] | None = None, level: Any = "standard") -> Case:
    return Case(bundle(files or texts()), expected(P4D, level), baseline=baseline)


def statuses(judged: Judged) -> dict[str, str]:
    return {c.id: c.status for c in judged.checks if c.id in BASELINE}


def failed(judged: Judged) -> set[str]:
    return {c.id for c in judged.checks if c.status == "fail"}


def message(judged: Judged, id: str) -> str:
    return next(c.message for c in judged.checks if c.id == id)


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {f"slower {name}": case(record(**{name: HEALTHY[name] * 1.2})) for name in HEALTHY}
    cases["a little slower"] = case(record(**{name: value * 1.049 for name, value in HEALTHY.items()}))
    cases["as recorded"] = case(record())
    cases["faster"] = case(record(**{name: value * 0.5 for name, value in HEALTHY.items()}))
    cases["all slower"] = case(record(**{name: value * 2 for name, value in HEALTHY.items()}))
    cases["no record"] = case(None)
    cases["half a record"] = case(Baseline({"memory": 2900.0}))
    cases["group"] = case(Baseline({"memory": 4000.0}, own=False, at="2026-11-02T10:00:00Z", nodes=3, other_lock=True))
    cases["bad pcie"] = case(record(), texts(gpus=gpus(h2d_gbps=6.0, d2h_gbps=6.0)))
    busy = json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]})
    cases["busy"] = case(record(), texts() | {"load.json": busy})
    quick = {n: t for n, t in texts().items() if "load" not in n and "after" not in n and n != "all_reduce.txt"}
    cases["quick"] = case(record(), quick, "quick")
    lone = {n: t for n, t in texts(RTX).items() if n != "all_reduce.txt"}
    cases["one GPU"] = Case(bundle(lone), expected(RTX), baseline=record())
    return judge(cases)


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_slower_than_its_record_is_found_by_its_check_alone(judged: dict[str, Judged], name: str) -> None:
    verdict = judged[f"slower {name}"]
    assert failed(verdict) == {f"baseline.{name}"}
    assert "16.7% below its own record of 2026-11-02" in message(verdict, f"baseline.{name}")


@pytest.mark.parametrize("name", ["as recorded", "faster", "a little slower"])
def test_what_is_as_fast_as_it_was_passes(judged: dict[str, Judged], name: str) -> None:
    assert statuses(judged[name]) == dict.fromkeys(BASELINE, "pass")


def test_one_cause_is_one_failing_check(judged: dict[str, Judged]) -> None:
    assert failed(judged["all slower"]) == {f"baseline.{n}" for n in ("host_copy", "peer_copy", "memory", "clock")}
    assert failed(judged["bad pcie"]) == {"load.host_copy"}
    assert "explained by load.host_copy" in message(judged["bad pcie"], "baseline.host_copy")


def test_a_warning_condemns_nobody(judged: dict[str, Judged]) -> None:
    assert not any(c.condemns for c in judged["all slower"].checks if c.id in BASELINE)


def test_without_a_record_or_a_measurement_there_is_nothing_to_say(judged: dict[str, Judged]) -> None:
    skipped = dict.fromkeys(BASELINE, "skip")
    assert statuses(judged["no record"]) == statuses(judged["busy"]) == statuses(judged["quick"]) == skipped
    assert "--save-baseline" in message(judged["no record"], "baseline.memory")
    assert "a job is using the GPUs: python3 (pid 7)" in message(judged["busy"], "baseline.memory")
    assert statuses(judged["half a record"]) == skipped | {"baseline.memory": "pass"}
    alone = statuses(judged["one GPU"])
    assert (alone["baseline.peer_copy"], alone["baseline.busbw"]) == ("skip", "skip")


def test_a_new_machine_is_told_whose_record_it_is_compared_with(judged: dict[str, Judged]) -> None:
    assert failed(judged["group"]) == {"baseline.memory"}
    text = message(judged["group"], "baseline.memory")
    assert "the record of 3 nodes of its group of 2026-11-02, with another lock" in text


def test_the_judge_gives_what_was_measured(judged: dict[str, Judged]) -> None:
    assert judged["as recorded"].measures == HEALTHY
    assert judged["quick"].measures == {}


def test_a_check_of_the_users_own_may_ask_for_the_record(tmp_path: Any) -> None:
    source = "def test_record(baseline, host):\n    assert baseline.values['memory'] == 2900\n"
    (tmp_path / "mine.py").write_text(source + "\ndef test_plain(baseline):\n    assert baseline.own\n")
    cases = {"a": replace(case(record()), host="local://"), "b": replace(case(None), host="local://")}
    verdicts = pytest_runner.judge(cases, checks=[tmp_path])
    of = {(n, c.id): c.status for n, j in verdicts.items() for c in j.checks if c.id.startswith("mine.")}
    assert of["a", "mine.record"] == of["a", "mine.plain"] == "pass"
    assert of["b", "mine.record"] != "pass"


@pytest.mark.parametrize("machine", ALL)
def test_every_limit_is_the_catalogues(machine: str) -> None:
    limits = expected(machine).most
    assert all(0 < limits[id] <= 0.10 for id in BASELINE)


# the record


def entry(value: float = 100.0, **other: Any) -> Entry:
    about = {"id": "i-1", "group": "train", "machine": P4D, "at": "2026-11-02T10:00:00Z", "lock": "abc"}
    return Entry(**{**about, "simulated": False, "measures": {"memory": value}, **other})


ASKED: Mapping[str, Any] = {
    "id": "i-1", "group": "train", "machine": P4D, "level": "standard", "lock": "abc", "simulated": False,
}  # fmt: skip


def of(nodes: dict[str, dict[str, Entry]], name: str = "train-0", **other: Any) -> Baseline | None:
    return Record(nodes).of(name, **{**ASKED, **other})


def test_a_machine_has_its_own_record() -> None:
    nodes = {"train-0": {"standard": entry(90.0)}, "train-1": {"standard": entry(100.0, id="i-2")}}
    assert of(nodes) == Baseline({"memory": 90.0}, True, "2026-11-02T10:00:00Z")
    assert of(nodes, lock="def") == Baseline({"memory": 90.0}, True, "2026-11-02T10:00:00Z", 1, True)


def test_another_machine_of_that_name_is_compared_with_its_group() -> None:
    nodes = {f"train-{i}": {"standard": entry(90.0 + i, id=f"i-{i}")} for i in range(3)}
    assert of(nodes, id="i-new") == Baseline({"memory": 91.0}, False, "2026-11-02T10:00:00Z", 3)
    assert of(nodes, name="train-9", id="i-new") == Baseline({"memory": 91.0}, False, "2026-11-02T10:00:00Z", 3)


@pytest.mark.parametrize(
    "other",
    [{"group": "infer"}, {"machine": "p5.48xlarge"}, {"level": "stress"}, {"simulated": True}],
    ids=lambda other: next(iter(other)),
)
def test_what_is_not_alike_is_not_compared(other: dict[str, Any]) -> None:
    assert of({"train-0": {"standard": entry()}}, **other) is None


def test_a_damaged_record_is_never_half_of_one() -> None:
    saved = Record({"train-0": {"standard": entry(), "stress": entry(at="x")}}).to_json()
    assert Record.from_json(json.loads(json.dumps(saved))).to_json() == saved
    path = ("nodes", "train-0", "standard")
    wrong: list[tuple[tuple[str, ...], Any]] = [
        (("schema",), 4), (("nodes",), []), (path, None), (("nodes", "train-0"), {"deep": saved["nodes"]["train-0"]}),
        ((*path, "id"), 7), ((*path, "simulated"), "no"), ((*path, "strange"), 1), ((*path, "measures"), {"speed": 1}),
        ((*path, "measures", "memory"), {"value": 1.0, "unit": "MB/s"}), ((*path, "measures", "memory"), 5.0),
        ((*path, "measures", "memory", "value"), "fast"), ((*path, "measures", "memory", "value"), float("inf")),
        ((*path, "measures", "memory", "value"), -1), ((*path, "measures", "memory", "value"), True),
        ((*path, "gpus"), "GPU-1"), ((*path, "gpus"), [7]),
        ((*path, "gpus"), [{"index": 0, "pci": "", "uuid": 7, "serial": ""}]),
    ]  # fmt: skip
    for (*parents, last), value in wrong:
        broken = deepcopy(saved)
        holder: Any = broken
        for part in parents:
            holder = holder[part]
        holder[last] = value
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
            Record.from_json(broken)


values = st.floats(min_value=1e-3, max_value=1e6)
measures = st.dictionaries(st.sampled_from(list(NAMED)), values, max_size=7)
entries = st.builds(
    entry,
    id=st.sampled_from(["i-1", "i-2", "i-3"]),
    group=st.sampled_from(["train", "infer"]),
    machine=st.sampled_from([P4D, RTX]),
    simulated=st.booleans(),
    measures=measures,
)
levels = st.dictionaries(st.sampled_from(["standard", "stress"]), entries, max_size=2)
records = st.dictionaries(st.sampled_from([f"train-{i}" for i in range(4)]), levels, max_size=4)


@settings(max_examples=150, deadline=None)
@given(records, st.sampled_from(["i-1", "i-9"]), st.booleans())
def test_what_a_record_says_is_of_like_machines_alone(
    nodes: dict[str, dict[str, Entry]], id: str, simulated: bool
) -> None:
    assert Record.from_json(json.loads(json.dumps(Record(nodes).to_json()))) == Record(nodes)
    like = [
        e for entry_by_level in nodes.values() if (e := entry_by_level.get("standard"))
        and (e.group, e.machine, e.simulated) == ("train", P4D, simulated)
    ]  # fmt: skip
    baseline = of(nodes, id=id, simulated=simulated)
    assert (baseline is None) == (not like)
    if baseline is not None:
        assert Baseline.from_json(json.loads(json.dumps(baseline.to_json()))) == baseline
        for name, value in baseline.values.items():
            have = [e.measures[name] for e in like if name in e.measures]
            assert value in have if baseline.own else value == pytest.approx(median(have))


@given(values, values, st.floats(min_value=0, max_value=0.5))
def test_slower_is_further_below_than_the_share(value: float, previous: float, share: float) -> None:
    assert not is_slower(previous, previous, share)
    assert (
        is_slower(value, previous, share) == (1 - value / previous > share) or abs(1 - value / previous - share) < 1e-9
    )


def test_the_report_has_the_value_beside_the_record_and_what_is_published() -> None:
    known = expected("Standard_ND96asr_v4")
    assert known.published == {"busbw": 235.26}
    assert expected(P4D).published == {}
    rows = reached({"busbw": 220.0, "memory": 2700.0, "clock": 1000.0}, Baseline({"busbw": 240.0}, own=False), known)
    assert [row.name for row in rows] == ["memory", "clock", "busbw"]
    assert rows[-1] == Reached("busbw", "GB/s", 220.0, 240.0, False, 235.26, True)
    assert measure_output(rows[-1]).to_json() == {
        "value": 220.0, "unit": "GB/s", "record": 240.0, "of": "group", "change": -0.0833, "published": 235.26,
        "slower": True,
    }  # fmt: skip
    assert rows[0] == Reached("memory", "GB/s", 2700.0)
    assert rows[0].share is None
