"""State in OSS: a bucket of one's own, closed and encrypted, with one folder per cluster.

OSS can refuse to overwrite an object (x-oss-forbid-overwrite), and cannot write on condition of what is there. So every
version of a blob is an object of its own, NAME.v000000000007: who writes the next number first has written, and of two
writers one is told that it lost. A blob that was removed is an empty version. In a bucket with versioning OSS ignores
that header, so that such a bucket is refused.
https://www.alibabacloud.com/help/en/oss/developer-reference/putobject
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from provisioner.common.errors import ProviderError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud.oss import Oss, answered
from provisioner.machines.providers.alicloud.state import OssState
from provisioner.machines.providers.state import Blob, Conflict
from provisioner.machines.providers.state_folder import StateFolder, age_s, refuse_oversized
from provisioner.machines.providers.trouble import Trouble

LOST = {"FileAlreadyExists"}
GONE = {"NoSuchKey"}
MISSING = {"NoSuchBucket"}
KEPT = 2
"""Versions of a blob that stay: somebody may just be reading the one before."""
VERSION = re.compile(r"(.+)\.v(\d{12})")
TRIES = 5
PAGES = 1000
"""A million objects: no cluster has as many."""
HINTS = {
    "credentials": "sign in to Alibaba Cloud", "denied": "`gpuprov docs alicloud state` has the policy",
    "throttled": "again in a minute", "silent": "is this machine's network up, and is there an endpoint of OSS?",
}  # fmt: skip


class Latest(NamedTuple):
    """The newest version of a blob; `size` 0: it was removed."""

    number: int
    size: int


class Bucket(StateFolder):
    """One cluster's folder in a bucket."""

    missing = MISSING

    def __init__(self, oss: Oss, state: OssState, cluster: str) -> None:
        super().__init__(state, cluster)
        self._oss, self._state = oss, state

    @property
    def where(self) -> str:
        return f"oss://{self.bucket}/{self._folder}"

    @cached_property
    def _account(self) -> str:
        try:
            return self._oss.account()
        except Trouble as error:
            raise self._store_error(error) from None

    @cached_property
    def bucket(self) -> str:
        """Its name. Without one in cluster.yaml it follows from account and region: names are unique in the world."""
        return self._state.bucket or f"gpuprov-{self._account}-{self._oss.region}"

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        # Terraform's `encrypt` asks for AES256, which would take the place of a bucket's own KMS key.
        return "oss", {
            "bucket": self.bucket, "prefix": f"{self._folder}/sites/{site}", "key": "terraform.tfstate",
            "region": self._oss.region, "encrypt": self._state.kms_key is None, "acl": "private",
        }  # fmt: skip

    @property
    def _store(self) -> str:
        return f"bucket {self.bucket} in {self._oss.region}"

    def _look(self) -> Any:
        return self._ask("get_bucket_info", "GetBucketInfoRequest").bucket_info

    def _looked_at(self, info: Any) -> list[Finding]:
        """What is wrong with a bucket that was there. Raises ProviderError for one that may not be used."""
        owner = str(info.owner.id) if info.owner else ""
        if owner != self._account:
            message = f"the bucket {self.bucket} is of account {owner or 'unknown'}, not of {self._account}"
            raise ProviderError(message, where="state", hint="another state.bucket: names are unique in the world")
        if info.versioning in ("Enabled", "Suspended"):
            message = f"the bucket {self.bucket} has versioning, with which OSS cannot keep two writers apart"
            raise ProviderError(message, where="state", hint="a bucket that never had versioning")
        findings = []
        if not info.block_public_access:
            message = f"nothing keeps {self.bucket} from being made public"
            findings.append(Finding("warning", "state", message, "block public access"))
        if str(info.acl or "private") != "private":
            message = f"{self.bucket} is {info.acl}, and a state has secrets"
            findings.append(Finding("blocks", "state", message, "make it private"))
        return findings or [Finding("ok", "state", self.where)]

    def _make(self) -> None:
        """Closed before anything is in it; what a crash left half done is done by the next run that is asked to."""
        from alibabacloud_oss_v2 import models

        key = self._state.kms_key
        kind = "KMS" if key else "AES256"
        rule = models.ApplyServerSideEncryptionByDefault(sse_algorithm=kind, kms_master_key_id=key)
        try:
            self._ask("put_bucket", "PutBucketRequest", acl="private")
            self._ask(
                "put_bucket_public_access_block", "PutBucketPublicAccessBlockRequest",
                public_access_block_configuration=models.PublicAccessBlockConfiguration(block_public_access=True),
            )  # fmt: skip
            self._ask(
                "put_bucket_encryption", "PutBucketEncryptionRequest",
                server_side_encryption_rule=models.ServerSideEncryptionRule(apply_server_side_encryption_by_default=rule),
            )  # fmt: skip
        except Trouble as error:
            raise self._store_error(error) from None

    def read(self, name: str, known: str | None = None) -> Blob | None:
        try:
            for _ in range(TRIES):
                latest = self._latest(name)
                if latest is None or not latest.size:
                    return None
                if str(latest.number) == known:
                    return Blob(b"", known)
                try:
                    answer = self._ask("get_object", "GetObjectRequest", key=self._key(name, latest.number))
                    return Blob(_body(answer.body), str(latest.number), _age(answer))
                except Trouble as error:
                    if error.code not in GONE:  # somebody has written it twice meanwhile
                        raise
        except Trouble as error:
            if error.code in MISSING and self._state.create:
                return None
            raise self._store_error(error) from None
        raise ProviderError(f"{self.where}/{name} changes too fast to be read", where="state", hint="run it again")

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        assert content  # an empty one is a blob that was removed
        try:
            latest = self._latest(name)
            current_tag = str(latest.number) if latest and latest.size else None
            if current_tag != previous_tag:
                raise Conflict(f"{self.where}/{name}")
            return str(self._put(name, (latest.number if latest else 0) + 1, content))
        except Trouble as error:
            if error.code in LOST:
                raise Conflict(f"{self.where}/{name}") from None
            raise self._store_error(error) from None

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        try:
            for _ in range(TRIES):
                latest = self._latest(name)
                if latest is None or not latest.size:
                    return
                if previous_tag is not None and str(latest.number) != previous_tag:
                    raise Conflict(f"{self.where}/{name}")
                try:
                    self._put(name, latest.number + 1, b"")
                    return
                except Trouble as error:
                    if error.code not in LOST:
                        raise
        except Trouble as error:
            raise self._store_error(error) from None
        raise ProviderError(f"{self.where}/{name} changes too fast to remove it", where="state", hint="run it again")

    def names(self) -> list[str]:
        newest: dict[str, Latest] = {}
        try:
            for key, size in self._listed(f"{self._folder}/"):
                if match := VERSION.fullmatch(key.removeprefix(f"{self._folder}/")):
                    newest[match[1]] = Latest(int(match[2]), size)  # in the order of keys: the last is the newest
        except Trouble as error:
            if error.code in MISSING and self._state.create:
                return []
            raise self._store_error(error) from None
        return [name for name, latest in newest.items() if latest.size]

    def _put(self, name: str, number: int, content: bytes) -> int:
        """Write that version, unless it is there, and forget old ones. A version of that number may have been there and
        be forgotten, which others do only after a version KEPT higher: then this one has lost. Raises Trouble."""
        object_key = self._key(name, number)
        self._ask("put_object", "PutObjectRequest", key=object_key, body=content, forbid_overwrite=True)
        version_numbers = {
            key: int(match[2]) for key, _ in self._listed(self._key(name)) if (match := VERSION.fullmatch(key))
        }
        if max(version_numbers.values(), default=number) >= number + KEPT:
            self._ask("delete_object", "DeleteObjectRequest", key=object_key)
            raise Trouble("refused", f"newer versions of {name} are there", "FileAlreadyExists")
        for key, version in version_numbers.items():
            if version <= number - KEPT:
                self._ask("delete_object", "DeleteObjectRequest", key=key)
        return number

    def _latest(self, name: str) -> Latest | None:
        """Raises Trouble."""
        matches = [(VERSION.fullmatch(key), size) for key, size in self._listed(self._key(name))]
        versions = [Latest(int(match[2]), size) for match, size in matches if match]
        return max(versions, default=None)

    def _key(self, name: str, number: int | None = None) -> str:
        """The key of a version; without a number what all of them begin with."""
        return f"{self._folder}/{name}.v" + ("" if number is None else f"{number:012d}")

    def _listed(self, prefix: str) -> list[tuple[str, int]]:
        """Key and size of every object that begins so, in order. Raises Trouble."""
        objects: list[tuple[str, int]] = []
        token = None
        for _ in range(PAGES):
            answer = self._ask(
                "list_objects_v2", "ListObjectsV2Request", prefix=prefix, continuation_token=token, max_keys=1000
            )
            objects += [(str(entry.key), int(entry.size or 0)) for entry in answer.contents or ()]
            token = answer.next_continuation_token
            if not answer.is_truncated or not token:
                return objects
        raise Trouble("refused", f"{self.where} has more than {PAGES} pages of objects")

    def _ask(self, call: str, request: str, **arguments: Any) -> Any:
        return self._oss.ask(call, request, bucket=self.bucket, **arguments)

    def _store_error(self, error: Trouble) -> ProviderError:
        hint = HINTS.get(error.kind, "")
        if error.kind == "denied":
            hint = "the bucket is another account's, or `gpuprov docs alicloud state` has the missing policy"
        if error.code in MISSING:
            hint = "state.create: true has gpuprov make it"
        return ProviderError(f"the cluster's state: {error}", where="state", hint=hint)


def _age(answer: Any) -> float:
    return age_s(answer.headers.get("Date") if answer.headers else None, answer.last_modified)


def _body(stream: Any) -> bytes:
    """All of it; a connection that breaks half way is Trouble too. Raises ProviderError for what is no object of
    ours."""
    return refuse_oversized(bytes(answered(stream.read)), "check who wrote it")
