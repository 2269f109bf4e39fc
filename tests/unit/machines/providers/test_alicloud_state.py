"""State in OSS: made closed, written by one at a time, and Terraform's own backend beside it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.alicloud import client
from provisioner.machines.providers.alicloud.bucket import Bucket
from provisioner.machines.providers.alicloud.oss import Oss
from provisioner.machines.providers.alicloud.state import OssState
from provisioner.machines.providers.state import Conflict
from provisioner.machines.terraform.binary import find
from tests.support import oss_api
from tests.support.alicloud_api import Account
from tests.support.oss_api import Store

NAME = "gpuprov-1234567890123456-cn-shanghai"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    object_store = Store()
    with oss_api.serving(object_store, Account()) as url:
        for name, value in {client.ENDPOINT: url, "NO_PROXY": "127.0.0.1", "ALICLOUD_ACCESS_KEY": "LTAI-test",
                            "ALICLOUD_SECRET_KEY": "test"}.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "ATTEMPTS", 1)
        yield object_store


def bucket(**keys: object) -> Bucket:
    return Bucket(Oss("cn-shanghai"), OssState(backend="oss", **keys), "speech")  # type: ignore[arg-type]


def test_a_bucket_is_made_closed_where_that_is_asked_for(store: Store) -> None:
    with pytest.raises(ProviderError, match=f"there is no bucket {NAME}"):
        bucket().prepare()
    state_bucket = bucket(create=True)
    assert state_bucket.prepare(make=False)[0].status == "ok" and not state_bucket.there and store.buckets == {}
    assert state_bucket.names() == [] and state_bucket.read("nodes.json") is None
    assert state_bucket.prepare()[0].message == f"made the bucket {NAME} in cn-shanghai"
    created_bucket = store.buckets[NAME]
    assert created_bucket.blocked and created_bucket.encryption == "AES256"
    assert [finding.message for finding in bucket().prepare()] == [f"oss://{NAME}/gpuprov/speech"]


def test_a_bucket_that_may_not_be_used_is_refused(store: Store) -> None:
    store.buckets["acme"] = oss_api.Bucket(owner="9")
    with pytest.raises(ProviderError, match="of account 9, not of 1234567890123456"):
        bucket(bucket="acme").prepare()
    store.buckets["acme"] = oss_api.Bucket(versioning="Enabled")
    with pytest.raises(ProviderError, match="has versioning"):
        bucket(bucket="acme").prepare()
    store.buckets["acme"] = oss_api.Bucket(blocked=False)
    assert [finding.status for finding in bucket(bucket="acme").prepare()] == ["warning"]
    store.buckets["acme"] = oss_api.Bucket(acl="public-read")
    assert [finding.status for finding in bucket(bucket="acme").prepare()] == ["blocks"]


def test_a_blob_is_written_on_condition_of_what_was_there(store: Store) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    state_bucket, theirs = bucket(), bucket()
    first = state_bucket.write("nodes.json", b"1", None)
    with pytest.raises(Conflict):
        theirs.write("nodes.json", b"2", None)
    blob = theirs.read("nodes.json")
    assert blob is not None and (blob.content, blob.tag) == (b"1", first) and -5 < blob.age_s < 5
    second = theirs.write("nodes.json", b"2", first)
    with pytest.raises(Conflict):
        state_bucket.write("nodes.json", b"3", first)
    known = state_bucket.read("nodes.json", known=second)
    assert known is not None and known.content == b""
    for number in range(5):
        second = state_bucket.write("nodes.json", str(number).encode(), second)
    assert len(store.buckets[NAME].objects) == 2  # old versions do not pile up


def test_a_blob_that_was_removed_is_gone_and_no_old_writer_brings_it_back(store: Store) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    state_bucket, theirs = bucket(), bucket()
    tag = state_bucket.write("holder.json", b"mine", None)
    state_bucket.write("runs/1/report.json", b"{}", None)
    theirs.remove("holder.json")
    theirs.remove("holder.json")
    assert state_bucket.read("holder.json") is None and state_bucket.names() == ["runs/1/report.json"]
    with pytest.raises(Conflict):
        state_bucket.write("holder.json", b"mine still", tag)
    assert state_bucket.write("holder.json", b"anew", None) and sorted(theirs.names()) == [
        "holder.json",
        "runs/1/report.json",
    ]


def test_a_writer_that_slept_does_not_win_with_a_version_that_was_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    slow, quick = bucket(), bucket()
    tag = quick.write("nodes.json", b"2", quick.write("nodes.json", b"1", None))
    real_ask = slow._ask

    def slept(call: str, request: str, **arguments: Any) -> Any:
        if call == "put_object":
            latest_tag = tag
            for number in range(3):  # v3 to v5; v3 is forgotten
                latest_tag = quick.write("nodes.json", f"quick {number}".encode(), latest_tag)
        return real_ask(call, request, **arguments)

    monkeypatch.setattr(slow, "_ask", slept)
    with pytest.raises(Conflict):
        slow.write("nodes.json", b"slow", tag)
    assert sorted(key[-1] for key in store.buckets[NAME].objects) == ["4", "5"]
    blob = quick.read("nodes.json")
    assert blob is not None and blob.content == b"quick 2"


def test_a_list_without_an_end_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    state_bucket = bucket()
    state_bucket._account  # noqa: B018 (asked once)
    endless = SimpleNamespace(contents=(), is_truncated=True, next_continuation_token="again")
    monkeypatch.setattr(state_bucket, "_ask", lambda *_, **__: endless)
    with pytest.raises(ProviderError, match="1000 pages"):
        state_bucket.names()


def test_of_many_writers_one_wins(store: Store) -> None:
    store.buckets[NAME] = oss_api.Bucket()

    def write(number: int) -> bool:
        try:
            bucket().write("holder.json", str(number).encode(), None)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "AccessDenied", "gpuprov docs alicloud state"), (403, "InvalidAccessKeyId", "sign in"),
        (503, "ServiceUnavailable", "network"),
    ],
)  # fmt: skip
def test_a_store_that_refuses_says_why(store: Store, status: int, code: str, hint: str) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    store.refuse["PUT", "object"] = (status, code)
    with pytest.raises(ProviderError, match=f"It is {code}") as caught:
        bucket().write("nodes.json", b"1", None)
    assert hint in str(caught.value.hint)


@pytest.mark.heavy
def test_terraforms_own_backend_keeps_its_state_there(store: Store, tmp_path: Path) -> None:
    store.buckets[NAME] = oss_api.Bucket()
    kind, values = bucket().terraform("shanghai")
    root = {"terraform": {"backend": {kind: values}}, "output": {"seen": {"value": "yes"}}}
    (tmp_path / "main.tf.json").write_text(json.dumps(root))
    environment = {
        **os.environ, **client.environment(), "OSS_ENDPOINT": os.environ[client.ENDPOINT],
        "TF_CLI_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    for arguments in (["init"], ["apply", "-auto-approve"], ["plan", "-detailed-exitcode"]):
        done = subprocess.run([*find().argv, *arguments, "-no-color"], cwd=tmp_path, env=environment, check=False,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    key = "gpuprov/speech/sites/shanghai/terraform.tfstate"
    assert json.loads(store.buckets[NAME].objects[key].content)["outputs"]["seen"]["value"] == "yes"
    assert bucket().names() == []  # it is no blob of gpuprov's


@pytest.mark.parametrize("prefix", ["..", "a/../b", "../a", ".", "a/./b"])
def test_a_folder_that_leads_elsewhere_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match="prefix"):
        OssState.model_validate({"backend": "oss", "bucket": "acme", "region": "cn-shanghai", "prefix": prefix})
