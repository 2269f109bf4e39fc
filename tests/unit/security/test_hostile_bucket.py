"""What a bucket gives, or a run that was killed left: every wrong file of it is an error with its place, nothing of
it is written, and no command ends as a defect of gpuprov.

That nothing is written which is never shared, and that no key is: tests/unit/lifecycle/sharing/test_shared_files.py.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.main import run
from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.lifecycle import baselines, down
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sharing import shared_files
from provisioner.lifecycle.sharing.lease import current
from provisioner.lifecycle.sharing.shared_files import is_shared
from provisioner.machines.providers.aws.capacity import Choices
from provisioner.machines.providers.state import Blob
from provisioner.rundir.files import SHARED
from provisioner.verify.report import restore, write
from provisioner.verify.report.html import html
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support import plans
from tests.unit.security.test_hostile_lock import PAYLOADS, ROW

DEEP = "[" * 100_000
WRONG = {
    "nothing": "",
    "cut": "{",
    "nested": DEEP,
    "nested and whole": DEEP + "]" * 100_000,
    "a number": "7",
    "a list": "[]",
    "null": "null",
    "digits": '{"nodes": ' + "9" * 5000 + "}",
    "not a number": '{"nodes": NaN}',
    "a surrogate": '{"nodes": {"a\\ud800": {"stage": "\\ud800"}}, "report": "\\udfff"}',
    "names that are missing": '{"nodes": {"5": 5}}',
    "lists": '{"nodes": [[1]], "machines": [], "report": [], "failed": [], "all": []}',
    "texts": '{"nodes": "x", "machines": "x", "report": {}, "failed": "x", "all": {"vars": "x"}}',
    "numbers": '{"nodes": {"train-0": {"stage": 5, "ok": "x", "id": 5}}, "machines": {"x": {"since": 1e99}}}',
    "escapes": '{"nodes": {"\\u001b[2J": {"stage": "\\u001b[2J"}}, "report": "\\u001b[2J"}',
    "a path": '{"nodes": {}, "report": "../../../etc/passwd"}',
    "not text": "\x00\x01",
}
FILES = [name.replace("*.lock", "0123456789ab.lock").replace("*", "here") for name in SHARED]
CLUSTER = """\
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge}}
access: {allow: [203.0.113.0/24]}
"""


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    paths = ClusterPaths(file, "vision", sandbox=False)
    private_dir(paths.ssh)
    private_dir(paths.site("here"))
    private_dir(paths.root / "locks")
    paths.nodes.write_text(json.dumps([ROW]))
    return paths


@pytest.mark.parametrize("name", FILES)
def test_no_file_of_the_run_directory_makes_a_defect(
    name: str, paths: ClusterPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    for damage, text in WRONG.items():
        (paths.root / name).write_text(text)
        document = [] if damage == "escapes" else ["--json"]
        status = run(["status", "--no-sandbox", "--offline", *document, str(paths.spec)])
        captured = capsys.readouterr()
        assert status in (0, 2), (damage, captured.err)
        assert "internal error" not in captured.err, (damage, captured.err)
        assert "\x1b" not in captured.out + captured.err
        if status == 2:
            assert str(paths.root) in captured.err, damage


@pytest.mark.parametrize("damage", WRONG)
def test_what_status_does_not_read_makes_no_defect_either(damage: str, paths: ClusterPaths) -> None:
    for file in (paths.baseline, paths.measures, paths.intent, paths.site("here") / "capacity.json"):
        file.write_text(WRONG[damage])
    with contextlib.suppress(GpuprovError):
        baselines.load(paths)
    baselines._history(paths)
    Choices.read(paths.site("here"))
    cluster = Cluster(paths.spec, plans.cluster_spec("p4d.24xlarge", name="vision"), paths)
    names = down.recorded_nodes(cluster)
    assert "train-0" in names
    assert all(name.isprintable() and "/" not in name for name in names)


def packed(files: dict[str, Any], **more: Any) -> bytes:
    return gzip.compress(json.dumps({"format": 1, "files": files, **more}).encode())


@pytest.mark.parametrize("damage", WRONG)
def test_no_file_out_of_a_bucket_is_taken_that_is_damaged(damage: str) -> None:
    for name in ("nodes.json", "applied.json", "cluster.lock", "locks/0123456789ab.lock", "inventory.yml"):
        try:
            shared_files._unpacked(packed({name: WRONG[damage]}), "s3://b/x")
        except GpuprovError as error:
            assert error.where.startswith("s3://b/x/fleet.json.gz")
            assert name in error.where
        else:
            assert stored.loads(WRONG[damage]) is not None or name.endswith((".json", ".yml"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b",
        gzip.compress(b"{}")[:-5],
        zlib.compress(b"{}"),
        gzip.compress(b"\0" * (shared_files.LIMIT + 1)),
        gzip.compress(DEEP.encode()),
        gzip.compress(b'{"format": ' + b"9" * 5000 + b"}"),
        packed({}, format=[1]),
        packed({"nodes.json": 5}),
        packed({"nodes.json": {"x": 1}}),
        gzip.compress(b'{"format": 1, "files": [5]}'),
        gzip.compress(b'{"format": 1, "files": {"nodes.json": "\\ud800"}}'),
        packed({"nodes.json": json.dumps([ROW | {"name": 5}])}),
        packed({"nodes.json": json.dumps([ROW | {"site": "s" * 300}])}),
    ],
    ids=range(14),
)
def test_what_is_no_shared_state_is_an_error(content: bytes) -> None:
    with pytest.raises(GpuprovError) as caught:
        shared_files._unpacked(content, "s3://b/x")
    assert caught.value.where.startswith("s3://b/x")
    assert caught.value.hint


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_template_path_or_command_is_taken_out_of_a_bucket(payload: str) -> None:
    for field in ("name", "address", "private_address", "group"):
        with pytest.raises(GpuprovError, match="is damaged"):
            shared_files._unpacked(packed({"nodes.json": json.dumps([ROW | {field: payload}])}), "s3://b/x")


@pytest.mark.parametrize(
    "name",
    [*(f"sites/{site}/provider" for site in ("s" * 300, "..", ".", "", "a b", "a\n", "a\\b", "~", "é", "-x")),
     "runs/x/report.html", "runs/x/report.desktop", "runs/x/report.sh", "runs/x/report.html.sh", "runs/../report.html",
     "locks/../x.lock", "/nodes.json", "nodes.json/", "CLUSTER.LOCK", ".bashrc", "sites/a/.terraform.lock.hcl/x"],
)  # fmt: skip
def test_no_other_name_is_shared(name: str) -> None:
    assert not is_shared(name)
    with pytest.raises(GpuprovError, match="never shared"):
        shared_files._unpacked(packed({name: "x"}), "s3://b/x")


def test_what_is_shared_is_shared() -> None:
    assert all(is_shared(name) for name in FILES)
    assert all(is_shared(f"runs/20260101T000000-2/report.{kind}") for kind in ("json", "xml"))


HOSTILE_PAGE = "<form action=https://evil.example><meta http-equiv=refresh content='0;https://evil.example'>"


def test_no_page_comes_from_a_store(tmp_path: Path) -> None:
    """A page that only begins as ours do was taken, with a form or a redirect behind its head."""
    page = html(Report((), {}, 0.0, "vision"))
    for text in (page, page + HOSTILE_PAGE):
        with pytest.raises(GpuprovError, match="never shared"):
            shared_files._unpacked(packed({"runs/20260101T000000/report.html": text}), "s3://b/x")
    assert "default-src 'none'" in page and "form-action 'none'" in page


def test_a_page_is_made_here_of_the_report_that_is_data(tmp_path: Path) -> None:
    check = CheckResult("gpu.count", "fatal", "fail", "replace", expected=8, actual=7, message=HOSTILE_PAGE)
    node = NodeReport(f"train-0{HOSTILE_PAGE}", "train", "virginia", "p4d.24xlarge", False, (check,))
    folder = write(Report((node,), {}, 0.0), tmp_path / "20260102T030405", title="x").parent
    (folder / "report.html").write_text(HOSTILE_PAGE)
    assert restore.write_page(folder, "vision")
    text = (folder / "report.html").read_text()
    assert "<form" not in text and "<meta http-equiv=refresh" not in text
    assert "gpu.count" in text and "2026-01-02 03:04:05" in text and "vision: not healthy" in text


@pytest.mark.parametrize(
    "document",
    ["", "[]", "{}", '{"nodes": 1}', '{"nodes": [{"name": 1}]}', DEEP, '{"nodes": [{"name": "a", "group": "g", '
     '"site": "s", "machine": "m", "checks": [{"id": "x", "severity": "<b>", "status": "pass", "action": "none"}]}]}'],
)  # fmt: skip
def test_what_is_no_report_has_no_page(document: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(document)
    assert not restore.write_page(tmp_path, "vision")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("text", ["", "x", "0123456789ab\n--option", "../../x", "0123456789AB"])
def test_an_identity_that_is_none_is_an_error(text: str, paths: ClusterPaths) -> None:
    with pytest.raises(GpuprovError, match="not a cluster's identity"):
        shared_files._unpacked(packed({"id": text}), "s3://b/x")
    (paths.root / "id").write_text(text)
    with pytest.raises(GpuprovError, match="is not a cluster id"):
        _ = Cluster(paths.spec, plans.cluster_spec("p4d.24xlarge", name="vision"), paths).identity


class Bucket:
    """As much of a place as `seen` asks for."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, name: str, known: str | None = None) -> Blob:
        assert name == "holder.json" or known
        return Blob(self._content, "tag")


HOLDER = {"command": "up", "person": "a", "machine": "m", "folder": "/f", "token": "t", "pid": 1, "since": 1e9}


@pytest.mark.parametrize(
    "holder",
    [DEEP, "", "[]", *(json.dumps(HOLDER | wrong) for wrong in (
        {"since": "x"}, {"since": 1e300}, {"since": -1}, {"since": None}, {"pid": "x"}, {"pid": [1]}, {"person": 5},
        {"command": ["x"]}, {"machine": "m" * 10_000}, {"more": 1},
    )), json.dumps(HOLDER).replace("1000000000.0", "NaN"), json.dumps(HOLDER).replace('"a"', '"\\ud800"')],
)  # fmt: skip
def test_a_holder_that_another_program_wrote_is_none(holder: str) -> None:
    active_lease = current(Bucket(holder.encode()))  # type: ignore[arg-type]
    assert active_lease is not None
    assert active_lease.holder is None


def test_a_holder_is_named_on_one_line() -> None:
    content = json.dumps(HOLDER | {"command": "up\n\x1b[2J[OK]", "person": "a" * 4096, "machine": "m\u2028\r"})
    active_lease = current(Bucket(content.encode()))  # type: ignore[arg-type]
    assert active_lease is not None
    assert len(str(active_lease.holder).splitlines()) == 1 and len(str(active_lease.holder)) < 400


def test_a_holder_is_one() -> None:
    active_lease = current(Bucket(json.dumps(HOLDER).encode()))  # type: ignore[arg-type]
    assert active_lease is not None
    assert "of a on m" in str(active_lease.holder)
