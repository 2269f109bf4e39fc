"""Faults of a sandbox site: whom they refuse, and that what they say is read as the site's own cloud says it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import catalog
from provisioner.cli.main import run
from provisioner.common.errors import Diagnostic, GpuprovError
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Attempt, Choices, Way
from provisioner.machines.providers.cloud_errors import AFTER, has_table, sandbox_texts
from provisioner.machines.providers.sandbox.capacity import SimulatedCapacity
from provisioner.plan.models import Plan
from provisioner.sandbox import site_faults, state_faults
from tests.support import plans
from tests.support.sandbox_cluster import ROOT

SAID = {"spot-quota": "quota"}
"""Texts of a class that is called otherwise."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plan(machine: str = "p4d.24xlarge", count: int = 3, **capacity: object) -> Plan:
    planned = plans.plan(plans.cluster_spec(machine, count=count))
    (group,) = planned.groups
    capacity_spec = group.spec.capacity.model_copy(update=capacity)
    return replace(planned, groups=(replace(group, spec=group.spec.model_copy(update={"capacity": capacity_spec})),))


def site(folder: Path, planned: Plan) -> SimulatedCapacity:
    folder.mkdir(exist_ok=True)
    return SimulatedCapacity(Place("vision", "here", planned.spec.sites["here"], folder))


def test_a_site_without_faults_refuses_nothing(tmp_path: Path) -> None:
    planned = plan()
    assert site(tmp_path / "s", planned).refusals(planned) == {}


@pytest.mark.parametrize(
    ("fault", "capacity", "zone", "retries", "refused"),
    [
        ("no-capacity", {}, "us-east-1a", 0, 3),
        ("no-capacity:us-east-1a", {}, "us-east-1a", 0, 3),
        ("no-capacity:us-east-1a", {}, "us-east-1b", 0, 0),
        ("no-capacity", {"kind": "reservation", "id": "cr-1"}, "us-east-1a", 0, 0),
        ("quota", {"kind": "spot", "fallback": ("on-demand",)}, "us-east-1a", 0, 3),
        ("throttled", {}, "us-east-1a", 1, 3),
        ("throttled", {}, "us-east-1a", 2, 0),
        ("reservation-full", {"kind": "reservation", "id": "cr-1"}, "us-east-1a", 0, 3),
        ("reservation-full", {}, "us-east-1a", 0, 0),
        ("half-made", {}, "us-east-1a", 0, 1),
    ],
)
def test_whom_a_fault_refuses(
    tmp_path: Path, fault: str, capacity: dict[str, object], zone: str, retries: int, refused: int
) -> None:
    planned, folder = plan(**capacity), tmp_path / "s"
    simulated = site(folder, planned)
    kind = str(capacity.get("kind", "on-demand"))
    Choices(taken={"train": Way(kind, zone)}, retries=retries).write(folder)
    site_faults.inject(folder, fault)
    assert len(simulated.refusals(planned)) == refused
    assert site_faults.clear(folder) == (fault,)
    assert simulated.refusals(planned) == {}


def test_a_fallback_is_not_refused_by_the_quota_of_the_first_kind(tmp_path: Path) -> None:
    planned, folder = plan(kind="spot", fallback=("on-demand",)), tmp_path / "s"
    simulated = site(folder, planned)
    site_faults.inject(folder, "quota")
    assert "MaxSpotInstanceCountExceeded" in simulated.refusals(planned)["train-0"]
    Choices(taken={"train": Way("on-demand", "us-east-1a")}, attempts={"train": [Attempt(Way("spot", "x"), ())]}).write(
        folder
    )
    assert simulated.refusals(planned) == {}


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "ND96asr_v4", "dgx-h100"])
def test_what_is_said_has_the_class_that_it_is_of(tmp_path: Path, machine: str) -> None:
    """In the words of a cloud that has a table of its own, through that table; elsewhere by simulated codes."""
    if machine not in catalog.load().names():
        machine = next(name for name in catalog.load().names("azure") if not catalog.load().machine(name).retired)
    planned = plan(machine)
    simulated = site(tmp_path / "s", planned)
    (group,) = planned.groups
    provider = group.machine.provider
    texts = sandbox_texts(provider if has_table(provider) else "sandbox")
    assert set(texts) >= {fault.says for fault in site_faults.FAULTS if fault.says}
    for kind, text in texts.items():
        message = f"exit status 1. Output: gpuprov sandbox: {site_faults.MARK}{text.format(machine='m', zone='z')}"
        error = simulated.error(
            Diagnostic("local-exec provisioner error", message, "node"),
            group,
            Way("on-demand", simulated.zones(planned)[0]),
        )
        assert (error.kind, error.then) == (SAID.get(kind, kind), AFTER.get(SAID.get(kind, kind), "stop"))  # type: ignore[call-overload]
        assert "{" not in error.text and error.address == "node"


def test_what_podman_says_is_no_refusal(tmp_path: Path) -> None:
    planned = plan()
    error = site(tmp_path / "s", planned).error(Diagnostic("local-exec provisioner error", "no such image"), None, None)
    assert (error.kind, error.then) == ("unknown", "stop")


def test_a_damaged_file_is_no_fault(tmp_path: Path) -> None:
    site_faults.inject(tmp_path, "quota")
    (file,) = (tmp_path / "cache").rglob("site-faults/*.json")
    for text in ("", "{", '{"a": 1}', "[1]"):
        file.write_text(text)
        assert site_faults.active(tmp_path) == ()


def test_a_bad_driver_is_of_a_release_and_refuses_nothing(tmp_path: Path) -> None:
    planned = plan()
    simulated = site(tmp_path / "s", planned)
    site_faults.inject(tmp_path / "s", "bad-driver-release:595.91.07")
    assert simulated.refusals(planned) == {}
    assert site_faults.bad_driver(tmp_path / "s") == "595.91.07"
    with pytest.raises(GpuprovError, match="which driver is bad"):
        site_faults.find("bad-driver-release")


def test_a_zone_is_for_capacity_alone() -> None:
    with pytest.raises(GpuprovError, match="no fault"):
        site_faults.find("quota:us-east-1a")
    assert site_faults.find("nvlink-down") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("here", "no-capacity:mars-1a"), "mars-1a is not a zone of here"),
        (("here", "quota", "--gpu", "1"), "--gpu is for faults of a node"),
        (("train-0", "quota"), "train-0 is a node, and quota is a fault of a site"),
        (("there", "quota"), "there is no site there"),
    ],
)
def test_a_fault_that_would_refuse_nothing_is_not_taken(
    tmp_path: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: told\nsites: {here: {provider: aws, region: us-east-1}}\n"
        "groups: {train: {machine: p4d.24xlarge, count: 1}}\n"
    )
    assert run(["sandbox", "fault", str(file), *words]) == 2
    assert message in capsys.readouterr().err
    assert run(["sandbox", "fault", str(file), "here", "no-capacity:us-east-1a"]) == 0


def test_the_documentation_has_every_fault_of_a_site() -> None:
    text = (ROOT / "docs/concepts/sandbox.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text.partition("fault of a site")[2].partition("<!--")[0], re.M)
    )
    assert {name: sentence.replace("`", "") for name, sentence in rows.items()} == {
        **{fault.name: fault.sentence for fault in site_faults.FAULTS},
        **{fault.name: f"at once: {fault.sentence}" for fault in state_faults.FAULTS},
    }
