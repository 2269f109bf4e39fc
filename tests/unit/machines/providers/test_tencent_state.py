"""A cluster's state in COS: its objects by the S3 API, its writes between two calls of the tag service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.lifecycle.sharing import lease
from provisioner.machines.providers.state import Conflict
from provisioner.machines.providers.tencent import client, cos
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.cos import CosBucket
from provisioner.machines.providers.tencent.state import CosState
from tests.support.tencent_api import Refused, TencentApi, serving
from tests.support.tencent_cos import Cos

BUCKET = "fleet-1250000000"


class Account:
    """A stand-in of the tag service and COS, and a cluster's bucket in it."""

    def __init__(self) -> None:
        self.api, self.cos, self.tags = TencentApi(), Cos({BUCKET: {}}, versioned={BUCKET}), set[str]()
        self.api.answers = {"CreateTag": self._create, "DeleteTag": self._delete}

    def _create(self, request: dict[str, str]) -> dict[str, str]:
        if request["TagValue"] in self.tags:
            raise Refused("ResourceInUse.TagDuplicate", "tag exists")
        self.tags.add(request["TagValue"])
        return {}

    def _delete(self, request: dict[str, str]) -> dict[str, str]:
        self.tags.discard(request["TagValue"])
        return {}

    def bucket(self, *, create: bool = False, cluster: str = "vision") -> CosBucket:
        return CosBucket(Region("ap-guangzhou"), CosState(backend="cos", bucket=BUCKET, create=create), cluster)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for module in (client, cos):
        monkeypatch.setattr(module, "PAUSE_S", 0.01)
    monkeypatch.setattr(cos, "WAIT_S", 0.05)
    served_account = Account()
    with serving(served_account.api, served_account.cos) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield served_account


def test_blobs_are_written_read_listed_and_removed(account: Account) -> None:
    bucket = account.bucket()
    assert bucket.read("a.json") is None and bucket.names() == []
    tag = bucket.write("a.json", b"one", None)
    blob = bucket.read("a.json")
    assert blob is not None and (blob.content, blob.tag) == (b"one", tag) and -2 < blob.age_s < 60
    same = bucket.read("a.json", known=tag)
    assert same is not None and same.content == b""
    tag = bucket.write("a.json", b"two", tag)
    for name in ("b.json", "locks/c.json"):
        bucket.write(name, b"x", None)
    account.bucket(cluster="other").write("d.json", b"x", None)
    assert bucket.names() == ["a.json", "b.json", "locks/c.json"]
    bucket.remove("a.json")
    bucket.remove("a.json")
    assert bucket.read("a.json") is None
    assert account.tags == set(), "no tag is left"
    assert bucket.where == f"cos://{BUCKET}/gpuprov/vision"


def test_of_two_writers_one_is_told_that_it_lost(account: Account) -> None:
    bucket, other = account.bucket(), account.bucket()
    tag = bucket.write("holder.json", b"one", None)
    with pytest.raises(Conflict):
        other.write("holder.json", b"other", None)
    bucket.write("holder.json", b"two", tag)
    with pytest.raises(Conflict):
        other.write("holder.json", b"other", tag)
    bucket.remove("holder.json")
    with pytest.raises(Conflict):
        other.write("holder.json", b"other", tag)
    assert account.tags == set()


def test_a_tag_that_a_dead_run_left_is_named(account: Account) -> None:
    bucket = account.bucket()
    account.api.answers["DeleteTag"] = lambda _: {}  # it died here
    bucket.write("a.json", b"one", None)
    with pytest.raises(ProviderError, match="a run may have died") as error:
        bucket.write("a.json", b"two", None)
    (value,) = account.tags
    assert f"tccli tag DeleteTag --TagKey gpuprov-state-write --TagValue {value}" in str(error.value.hint)
    assert bucket.read("a.json") is not None


def test_a_lost_answer_of_the_tag_service_leaves_no_tag(account: Account) -> None:
    lost = {"CreateTag", "DeleteTag"}

    def losing(action: str, done: Callable[[dict[str, str]], dict[str, str]]) -> Callable[..., dict[str, str]]:
        def answer(request: dict[str, str]) -> dict[str, str]:
            response = done(request)
            if action in lost:
                lost.remove(action)
                raise Refused("InternalError", "lost")
            return response

        return answer

    account.api.answers = {
        "CreateTag": losing("CreateTag", account._create),
        "DeleteTag": losing("DeleteTag", account._delete),
    }
    assert account.bucket().write("a.json", b"one", None)
    assert account.tags == set() and lost == set()


def test_unlock_removes_the_tag_of_a_writer_that_died(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cos, "OLD_S", 0.05)
    bucket = account.bucket()
    assert lease.clear(bucket, tmp_path) == [] and account.tags == set()
    account.api.answers["DeleteTag"] = lambda _: {}  # it died here
    bucket.write("holder.json", b"{}", None)
    bucket.remove("holder.json")
    account.api.answers["DeleteTag"] = account._delete
    assert len(account.tags) == 1
    assert lease.clear(bucket, tmp_path) == ["gpuprov-state-write of holder.json"]
    assert account.tags == set() and bucket.write("holder.json", b"{}", None)


def test_a_list_without_an_end_ends(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = account.bucket()
    monkeypatch.setattr(bucket, "_ask", lambda *_, **__: {"Contents": [{"Key": "a"}], "IsTruncated": True})
    with pytest.raises(ProviderError, match="1000 pages"):
        bucket.names()


def test_a_bucket_is_looked_at_and_made_where_it_is_wanted(account: Account) -> None:
    assert [(finding.status, finding.message) for finding in account.bucket().prepare()] == [
        ("ok", f"cos://{BUCKET}/gpuprov/vision")
    ]
    account.cos.versioned.clear()
    account.cos.public.add(BUCKET)
    assert [finding.status for finding in account.bucket().prepare()] == ["warning", "blocks"]
    account.cos.buckets.clear()
    with pytest.raises(ProviderError, match="there is no bucket"):
        account.bucket().prepare()
    later = account.bucket(create=True)
    assert "will make" in later.prepare(make=False)[0].message and not later.there
    assert "made the bucket" in account.bucket(create=True).prepare()[0].message
    assert account.cos.versioned == {BUCKET}


def test_what_cos_refuses_is_told_with_what_to_do(account: Account) -> None:
    account.cos.refused = "AccessDenied"
    for call in (
        lambda bucket: bucket.read("a"),
        lambda bucket: bucket.write("a", b"", None),
        lambda bucket: bucket.names(),
        lambda bucket: bucket.prepare(),
    ):
        with pytest.raises(ProviderError) as error:
            call(account.bucket())
        assert "gpuprov docs tencent state` has the missing policy" in str(error.value.hint)


def test_terraforms_backend_has_no_credentials_in_it(account: Account) -> None:
    kind, values = account.bucket().terraform("here")
    assert (kind, dict(values)) == ("cos", {
        "bucket": BUCKET, "region": "ap-guangzhou", "prefix": "gpuprov/vision/sites/here", "key": "terraform.tfstate",
        "encrypt": True, "acl": "private",
    })  # fmt: skip
