"""What moto's S3 lacks: the conditions of a bucket's policy. Tests reach moto without TLS, as if it were with it."""

from __future__ import annotations

import json
from typing import Any

from moto.s3.models import FakeBucket

PLAIN = {"Bool": {"aws:SecureTransport": "false"}}


def as_over_tls() -> None:
    """Leave out statements that are about calls without TLS. May be called again."""
    if hasattr(FakeBucket.get_permission, "as_over_tls"):
        return
    plain = FakeBucket.get_permission

    def get_permission(bucket: Any, action: str, resource: str) -> Any:
        original = bucket.policy
        if original is not None:
            policy = json.loads(original)
            policy["Statement"] = [
                statement for statement in policy["Statement"] if statement.get("Condition") != PLAIN
            ]
            bucket.policy = json.dumps(policy).encode() if policy["Statement"] else None
        try:
            return plain(bucket, action, resource)
        finally:
            bucket.policy = original

    get_permission.as_over_tls = True  # type: ignore[attr-defined]
    FakeBucket.get_permission = get_permission
