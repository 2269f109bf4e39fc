"""State in S3: a bucket of one's own, encrypted and versioned, reached over TLS alone, with one folder per cluster.

Every call says whose bucket it must be: a name that somebody else took first is refused, not written to. Writes are
conditional (If-Match, If-None-Match), so that of two writers one is told that it lost.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from provisioner.common.errors import ProviderError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.state import S3State
from provisioner.machines.providers.state import Blob, Conflict
from provisioner.machines.providers.state_folder import LIMIT, VERSIONS, StateFolder, age_s, refuse_oversized
from provisioner.machines.providers.trouble import Trouble

LOST = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
GONE = {"NoSuchKey", "404"}
MISSING = {"NoSuchBucket", "404"}
SAME = {"304", "NotModified"}
KEPT_DAYS = 90
"""How long an old version of a state can be had back."""
HINTS = {
    "settings": "`aws configure list` shows what is in force",
    "credentials": "sign in to AWS", "denied": "`gpuprov docs aws state` has the policy",
    "throttled": "again in a minute", "silent": "is this machine's network up, and is there an endpoint of S3?",
}  # fmt: skip


class Bucket(StateFolder):
    """One cluster's folder in a bucket."""

    missing = MISSING

    def __init__(self, region: Region, state: S3State, cluster: str) -> None:
        super().__init__(state, cluster)
        self._region, self._state = region, state

    @property
    def where(self) -> str:
        return f"s3://{self.bucket}/{self._folder}"

    @cached_property
    def _account(self) -> str:
        return str(self._ask("sts", "get_caller_identity")["Account"])

    @cached_property
    def bucket(self) -> str:
        """Its name. Without one in cluster.yaml it follows from account and region: names are unique in the world."""
        return self._state.bucket or f"gpuprov-{self._account}-{self._region.name}"

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        key = {"kms_key_id": self._state.kms_key} if self._state.kms_key else {}
        return "s3", {
            "bucket": self.bucket, "key": f"{self._folder}/sites/{site}/terraform.tfstate", "region": self._region.name,
            "encrypt": True, "use_lockfile": True, "allowed_account_ids": [self._account], **key,
        }  # fmt: skip

    @property
    def _store(self) -> str:
        return f"bucket {self.bucket} in {self._region.name}"

    def _look(self) -> Any:
        return self._s3("head_bucket")

    def _make(self) -> None:
        """Closed before anything is in it; what a crash left half done is done by the next run that is asked to."""
        region_name = self._region.name
        location = (
            {} if region_name == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region_name}}
        )
        try:
            self._region.ask(
                "s3", "create_bucket", Bucket=self.bucket, ObjectOwnership="BucketOwnerEnforced", **location
            )
            self._close()
        except Trouble as error:
            raise self._store_error(error) from None

    def _close(self) -> None:
        rule = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": self._state.kms_key} if self._state.kms_key else {
            "SSEAlgorithm": "AES256"
        }  # fmt: skip
        blocks = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        self._s3("put_public_access_block", PublicAccessBlockConfiguration=dict.fromkeys(blocks, True))
        self._s3("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
        encrypted = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]}
        self._s3("put_bucket_encryption", ServerSideEncryptionConfiguration=encrypted)
        old = {"ID": "old-versions", "Status": "Enabled", "Filter": {"Prefix": ""}}
        old |= {"NoncurrentVersionExpiration": {"NoncurrentDays": KEPT_DAYS}}
        self._s3("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [old]})
        self._s3("put_bucket_tagging", Tagging={"TagSet": [{"Key": "gpuprov", "Value": "state"}]})
        partition = "aws-cn" if self._region.name.startswith("cn-") else (
            "aws-us-gov" if self._region.name.startswith("us-gov-") else "aws"
        )  # fmt: skip
        arn = f"arn:{partition}:s3:::{self.bucket}"
        plain = {
            "Sid": "TlsOnly", "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": [arn, f"{arn}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }  # fmt: skip
        self._s3("put_bucket_policy", Policy=json.dumps({"Version": "2012-10-17", "Statement": [plain]}))

    def _looked_at(self, info: Any) -> list[Finding]:  # noqa: ARG002
        """What is wrong with a bucket that was there; what could not be asked is unknown."""
        findings = []
        try:
            if self._s3("get_bucket_versioning").get("Status") != "Enabled":
                message = f"{self.bucket} has no versioning: a lost state cannot be restored"
                findings.append(Finding("warning", "state", message, "enable versioning"))
        except Trouble as error:
            findings.append(Finding("unknown", "state", f"whether {self.bucket} keeps versions: {error}"))
        try:
            blocked = self._s3("get_public_access_block")["PublicAccessBlockConfiguration"]
            closed = all(blocked.values())
        except Trouble as error:
            closed = error.code != "NoSuchPublicAccessBlockConfiguration"
            if closed:
                findings.append(Finding("unknown", "state", f"whether {self.bucket} can be made public: {error}"))
        if not closed:
            message = f"nothing keeps {self.bucket} from being made public"
            findings.append(Finding("warning", "state", message, "block public access"))
        return findings or [Finding("ok", "state", self.where)]

    def read(self, name: str, known: str | None = None) -> Blob | None:
        match = {"IfNoneMatch": known} if known else {}
        try:
            answer = self._s3("get_object", Key=f"{self._folder}/{name}", **match)
            return Blob(_body(answer["Body"]), answer["ETag"], _age(answer))
        except Trouble as error:
            if error.code in SAME and known:
                return Blob(b"", known)
            if error.code in GONE or (error.code in MISSING and self._state.create):
                return None
            raise self._store_error(error) from None

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        match = {"IfMatch": previous_tag} if previous_tag else {"IfNoneMatch": "*"}
        key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._state.kms_key} if self._state.kms_key else {}
        try:
            return str(self._s3("put_object", Key=f"{self._folder}/{name}", Body=content, **match, **key)["ETag"])
        except Trouble as error:
            if error.code in LOST or (error.code in GONE and previous_tag):
                raise Conflict(f"{self.where}/{name}") from None
            raise self._store_error(error) from None

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        match = {"IfMatch": previous_tag} if previous_tag else {}
        try:
            self._s3("delete_object", Key=f"{self._folder}/{name}", **match)
        except Trouble as error:
            if previous_tag and error.code in LOST:
                raise Conflict(f"{self.where}/{name}") from None
            if error.code in GONE:
                return
            raise self._store_error(error) from None

    def names(self) -> list[str]:
        folder = f"{self._folder}/"
        try:
            entries = self._region.all(
                "s3",
                "list_objects_v2",
                "Contents",
                Bucket=self.bucket,
                Prefix=folder,
                ExpectedBucketOwner=self._account,
            )
        except Trouble as error:
            if error.code in MISSING and self._state.create:
                return []
            raise self._store_error(error) from None
        return [entry["Key"].removeprefix(folder) for entry in entries]

    def _s3(self, call: str, **arguments: Any) -> dict[str, Any]:
        return self._region.ask("s3", call, Bucket=self.bucket, ExpectedBucketOwner=self._account, **arguments)

    def _ask(self, service: str, call: str) -> dict[str, Any]:
        try:
            return self._region.ask(service, call)
        except Trouble as error:
            raise self._store_error(error) from None

    def _store_error(self, error: Trouble) -> ProviderError:
        hint = HINTS.get(error.kind, "")
        if error.code == "403" or error.kind == "denied":
            hint = "the bucket is another account's, or `gpuprov docs aws state` has the missing policy"
        if error.code in MISSING:
            hint = "state.create: true has gpuprov make it"
        return ProviderError(f"the cluster's state: {error}", where="state", hint=hint)


def _age(answer: dict[str, Any]) -> float:
    return age_s(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), answer["LastModified"])


def _body(stream: Any) -> bytes:
    """All of it; a connection that breaks half way is Trouble too. Raises ProviderError for what is no object of
    ours."""
    from provisioner.machines.providers.aws.client import answered

    return refuse_oversized(answered(lambda: stream.read(LIMIT + 1)), VERSIONS)
