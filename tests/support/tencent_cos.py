"""COS's S3 API on loopback, for the state of one cluster: objects, versions, who may read, the service's errors.

https://cloud.tencent.com/document/product/436/37421, https://cloud.tencent.com/document/product/436/7730
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass
class Cos:
    """Buckets by their whole name. `asked`: (method, bucket, key, headers)."""

    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    refused: str = ""
    """A code that every question gets."""
    asked: list[tuple[str, str, str, dict[str, str]]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        url = urlsplit(handler.path)
        bucket, key = (url.hostname or "").partition(".cos.")[0], unquote(url.path).lstrip("/")
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.asked.append((handler.command, bucket, key, dict(handler.headers)))
        assert handler.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDtest/")
        query = parse_qs(url.query, keep_blank_values=True)
        if self.refused:
            return self._error(handler.command, 403, self.refused)
        if handler.command == "PUT" and not key and "versioning" not in query:
            self.buckets[bucket] = {}
            return 200, b"", {}
        if bucket not in self.buckets:
            return self._error(handler.command, 404, "NoSuchBucket")
        if not key:
            return self._bucket(handler.command, bucket, query, body)
        return self._object(handler, self.buckets[bucket], key, body)

    def _bucket(
        self, method: str, bucket: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if method == "PUT":
            assert b"<Status>Enabled</Status>" in body
            self.versioned.add(bucket)
            return 200, b"", {}
        if method == "HEAD":
            return 200, b"", {}
        if "versioning" in query:
            status = "<Status>Enabled</Status>" if bucket in self.versioned else ""
            return 200, f"<VersioningConfiguration {NAMESPACE}>{status}</VersioningConfiguration>".encode(), {}
        if "acl" in query:
            everybody = (
                '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="Group">'
                "<URI>http://cam.qcloud.com/groups/global/AllUsers</URI></Grantee><Permission>READ</Permission></Grant>"
            )
            grants = everybody if bucket in self.public else ""
            text = f"<Owner><ID>o</ID></Owner><AccessControlList>{grants}</AccessControlList>"
            return 200, f"<AccessControlPolicy {NAMESPACE}>{text}</AccessControlPolicy>".encode(), {}
        prefix, after = query["prefix"][0], query.get("marker", [""])[0]
        keys = sorted(key for key in self.buckets[bucket] if key.startswith(prefix) and key > after)
        page = keys[:2]  # COS gives a thousand
        contents = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in page)
        more = str(len(keys) > len(page)).lower()
        return (
            200,
            f"<ListBucketResult {NAMESPACE}><IsTruncated>{more}</IsTruncated>{contents}</ListBucketResult>".encode(),
            {},
        )

    def _object(
        self, handler: BaseHTTPRequestHandler, objects: dict[str, bytes], key: str, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if handler.command == "PUT":
            assert handler.headers["x-amz-server-side-encryption"] == "AES256"
            objects[key] = body
        if handler.command == "DELETE":
            objects.pop(key, None)
            return 204, b"", {}
        if key not in objects:
            return self._error(handler.command, 404, "NoSuchKey")
        content = objects[key]
        tag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        if handler.headers.get("If-None-Match") == tag:
            return 304, b"", {"ETag": tag}
        headers = {"ETag": tag, "Last-Modified": formatdate(usegmt=True)}
        return 200, b"" if handler.command in ("PUT", "HEAD") else content, headers

    @staticmethod
    def _error(method: str, status: int, code: str) -> tuple[int, bytes, dict[str, str]]:
        text = f"<Error><Code>{code}</Code><Message>{code}</Message><RequestId>1</RequestId></Error>"
        return status, b"" if method == "HEAD" else text.encode(), {}
