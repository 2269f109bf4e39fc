"""Alibaba Cloud OSS on loopback, as far as gpuprov and Terraform's backend use it: path-style requests, XML answers.

https://www.alibabacloud.com/help/en/oss/developer-reference/list-of-operations-by-function. Not simulated: signatures
are looked for, not checked.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.alicloud_api import Account, Server, _handler

OWNER = "1234567890123456"
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass
class Stored:
    content: bytes
    modified: datetime


@dataclass
class Bucket:
    owner: str = OWNER
    versioning: str = ""
    blocked: bool = True
    acl: str = "private"
    encryption: str = ""
    objects: dict[str, Stored] = field(default_factory=dict)


@dataclass
class Store:
    """Buckets by name. `refuse`: method and subresource → status and code."""

    buckets: dict[str, Bucket] = field(default_factory=dict)
    refuse: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], body: bytes
    ) -> Answer:
        name, _, key = path.lstrip("/").partition("/")
        options = ("bucketInfo", "publicAccessBlock", "encryption", "acl")
        subject = "object" if key else next((option for option in options if option in query), "bucket")
        self.calls.append((method, subject))
        if (method, subject) in self.refuse:
            return _error(*self.refuse[method, subject])
        if not headers.get("authorization", "").startswith("OSS"):
            return _error(403, "AccessDenied")
        with self.lock:
            bucket = self.buckets.get(name)
            if bucket is None:
                if method != "PUT" or subject != "bucket":
                    return _error(404, "NoSuchBucket")
                self.buckets[name] = Bucket(blocked=False)
                return 200, {}, b""
            if subject == "object":
                return self._object(bucket, method, key, headers, body)
            if subject == "bucketInfo":
                return 200, {}, _info(name, bucket)
            if method == "PUT":
                bucket.blocked |= b"<BlockPublicAccess>true" in body
                bucket.encryption = "KMS" if b"KMS" in body else bucket.encryption or "AES256"
                return 200, {}, b""
            return 200, {}, _list(name, bucket, query)

    def _object(self, bucket: Bucket, method: str, key: str, headers: dict[str, str], body: bytes) -> Answer:
        existing = bucket.objects.get(key)
        if method == "PUT":
            if existing and headers.get("x-oss-forbid-overwrite") == "true" and not bucket.versioning:
                return _error(409, "FileAlreadyExists")
            bucket.objects[key] = Stored(body, datetime.now(UTC))
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest().upper()}"'}, b""
        if method == "DELETE":
            bucket.objects.pop(key, None)
            return 204, {}, b""
        if existing is None:
            return _error(404, "NoSuchKey")
        document_headers = {
            "Last-Modified": format_datetime(existing.modified, usegmt=True),
            "Content-Type": "application/json",
        }
        return 200, {**document_headers, "ETag": '"0"'}, existing.content


def _error(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>It is {code}.</Message><RequestId>R-1</RequestId></Error>"
    return status, {"Content-Type": "application/xml"}, b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()


def _info(name: str, bucket: Bucket) -> bytes:
    versioning = f"<Versioning>{bucket.versioning}</Versioning>" if bucket.versioning else ""
    text = (
        f"<BucketInfo><Bucket><Name>{name}</Name><Location>oss-cn-shanghai</Location><Owner><ID>{bucket.owner}</ID>"
        f"<DisplayName>x</DisplayName></Owner><AccessControlList><Grant>{bucket.acl}</Grant></AccessControlList>{versioning}"
        f"<BlockPublicAccess>{str(bucket.blocked).lower()}</BlockPublicAccess></Bucket></BucketInfo>"
    )
    return b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()


def _list(name: str, bucket: Bucket, query: dict[str, list[str]]) -> bytes:
    prefix, maximum = query.get("prefix", [""])[0], int(query.get("max-keys", ["100"])[0])
    after = query.get("continuation-token", query.get("marker", [""]))[0]
    keys = sorted(key for key in bucket.objects if key.startswith(prefix) and key > after)
    page, cut = keys[:maximum], len(keys) > maximum
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-22T18:00:00.000Z</LastModified><ETag>0</ETag>"
        f"<Size>{len(bucket.objects[key].content)}</Size></Contents>" for key in page
    )  # fmt: skip
    following = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if cut else ""
    text = (
        f"<ListBucketResult><Name>{name}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{maximum}</MaxKeys>"
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(cut).lower()}</IsTruncated>{following}{rows}</ListBucketResult>"
    )
    return b'<?xml version="1.0" encoding="UTF-8"?>' + text.encode()


@contextmanager
def serving(store: Store, account: Account) -> Iterator[str]:
    """The URL where both OSS and every other service answer."""

    class Handler(_handler(account)):  # type: ignore[misc]
        def any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            query = parse_qs(parts.query, keep_blank_values=True)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer_headers, content = store.answer(self.command, unquote(parts.path), query, headers, body)
            BaseHTTPRequestHandler.send_response(self, status)
            for name, value in answer_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_PUT = do_GET = do_DELETE = do_HEAD = any

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
