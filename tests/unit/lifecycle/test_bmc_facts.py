"""What `verify` and `status` get of the machines' BMCs: replayed ones, and nobody else's is asked."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import bmc_facts, out_of_band, verifying
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.merged_checks import by_id
from provisioner.verify.parsers.bmc import parse
from provisioner.verify.results import Report
from provisioner.verify.subject import Subject
from tests.support import bmc as fake
from tests.support.healthy_bundle import expected

pytestmark = pytest.mark.heavy

TREE = "dell-poweredge-r750-h100pcie"
Lab = tuple[Cluster, dict[str, fake.Bmc]]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.certificate(tmp_path_factory.mktemp("bmc"))


@pytest.fixture
def lab(pem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Lab]]:
    """Two machines of a file, of which gpuprov has made nodes, and one that is in none. A file's further keys of the
    site are given."""
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "not-a-real-one")
    with contextlib.ExitStack() as running:
        bmcs = {
            name: running.enter_context(fake.serving(fake.Bmc(fake.tree(TREE), fake.MANNERS[TREE]), pem))
            for name in ("a", "b", "other")
        }
        for bmc_name in ("b", "other"):
            bmcs[bmc_name].system["SerialNumber"] = bmc_name.upper() + "-1"

        def build(more: str = "") -> Lab:
            file = tmp_path / "cluster.yaml"
            file.write_text(
                f"name: lab\nsites:\n  lab:\n    provider: baremetal\n    credentials: env:BMC\n{more}    hosts:\n"
                f"      a.lab: {{bmc: '{bmcs['a'].address}', serial: CNIVC0014M0388}}\n"
                f"      b.lab: {{bmc: '{bmcs['b'].address}'}}\n"
                "groups: {train: {machine: dgx-h100, count: 2}}\n"
            )
            cluster = open_cluster(file, sandbox=False)
            private_dir(cluster.paths.root)
            fleet.save(cluster.paths, nodes())
            return cluster, bmcs

        yield build


def nodes() -> list[Node]:
    return [Node(f"train-{n}", "train", "lab", "dgx-h100", f"{h}.lab", "", "127.0.0.1", "") for n, h in enumerate("ab")]


def proven(cluster: Cluster, level: str = "standard") -> Report:
    """Both nodes, which say nothing themselves."""
    want = expected("dgx-h100", level)  # type: ignore[arg-type]
    subjects = [Subject(node.name, "train", "lab", "dgx-h100", Bundle(collected=1.0), want) for node in nodes()]
    return verifying.prove(cluster, subjects, nodes())


def checks(report: Report, node: str) -> dict[str, tuple[str, str]]:
    node_report = next(row for row in report.nodes if row.name == node)
    results: dict[str, tuple[str, str]] = {}
    for check in node_report.checks:  # of several under one name those that decide have its status, the others passed
        parts = by_id()[check.id].parts if check.id in by_id() else (check.id,)
        for part in parts:
            decides = not check.parts or part in check.parts
            results[part] = (check.status, check.message) if decides else (BESIDE.get(check.status, "pass"), "")
    return {id: row for id, row in results.items() if id.startswith(("bmc.", "fleet.firmware"))}


BESIDE = {"unknown": "skip"}


def test_verify_asks_the_bmcs_of_the_nodes(lab: Callable[[str], Lab]) -> None:
    cluster, bmcs = lab("    firmware: {train: {BIOS: 9.9.9}}\n    power_budget_w: 1\n")
    report = proven(cluster)
    first, two = checks(report, "train-0"), checks(report, "train-1")
    assert first["bmc.identity"][0] == "pass" and two["bmc.identity"][0] == "skip"
    assert "sees 1 of 8 GPUs" in first["bmc.gpus"][1]
    assert "BIOS 1.8.2, not 9.9.9" in first["bmc.firmware"][1]
    assert first["fleet.firmware"][0] in ("pass", "skip"), "it is not what fleet.differs lacks"
    assert "above the 1 W" in first["bmc.power_budget"][1]
    assert first["bmc.events"][0] == "pass"
    assert all(not bmc.changes and not bmc.sessions for bmc in bmcs.values()) and bmcs["other"].asked == 0
    settled(cluster, report)
    entries = bmcs["a"].known["/redfish/v1/Managers/iDRAC.Embedded.1/LogServices/Sel/Entries"]
    new = {**entries["Members"][0], "Created": "2026-01-01", "Severity": "Critical", "Message": "PSU lost"}
    entries["Members"].insert(0, new)
    for _ in range(2):  # the first `verify` dies before its verdict is written
        report = proven(cluster)
        assert "PSU lost" in checks(report, "train-0")["bmc.events"][1]
    settled(cluster, report)
    assert checks(proven(cluster), "train-0")["bmc.events"][0] == "pass"


def settled(cluster: Cluster, report: Report) -> None:
    verifying.settle(cluster, verifying.Verdict(report), nodes(), "standard", quarantining=False)


def test_a_bmc_that_does_not_answer_costs_no_other_its_facts(lab: Callable[[str], Lab]) -> None:
    cluster, bmcs = lab("    power_budget_w: 5000\n")
    bmcs["a"].faults.wrong_password = True
    report = proven(cluster)
    first, two = checks(report, "train-0"), checks(report, "train-1")
    assert first["bmc.answers"][0] == "unknown" and "does not accept the user and password" in first["bmc.answers"][1]
    assert {status for status, _ in first.values()} == {"unknown", "skip"}
    assert two["bmc.answers"][0] == "pass"
    assert two["bmc.power_budget"][0] == "unknown", "the other machine's watts are not known"


def test_one_node_alone_is_asked_alone(lab: Callable[[str], Lab]) -> None:
    """Where there is a budget the others say what they draw, and their event logs do not count as seen."""
    cluster, bmcs = lab("")
    first_node = nodes()[:1]
    with bmc_facts.collecting(cluster, first_node) as (expected_files, files):
        assert list(files()) == list(expected_files) == ["train-0"]
    assert bmcs["b"].asked == 0
    cluster, bmcs = lab("    power_budget_w: 5000\n")
    bmcs["b"].system["PowerState"] = "Off"
    with bmc_facts.collecting(cluster, first_node) as (_, files):
        facts = parse(files()["train-0"]["bmc.json"].text)
    assert facts.site is not None and facts.site.silent == 0 and (facts.drawn_w or 0) < facts.site.drawn_w
    bmc_facts.count_as_seen(cluster)
    assert json.loads((cluster.paths.root / bmc_facts.SEEN).read_text()).keys() == {"a.lab"}
    assert bmcs["other"].asked == 0


def test_at_level_quick_no_bmc_is_asked(lab: Callable[[str], Lab]) -> None:
    cluster, bmcs = lab("")
    assert {status for status, _ in checks(proven(cluster, "quick"), "train-0").values()} == {"skip"}
    assert [bmc.asked for bmc in bmcs.values()] == [0, 0, 0]


def test_interrupted_nobody_waits_for_a_bmc(lab: Callable[[str], Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are ended, and what was still to be asked is not."""
    monkeypatch.setattr(bmc_facts, "GRACE_S", 60)
    cluster, bmcs = lab("")
    for slow_bmc in bmcs.values():
        slow_bmc.faults.slow_s = 0.2
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), bmc_facts.collecting(cluster, nodes()):
        while not bmcs["a"].sessions and time.monotonic() < begun + 60:
            time.sleep(0.05)
        raise KeyboardInterrupt
    assert all(not bmc.sessions for bmc in bmcs.values())


def test_status_where_what_was_noted_is_damaged(lab: Callable[[str], Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = lab("")
    monkeypatch.setattr("provisioner.lifecycle.status.drifted", lambda *_: {})
    (private_dir(cluster.paths.site("lab")) / "bmc.json").write_text("{")
    assert "is damaged" in status(cluster, ask=True).to_json()["nodes"][0]["bmc"]["error"]


def test_status_has_power_and_health(lab: Callable[[str], Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bmcs = lab("")
    monkeypatch.setattr("provisioner.lifecycle.status.drifted", lambda *_: {})
    bmcs["a"].system["PowerState"] = "Off"
    bmcs["b"].faults.wrong_password = True
    bmc_by_node = {row["name"]: row["bmc"] for row in status(cluster, ask=True).to_json()["nodes"]}
    assert (bmc_by_node["train-0"]["power"], bmc_by_node["train-0"]["error"]) == ("Off", None)
    assert bmc_by_node["train-1"]["power"] is None and "does not accept" in bmc_by_node["train-1"]["error"]
    assert {row["bmc"] for row in status(cluster, ask=False).to_json()["nodes"]} == {None}
    assert bmcs["other"].asked == 0


def test_machines_have_their_nodes_names_before_there_is_any(lab: Callable[[str], Lab]) -> None:
    cluster, _ = lab("")
    fleet.save(cluster.paths, nodes()[1:])
    assert [(machine.host.name, machine.node) for machine in out_of_band.machines(cluster)] == [
        ("a.lab", "train-0"), ("b.lab", "train-1"),
    ]  # fmt: skip
    assert [machine.host.name for machine in out_of_band.machines(cluster, ["train-0"])] == ["a.lab"]


def test_a_tree_beside_a_bundle_is_judged_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle_folder = tmp_path / "node"
    bundle_folder.mkdir()
    (bundle_folder / "kernel.txt").write_text("6.8.0\n")
    packed = (fake.TREES / f"{TREE}.redfish.json.gz").read_bytes()
    (bundle_folder / "a.lab.redfish.json.gz").write_bytes(packed)
    assert run(["verify", "--bundle", str(bundle_folder), "--machine", "dgx-h100", "--json"]) == 1
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    checks_by_id = {c["id"]: c for c in node["checks"]}
    assert checks_by_id["bmc.answers"]["status"] == "pass" and "bmc.fans" not in checks_by_id["bmc.health"].get(
        "parts", ()
    )
    assert "sees 1 of 8 GPUs" in checks_by_id["bmc.gpus"]["message"]
    assert checks_by_id["bmc.events"]["status"] == "unknown", "what is new is not known of a tree alone"
    (bundle_folder / "b.lab.redfish.json").write_bytes(gzip.decompress(packed))
    with pytest.raises(GpuprovError, match="2 Redfish trees lie here"):
        bmc_facts.with_tree(Bundle(), bundle_folder)
    (bundle_folder / "a.lab.redfish.json.gz").unlink()
    (bundle_folder / "b.lab.redfish.json").write_text("{}")
    broken = bmc_facts.with_tree(Bundle(), bundle_folder).files["bmc.json"]
    assert broken.missing and "b.lab.redfish.json" in broken.error
    bmc_output = bmc_facts.with_tree(Bundle({"bmc.json": Output("{}")}), bundle_folder).files["bmc.json"]
    assert bmc_output.text == "{}", "what the bundle has counts"


def test_a_tree_as_a_folder_of_files(tmp_path: Path) -> None:
    for uri, resource in fake.tree(TREE).items():
        folder = tmp_path / uri.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").write_text(json.dumps(resource))
    bmc_output = bmc_facts.with_tree(Bundle(), tmp_path).files["bmc.json"]
    assert parse(bmc_output.text).model == "PowerEdge R750"
