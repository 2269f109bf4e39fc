"""The policies of a shared state have what gpuprov calls of each store, and what Terraform's backend calls besides."""

from __future__ import annotations

import re

import pytest

from provisioner.machines.providers import actions
from tests.support.sandbox_cluster import ROOT

S3 = {
    "head_bucket": "ListBucket", "list_objects_v2": "ListBucket", "put_bucket_encryption": "PutEncryptionConfiguration",
    "put_bucket_lifecycle_configuration": "PutLifecycleConfiguration",
    "get_public_access_block": "GetBucketPublicAccessBlock", "put_public_access_block": "PutBucketPublicAccessBlock",
}  # fmt: skip
"""Calls whose action has another name. https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html"""
COS = {"create_bucket": "PutBucket", "get_bucket_acl": "GetBucketACL", "list_objects": "GetBucket"}
"""Of S3's calls at COS. https://www.tencentcloud.com/document/product/436/30580"""
OSS = {"ListObjectsV2": "ListObjects"}
BESIDES = {
    # an argument of create_bucket
    "aws": {"s3:PutBucketOwnershipControls"},
    # Terraform's backend: objects with an ACL, and whether a tag is there
    "tencent": {"cos:PutObjectACL", "tag:DescribeTags"},
    "alicloud": {"oss:PutObjectAcl"},
}
"""Provider → what the code of gpuprov does not call by that name."""


def camel(call: str) -> str:
    return "".join(part.capitalize() for part in call.split("_"))


def called(provider: str) -> set[str]:
    """The actions that the code of a store takes."""
    file = {"aws": "aws/bucket.py", "tencent": "tencent/cos.py", "alicloud": "alicloud/bucket.py"}[provider]
    source = (ROOT / "provisioner" / "machines" / "providers" / file).read_text(encoding="utf-8")
    if provider == "alicloud":
        return {f"oss:{OSS.get(call, call)}" for call in re.findall(r'"(\w+)Request"', source)}
    prefix, names = ("s3", S3) if provider == "aws" else ("cos", COS)
    calls = set(re.findall(r'"((?:put|get|list|head|create|delete)_\w+)"', source)) - {"get_caller_identity"}
    tags = {f"tag:{call}" for call in re.findall(r'"((?:Create|Delete)Tag)"', source)}
    return {f"{prefix}:{names.get(call, camel(call))}" for call in calls} | tags


@pytest.mark.parametrize("provider", BESIDES)
def test_the_policy_of_a_state_has_what_is_called_and_no_more(provider: str) -> None:
    assert called(provider) | BESIDES[provider] == set(actions.load(provider).calls["state"])
    assert not called(provider) & BESIDES[provider]
