"""State in COS: a bucket of one's own with one folder per cluster, reached by its S3 API.

COS has no conditional writes in a bucket with versions, so that a write is between two calls of the tag service, as
Terraform's own backend has it: a tag can be made once in an account, and who has made it writes.
https://cloud.tencent.com/document/product/436/37421 (S3 API);
github.com/hashicorp/terraform, internal/backend/remote-state/cos/client.go (Lock, cosLock)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from provisioner.common.errors import ProviderError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.state import Blob, Conflict
from provisioner.machines.providers.state_folder import LIMIT, VERSIONS, StateFolder, age_s, refuse_oversized
from provisioner.machines.providers.tencent.client import ANSWER_S, SLOW, Region
from provisioner.machines.providers.tencent.findings import SIGN_IN
from provisioner.machines.providers.tencent.state import CosState
from provisioner.machines.providers.trouble import Kind, Trouble

if TYPE_CHECKING:
    from botocore.client import BaseClient

WRITING = "gpuprov-state-write"
"""Key of the tag that a writer holds; its value tells nothing."""
WAIT_S, PAUSE_S = 30.0, 1.0
OLD_S = 180.0
"""A write is a second, with all of its retries less than OLD_S; one that stands longer was left by a run that died."""
HELD, TRIES, PAGES = "ResourceInUse", 4, 1000
GONE, MISSING, SAME = {"NoSuchKey", "404"}, {"NoSuchBucket", "404"}, {"304", "NotModified"}
DENIED = {"AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
EVERYBODY = "AllUsers"
HINTS = {
    "settings": "`gpuprov docs tencent` says where credentials are looked for", "credentials": f"sign in: {SIGN_IN}",
    "denied": "the bucket is another account's, or `gpuprov docs tencent state` has the missing policy",
    "throttled": "again in a minute", "silent": "is this machine's network up?",
}  # fmt: skip


class CosBucket(StateFolder):
    """One cluster's folder in a bucket."""

    missing = MISSING

    def __init__(self, region: Region, state: CosState, cluster: str) -> None:
        super().__init__(state, cluster)
        self._region, self._state = region, state

    @property
    def where(self) -> str:
        return f"cos://{self._state.bucket}/{self._folder}"

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        """Credentials stay in the environment or the command line's profile, where the backend looks by itself."""
        domain = {"domain": "intl.tencentcloudapi.com"} if self._region.international else {}
        return "cos", {
            "bucket": self._state.bucket, "region": self._region.name, "prefix": f"{self._folder}/sites/{site}",
            "key": "terraform.tfstate", "encrypt": True, "acl": "private", **domain,
        }  # fmt: skip

    @property
    def _store(self) -> str:
        return f"bucket {self._state.bucket} in {self._region.name}"

    def _look(self) -> Any:
        return self._ask("head_bucket")

    def _make(self) -> None:
        try:
            self._ask("create_bucket", ACL="private")
            self._ask("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
        except Trouble as error:
            raise self._store_error(error) from None

    def _looked_at(self, info: Any) -> list[Finding]:  # noqa: ARG002
        """What is wrong with a bucket that was there; what could not be asked is unknown."""
        findings, bucket = [], self._state.bucket
        try:
            if self._ask("get_bucket_versioning").get("Status") != "Enabled":
                message = f"{bucket} has no versioning: a lost state cannot be restored"
                findings.append(Finding("warning", "state", message, "enable versioning"))
        except Trouble as error:
            findings.append(Finding("unknown", "state", f"whether {bucket} keeps versions: {error}"))
        try:
            grants = self._ask("get_bucket_acl").get("Grants", ())
            if any(str(grant.get("Grantee", {}).get("URI", "")).endswith(EVERYBODY) for grant in grants):
                message = f"everybody may read {bucket}, and a state has secrets"
                findings.append(Finding("blocks", "state", message, "make it private"))
        except Trouble as error:
            findings.append(Finding("unknown", "state", f"who may read {bucket}: {error}"))
        return findings or [Finding("ok", "state", self.where)]

    def read(self, name: str, known: str | None = None) -> Blob | None:
        match = {"IfNoneMatch": known} if known else {}
        try:
            answer = self._ask("get_object", Key=f"{self._folder}/{name}", **match)
            return Blob(_body(answer["Body"]), str(answer["ETag"]), _age(answer))
        except Trouble as error:
            if error.code in SAME and known:
                return Blob(b"", known)
            if error.code in GONE or (error.code in MISSING and self._state.create):
                return None
            raise self._store_error(error) from None

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        key = f"{self._folder}/{name}"
        try:
            with self._alone(key):
                if self._tag(key) != previous_tag:
                    raise Conflict(f"{self.where}/{name}")
                return str(self._ask("put_object", Key=key, Body=content, ServerSideEncryption="AES256")["ETag"])
        except Trouble as error:
            raise self._store_error(error) from None

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        key = f"{self._folder}/{name}"
        try:
            if previous_tag is None:
                self._ask("delete_object", Key=key)
                return
            with self._alone(key):
                if (current_tag := self._tag(key)) is not None and current_tag != previous_tag:
                    raise Conflict(f"{self.where}/{name}")
                self._ask("delete_object", Key=key)
        except Trouble as error:
            raise self._store_error(error) from None

    def names(self) -> list[str]:
        folder, names, more = f"{self._folder}/", list[str](), dict[str, str]()
        for _ in range(PAGES):
            try:
                page = self._ask("list_objects", Prefix=folder, **more)
            except Trouble as error:
                if error.code in MISSING and self._state.create:
                    return []
                raise self._store_error(error) from None
            keys = [str(entry["Key"]) for entry in page.get("Contents", ())]
            names += [key.removeprefix(folder) for key in keys]
            if not page.get("IsTruncated") or not keys:
                return names
            more = {"Marker": keys[-1]}
        raise ProviderError(f"{self.where} has more than {PAGES} pages of objects", where="state", hint="look at them")

    def _tag(self, key: str) -> str | None:
        try:
            return str(self._ask("head_object", Key=key)["ETag"])
        except Trouble as error:
            if error.code in GONE:
                return None
            raise

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """While the tag of an object is held. Raises ProviderError where somebody else has held it for too long."""
        tag, until, unclear = self._mark(key), time.monotonic() + WAIT_S, False
        while True:
            try:
                self._region.ask("tag", "CreateTag", **tag)
                break
            except Trouble as error:
                late = time.monotonic() > until
                if _is_unclear(error) and not late:
                    unclear = True
                elif not error.code.startswith(HELD):
                    raise
                elif late and unclear:  # others hold one for a second: this is ours, whose answer was lost
                    self._release(tag)
                    unclear, until = False, time.monotonic() + WAIT_S
                elif late:
                    message = (
                        f"{self.where} has been written to for more than {WAIT_S:.0f} s: a run may have died in it"
                    )
                    command = f"tccli tag DeleteTag --TagKey {WRITING} --TagValue {tag['TagValue']}"
                    hint = f"if no other run is active: `gpuprov unlock`, or `{command}`"
                    raise ProviderError(message, where="state", hint=hint) from None
            time.sleep(PAUSE_S)
        try:
            yield
        finally:
            with suppress(Trouble):  # the next writer says so
                self._release(tag)

    def unlock(self, names: Sequence[str]) -> list[str]:
        """Remove the tags of writers that died; those that stand for OLD_S are theirs. Gives whose blobs they were."""
        waiting, until, removed = list(names), time.monotonic() + OLD_S, list[str]()
        try:
            while waiting:
                for name in list(waiting):
                    tag = self._mark(f"{self._folder}/{name}")
                    try:
                        self._region.ask("tag", "CreateTag", **tag)
                    except Trouble as error:
                        if not error.code.startswith(HELD):
                            raise
                        if time.monotonic() < until:
                            continue
                        removed.append(f"{WRITING} of {name}")
                    self._release(tag)
                    waiting.remove(name)
                if waiting:
                    time.sleep(PAUSE_S)
        except Trouble as error:
            raise self._store_error(error) from None
        return removed

    def _mark(self, key: str) -> dict[str, str]:
        """The tag of an object's writer."""
        return {"TagKey": WRITING, "TagValue": hashlib.sha256(f"{self._state.bucket}:{key}".encode()).hexdigest()}

    def _release(self, tag: Mapping[str, str]) -> None:
        """Raises Trouble."""
        for attempts_left in reversed(range(TRIES)):
            try:
                self._region.ask("tag", "DeleteTag", **tag)
                return
            except Trouble as error:
                if error.kind == "absent":  # the answer before was lost
                    return
                if not attempts_left or not _is_unclear(error):
                    raise
            time.sleep(PAUSE_S)

    @cached_property
    def _client(self) -> BaseClient:
        import boto3
        from botocore.config import Config

        keys, protocol = self._region.keys(), os.environ.get("TENCENTCLOUD_PROTOCOL", "https").lower()
        config = Config(
            connect_timeout=5, read_timeout=ANSWER_S, retries={"mode": "standard", "max_attempts": 4},
            signature_version="s3v4", s3={"addressing_style": "virtual"},
            request_checksum_calculation="when_required", response_checksum_validation="when_required",
        )  # fmt: skip
        session = boto3.session.Session(
            aws_access_key_id=keys.secret_id, aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token or None, region_name=self._region.name,
        )  # fmt: skip
        return session.client("s3", endpoint_url=f"{protocol}://cos.{self._region.name}.myqcloud.com", config=config)

    def _ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        client = self._client
        answer: dict[str, Any] = _answered(lambda: getattr(client, call)(Bucket=self._state.bucket, **arguments))
        return answer

    def _store_error(self, error: Trouble) -> ProviderError:
        hint = "state.create: true has gpuprov make it" if error.code in MISSING else HINTS.get(error.kind, "")
        return ProviderError(f"the cluster's state: {error}", where="state", hint=hint)


def _is_unclear(error: Trouble) -> bool:
    """Whether the call may have been done all the same."""
    return error.kind == "silent" or error.code.startswith(SLOW)


def _answered(call: Callable[[], Any]) -> Any:
    """The call's value; every exception of botocore as Trouble."""
    from botocore import exceptions

    try:
        return call()
    except exceptions.ClientError as error:
        details = error.response.get("Error", {})
        code = str(details.get("Code", ""))
        kind: Kind = "denied" if code in DENIED else "throttled" if code == "SlowDown" else "refused"
        raise Trouble(kind, str(details.get("Message") or error), code) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise Trouble("silent", str(error)) from None
    except exceptions.BotoCoreError as error:
        raise Trouble("refused", str(error)) from None


def _age(answer: Mapping[str, Any]) -> float:
    return age_s(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), answer["LastModified"])


def _body(stream: Any) -> bytes:
    """All of it; a connection that breaks half way is Trouble too. Raises ProviderError for what is no object of
    ours."""
    return refuse_oversized(_answered(lambda: stream.read(LIMIT + 1)), VERSIONS)
