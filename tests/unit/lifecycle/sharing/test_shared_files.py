"""Two operators of one cluster, each with a folder of their own, and moto's S3 between them."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from moto.s3 import s3_backends
from moto.s3.models import FakeDeleteMarker

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError, InputError, LockedError, ProviderError
from provisioner.common.paths import private_dir
from provisioner.lifecycle.gc import alive_here
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.sharing.lease import HOLDER, Holder, Lease, current
from provisioner.lifecycle.sharing.shared_files import FLEET
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.providers.aws import bucket as s3
from provisioner.machines.providers.aws.provider import Aws
from provisioner.machines.providers.aws.remote_state import remote
from provisioner.machines.providers.base import Place
from provisioner.machines.terraform.render import main_tf
from provisioner.rundir import fleet, node_state
from provisioner.rundir.node_state import NodeProgress
from provisioner.rundir.release import Ledger
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.transport import ssh_config, ssh_keys, ssh_pins
from provisioner.verify import report as reports
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support import moto_s3
from tests.support.logins import UBUNTU
from tests.unit.machines.providers.test_aws_provider import plan as aws_plan

pytestmark = pytest.mark.heavy

BUCKET = "acme-gpuprov"
FILE = """\
name: vision
sites: {virginia: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 1}}
access: {ssh_key: KEY, allow: [203.0.113.0/24]}
state: {backend: s3, bucket: acme-gpuprov, create: true}
"""
NODE = fleet.Node("train-0", "train", "virginia", "p4d.24xlarge", "i-1", "us-east-1a", "203.0.113.9", "10.0.0.9")
LOCK = Lock(request={"groups.train.machine": "p4d.24xlarge"}, simulated=False, groups={})
PIN = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGludmVudGVkaW52ZW50ZWRpbnZlbnRlZGludmVudGVk"


@dataclass
class Operators:
    key: Path
    root: Path

    def folder(self, operator: str) -> Path:
        """Where somebody has cluster.yaml."""
        own_folder = self.root / operator
        own_folder.mkdir(exist_ok=True)
        file = own_folder / "cluster.yaml"
        if not file.exists():
            file.write_text(FILE.replace("KEY", str(self.key)))
        return file

    def open(self, operator: str, **options: Any) -> Cluster:
        return open_cluster(self.folder(operator), sandbox=False, **options)


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operators]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    moto_s3.as_over_tls()
    with mock_aws():
        yield Operators(key, tmp_path)


def make(cluster: Cluster) -> None:
    """What an `up` leaves of a node."""
    fleet.save(cluster.paths, [NODE])
    ssh_keys.ensure_key(cluster.paths, cluster.spec.access.ssh_key)
    ssh_config.save(cluster.paths, [NODE], {"train-0": ("i-1", PIN)}, UBUNTU)
    node_state.note(cluster.paths, nodes={"train-0": {"stage": "verified", "ok": True}})


def objects() -> dict[str, Any]:
    all_keys = s3_backends["123456789012"]["aws"].buckets[BUCKET].keys
    present_keys = {name: key for name, key in all_keys.items() if not isinstance(key, FakeDeleteMarker)}
    return {name.removeprefix("gpuprov/vision/"): key for name, key in present_keys.items()}


def test_the_second_operator_has_what_the_first_one_made(operators: Operators) -> None:
    first = operators.open("ann")
    lockfile.write(first.paths.user_lock, LOCK)
    with first.exclusively("up") as run_dir:
        make(first)
        Journal(private_dir(first.paths.site("virginia")) / "bmc.json").note(Installation("dgx01", "S1"), "installed")
        check = CheckResult("gpu.count", "fatal", "fail", "replace", message="seven")
        report = Report((NodeReport("train-0", "train", "virginia", "p4d.24xlarge", False, (check,)),), {}, 0.0)
        node_state.note_report(first.paths, reports.write(report, run_dir, title="vision"))
        assert HOLDER in objects()
    assert set(objects()) == {FLEET}

    second = operators.open("ben")
    assert second.nodes() == [NODE]
    assert ssh_pins.load_pins(second.paths) == {"train-0": ("i-1", PIN)}
    assert PIN in second.paths.known_hosts.read_text()
    config = (second.paths.ssh / "config").read_text()
    assert str(second.paths.known_hosts) in config and "203.0.113.9" in config
    assert lockfile.read(second.paths.user_lock) == LOCK
    assert Journal(second.paths.site("virginia") / "bmc.json").load()["dgx01"].step == "installed"
    assert node_state.load(second.paths).nodes == {"train-0": NodeProgress("verified", True)}
    page = Path(str(node_state.load(second.paths).report)).read_text()
    assert "vision: not healthy" in page and "seven" in page
    assert str(second.paths.root) in str(node_state.load(second.paths).report)


def test_no_key_is_ever_shared(operators: Operators) -> None:
    cluster = operators.open("ann")
    with cluster.exclusively("up"):
        make(cluster)
        (cluster.paths.ssh / "id_ed25519").write_text("PRIVATE")
        (cluster.paths.root / "secret.json").write_text("PRIVATE")
    files = json.loads(gzip.decompress(objects()[FLEET].value))["files"]
    assert "PRIVATE" not in json.dumps(files)
    assert set(files) == {"nodes.json", "ssh/pins.json", "state.json"}


def test_two_are_never_at_work_at_once(operators: Operators) -> None:
    first, second = operators.open("ann"), operators.open("ben")
    message = f"`gpuprov up`.*process {os.getpid()}"
    with first.exclusively("up"), pytest.raises(LockedError, match=message) as caught, second.exclusively("down"):
        pytest.fail("both are at work")
    assert caught.value.exit_code == 5
    with second.exclusively("down"):
        pass


def test_a_run_that_died_here_holds_nobody_up(operators: Operators) -> None:
    first = operators.open("ann")
    bucket = remote(first.spec)
    with first.exclusively("up"):
        holder = objects()[HOLDER].value
    bucket.write(HOLDER, holder, None)  # the kernel let go of its own lock, and nobody removed this
    with first.exclusively("up"):
        pass
    assert HOLDER not in objects()


def test_two_machines_of_one_name_and_path_are_two(operators: Operators) -> None:
    """As CI runners are, whose hostnames and checkouts are all alike."""
    second = operators.open("ben")
    bucket = remote(second.spec)
    bucket.prepare()
    alike = Holder("up", "ann", socket.gethostname(), str(second.paths.root), "another", os.getpid(), 0.0)
    bucket.write(HOLDER, json.dumps(asdict(alike)).encode(), None)
    with pytest.raises(LockedError, match="another run is active"), second.exclusively("up"):
        pytest.fail("both are at work")
    active_lease = current(bucket)
    assert active_lease is not None and active_lease.holder == alike
    with pytest.raises(LockedError), Lease(bucket, second.paths.root, "up", second.events):
        pytest.fail("both are at work")


def test_a_run_that_died_elsewhere_is_cleared_by_unlock_and_not_before_it_is_dead(
    operators: Operators, capsys: pytest.CaptureFixture[str]
) -> None:
    second = operators.open("ben")
    bucket = remote(second.spec)
    bucket.prepare()
    holder = {"command": "up", "person": "ann", "machine": "elsewhere", "folder": "/home/ann", "token": "x"}
    holder |= {"pid": 7, "since": 0.0}
    bucket.write(HOLDER, json.dumps(holder).encode(), None)
    bucket.write("sites/virginia/terraform.tfstate.tflock", b"{}", None)
    assert run(["unlock", str(second.file)]) == 5
    assert "of ann on elsewhere" in capsys.readouterr().err

    holder_object = objects()[HOLDER]
    holder_object.last_modified -= timedelta(seconds=201)
    with pytest.raises(LockedError, match="of ann on elsewhere") as caught, second.exclusively("up"):
        pytest.fail("a dead one is cleared by a person")
    assert "unlock" in caught.value.hint
    assert run(["unlock", str(second.file)]) == 0
    assert objects() == {}
    with second.exclusively("up"):
        pass


def test_one_whose_hold_was_taken_says_so_and_overwrites_nothing(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.lifecycle.sharing.lease.BEAT_S", 0.02)
    cluster = operators.open("ann")
    warned = threading.Event()
    cluster.events.subscribe(lambda event: warned.set() if event.kind == "warning" else None)
    bucket = remote(cluster.spec)
    with pytest.raises(LockedError, match="took the lease"), cluster.exclusively("up"):
        make(cluster)
        bucket.remove(HOLDER)
        bucket.write(HOLDER, b'{"somebody": "else"}', None)
        assert warned.wait(60)
    assert objects()[HOLDER].value == b'{"somebody": "else"}'
    assert FLEET not in objects()


def test_the_holder_that_took_over_between_two_beats_stays(operators: Operators) -> None:
    cluster = operators.open("ann")
    bucket = remote(cluster.spec)
    with cluster.exclusively("up"):  # its next beat, which would hear of it, never comes
        bucket.remove(HOLDER)
        bucket.write(HOLDER, b'{"somebody": "else"}', None)
    assert objects()[HOLDER].value == b'{"somebody": "else"}'


def test_a_beat_whose_answer_was_lost_is_still_its_own_holder(operators: Operators) -> None:
    cluster = operators.open("ann")
    bucket = remote(cluster.spec)
    with cluster.exclusively("up"):
        blob = bucket.read(HOLDER)
        assert blob is not None
        bucket.write(HOLDER, blob.content.replace(b"}", b" }"), blob.tag)
    assert HOLDER not in objects()


def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(operators: Operators) -> None:
    cluster = operators.open("ann")
    bucket = remote(cluster.spec)
    with pytest.raises(LockedError, match="meanwhile"), cluster.exclusively("up"):
        make(cluster)
        bucket.write(FLEET, b"another", None)
    assert objects()[FLEET].value == b"another"


def test_a_file_that_one_removed_is_gone_for_the_other_one_too(operators: Operators) -> None:
    """A quarantine that was ended, or a journal of an upgrade that is over, would else be shared back as new."""
    first = operators.open("ann")
    with first.exclusively("up"):
        make(first)
        (first.paths.root / "quarantine.json").write_text('{"nodes": {}}\n')
        lock_id = Ledger(first.paths).keep(LOCK)
    second = operators.open("ben")
    assert (second.paths.root / "quarantine.json").exists()
    assert (second.paths.root / "locks" / f"{lock_id}.lock").exists()
    (second.paths.root / "runs").mkdir()  # never shared: no one else's to remove
    with first.exclusively("release"):
        (first.paths.root / "quarantine.json").unlink()
        (first.paths.root / "locks" / f"{lock_id}.lock").unlink()
    operators.open("ben")
    assert not (second.paths.root / "quarantine.json").exists()
    assert not (second.paths.root / "locks" / f"{lock_id}.lock").exists()
    assert second.nodes() == [NODE]
    assert (second.paths.root / "runs").is_dir()


def test_a_cluster_that_was_removed_is_gone_for_the_other_one_too(operators: Operators) -> None:
    first = operators.open("ann")
    with first.exclusively("up"):
        make(first)
    second = operators.open("ben")
    with second.exclusively("down"):
        second.forget()
        assert second.sharing is not None
        second.sharing.remove()
    assert objects() == {}
    assert operators.open("ann").nodes() == []


def test_what_was_made_before_it_was_shared_is_kept_and_shared(operators: Operators) -> None:
    file = operators.folder("ann")
    text = file.read_text()
    file.write_text(text.replace("backend: s3, bucket: acme-gpuprov, create: true", "backend: local"))
    alone = operators.open("ann")
    with alone.exclusively("up"):
        make(alone)
    file.write_text(text)
    with operators.open("ann").exclusively("up"):
        pass
    assert operators.open("ben").nodes() == [NODE]


def test_a_verdict_is_shared_where_nobody_is_at_work(operators: Operators) -> None:
    first, second = operators.open("ann"), operators.open("ben")
    with first.exclusively("up"):
        make(first)
    with second.noted("verify") as is_noted:
        assert is_noted
        node_state.note(second.paths, nodes={"train-0": {"stage": "unhealthy", "ok": False}})
    assert node_state.load(operators.open("ann").paths).of("train-0").ok is False
    with first.exclusively("up"), second.noted("verify") as is_noted:
        assert not is_noted


@pytest.mark.parametrize(
    "name", ["../../.ssh/authorized_keys", "/etc/passwd", "ssh/id_ed25519", "ssh/config", "sites/a/../b/provider",
             "sites/a/main.tf", "sites/a/module/main.tf", "sites/a/../../main.tf",
             "runs/x/y/report.html", "sites/a/module/node.sh", "nodes.json\n"],
)  # fmt: skip
def test_nothing_is_written_that_is_never_shared(operators: Operators, name: str) -> None:
    bucket = remote(operators.open("ann").spec)
    bucket.prepare()
    document = {"format": 1, "files": {name: "x"}}
    bucket.write(FLEET, gzip.compress(json.dumps(document).encode()), None)
    with pytest.raises(GpuprovError, match="never shared"):
        operators.open("ben")
    assert not (operators.root / "ben" / ".gpuprov" / "vision").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "damaged"), (b"\x1f\x8b", "damaged"), (gzip.compress(b"[]"), "damaged"), (gzip.compress(b"{"), "damaged"),
     (gzip.compress(b'{"format": 2, "files": {}}'), "newer gpuprov")],
    ids=["nothing", "half a header", "a list", "half a document", "of tomorrow"],
)  # fmt: skip
def test_what_is_damaged_is_said(operators: Operators, content: bytes, message: str) -> None:
    bucket = remote(operators.open("ann").spec)
    bucket.prepare()
    bucket.write(FLEET, content, None)
    with pytest.raises(GpuprovError, match=message):
        operators.open("ben")


def test_the_bucket_is_made_closed(operators: Operators) -> None:
    bucket = remote(operators.open("ann").spec)
    assert [f.message for f in bucket.prepare()] == [f"made the bucket {BUCKET} in us-east-1"]
    client = bucket._region.client("s3")
    blocks = client.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert set(blocks.values()) == {True}
    assert client.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    rules = client.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    old = client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"][0]
    assert old["NoncurrentVersionExpiration"] == {"NoncurrentDays": s3.KEPT_DAYS}
    policy = json.loads(client.get_bucket_policy(Bucket=BUCKET)["Policy"])
    assert policy["Statement"][0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert [f.status for f in bucket.prepare()] == ["ok"]


def test_a_bucket_that_was_there_is_looked_at(operators: Operators) -> None:
    bucket = remote(operators.open("ann").spec)
    bucket._region.client("s3").create_bucket(Bucket=BUCKET)
    messages = [f.message for f in bucket.prepare()]
    assert any("has no versioning" in message for message in messages)
    assert any("being made public" in message for message in messages)


def test_a_bucket_is_not_made_unasked(operators: Operators) -> None:
    file = operators.folder("ann")
    file.write_text(file.read_text().replace(", create: true", ""))
    with pytest.raises(ProviderError, match=f"no bucket {BUCKET}|NoSuchBucket|does not exist") as caught:
        operators.open("ann")
    assert "state.create: true" in caught.value.hint


def test_without_a_name_the_bucket_follows_from_the_account(operators: Operators) -> None:
    file = operators.folder("ann")
    file.write_text(file.read_text().replace("bucket: acme-gpuprov, ", ""))
    cluster = operators.open("ann")
    assert cluster.remote is not None
    assert cluster.remote.where == "s3://gpuprov-123456789012-us-east-1/gpuprov/vision"


def test_without_credentials_nothing_is_guessed(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    first = operators.open("ann")
    with first.exclusively("up"):
        make(first)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(operators.root))
    with pytest.raises(ProviderError, match="credentials") as caught:
        operators.open("ann")
    assert caught.value.hint == "sign in to AWS"
    assert operators.open("ann", offline=True).nodes() == [NODE]  # what this machine last knew


def test_gc_takes_a_shared_cluster_for_alive_while_anything_of_it_is_there(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = operators.open("ann")
    assert alive_here("vision", [operators.root], first.spec) == ""
    with first.exclusively("up"):
        make(first)
    assert alive_here("vision", [operators.root], first.spec) == "its state is in s3://acme-gpuprov/gpuprov/vision"
    assert alive_here("another", [operators.root], first.spec) == ""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(operators.root))
    assert "could not be read" in alive_here("vision", [operators.root], first.spec)


def test_terraform_keeps_its_state_there_and_locks_it(operators: Operators, tmp_path: Path) -> None:
    remote = operators.open("ann").remote
    assert remote is not None
    plan = aws_plan(access={"allow": (IPv4Network("203.0.113.0/24"),)})
    module = Aws(Place("vision", "here", plan.spec.sites["here"], tmp_path)).module
    text = main_tf(plan, "here", module, ssh_public_key="", identity="0", backend=remote.terraform("here"))
    assert 'key = "gpuprov/vision/sites/here/terraform.tfstate"' in text
    for line in ('backend "s3"', "encrypt = true", "use_lockfile = true", 'allowed_account_ids = ["123456789012"]'):
        assert line in text
    assert 'backend "local"' not in text


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("access: {}\nstate: {backend: s3}\n", 4, "access.ssh_key is required"),
        ("access: {ssh_key: ~/k}\nstate: {backend: gcs}\n", 5, "is not one of local, "),
        ("state:\n  backend: local\n  bucket: acme\n", 6, "it belongs to backend: "),
        ("state: {backend: s3, bucket: A}\n", 4, "bucket"),
    ],
)
def test_what_cannot_be_shared_is_refused_at_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("".join(FILE.splitlines(keepends=True)[:3]) + text)
    with pytest.raises(InputError) as caught:
        open_cluster(file, sandbox=False)
    assert f":{line}:" in str(caught.value)
    assert message in str(caught.value)


def test_a_sandbox_asks_nobody(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("KEY", "~/nowhere"))
    assert open_cluster(file, sandbox=True).sharing is None


def test_a_plan_makes_no_bucket(operators: Operators, tmp_path: Path) -> None:
    first = operators.open("ann")
    with first.exclusively("plan", look=True):
        assert first.sharing is not None
        messages = [f.message for f in first.sharing.findings]
        assert messages == [f"`up` will make the bucket {BUCKET} in us-east-1"]
        assert first.remote is None  # Terraform plans beside its workspace: nothing of the cluster is anywhere
    assert remote(first.spec)._region.client("s3").list_buckets()["Buckets"] == []
    second = operators.open("ann")
    with second.exclusively("up"):
        assert second.remote is not None
        make(second)
    assert set(objects()) == {FLEET}
    with operators.open("ben").exclusively("plan", look=True):
        assert HOLDER in objects()
