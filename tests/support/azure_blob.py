"""Azure Blob Storage on loopback, as far as state needs it: blobs with tags and conditions, leases, lists.

https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api (Put Blob, Get Blob, Delete Blob, Lease Blob,
List Blobs, Get Container Properties, Create Container, Get Blob Service Properties) and its error codes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from provisioner.machines.providers.azure.container import Container


@dataclass
class Account:
    """A storage account. `blobs`: container/name → content and tag; `leased`: names that somebody holds; `dates`: when
    one was written, where that was not now."""

    containers: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    leased: set[str] = field(default_factory=set)
    retention: bool = True
    dates: dict[str, str] = field(default_factory=dict)
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    written: int = 0

    def answer(self, verb: str, path: str, query: dict[str, list[str]], headers: Any, body: bytes) -> Any:
        """Status, headers and body; a text as body is an error code."""
        name, comp, kind = path.strip("/"), query.get("comp", [""])[0], query.get("restype", [""])[0]
        for pattern, (status, code) in self.refuse.items():
            if re.search(pattern, f"{verb} {name}"):
                return status, {}, code
        if kind == "service":
            days = "<Enabled>true</Enabled><Days>7</Days>" if self.retention else "<Enabled>false</Enabled>"
            policy = f"<DeleteRetentionPolicy>{days}</DeleteRetentionPolicy>"
            return 200, {}, f"<StorageServiceProperties>{policy}</StorageServiceProperties>".encode()
        container = name.partition("/")[0]
        if kind == "container" and verb == "PUT":
            self.containers[container] = ""
            return 201, {}, b""
        if container not in self.containers:
            return 404, {}, "ContainerNotFound"
        if comp == "list":
            return 200, {}, self._listed(container, query.get("prefix", [""])[0])
        if kind == "container":
            return (
                200,
                {"x-ms-blob-public-access": self.containers[container]} if self.containers[container] else {},
                b"",
            )
        return self._blob(verb, name, comp, headers, body)

    def _blob(self, verb: str, name: str, comp: str, headers: Any, body: bytes) -> Any:
        content, tag = self.blobs.get(name, (b"", ""))
        if comp == "lease":
            if name not in self.leased:
                return 409, {}, "LeaseNotPresentWithLeaseOperation"
            self.leased.discard(name)
            return 202, {"x-ms-lease-time": "0"}, b""
        if verb == "PUT":
            if headers.get("If-None-Match") == "*" and tag:
                return 409, {}, "BlobAlreadyExists"
            if headers.get("If-Match") not in (None, tag):
                return 412, {}, "ConditionNotMet"
            self.written += 1
            self.blobs[name] = (body, f'"0x{self.written:X}"')
            return 201, {"ETag": self.blobs[name][1]}, b""
        if not tag:
            return 404, {}, "BlobNotFound"
        if verb == "DELETE":
            if headers.get("If-Match") not in (None, tag):
                return 412, {}, "ConditionNotMet"
            del self.blobs[name]
            return 202, {}, b""
        if headers.get("If-None-Match") == tag:
            return 304, {}, "ConditionNotMet"
        if verb == "HEAD":
            return 200, {"ETag": tag, "Last-Modified": self.dates.get(name, formatdate(usegmt=True))}, b""
        if not content:  # no range is within it
            return 416, {}, "InvalidRange"
        size = {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}", "ETag": tag}
        return 206, {**size, "x-ms-blob-type": "BlockBlob"}, content

    def _listed(self, container: str, prefix: str) -> bytes:
        rows = ""
        for name in sorted(self.blobs):
            if name.startswith(f"{container}/{prefix}"):
                state = "leased" if name in self.leased else "available"
                inner = f"<Etag>x</Etag><BlobType>BlockBlob</BlobType><LeaseState>{state}</LeaseState>"
                rows += f"<Blob><Name>{escape(name.partition('/')[2])}</Name><Properties>{inner}</Properties></Blob>"
        return f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>".encode()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account, and containers that are in it whatever account they name."""
    account = Account()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = parse_qs(parts.query, keep_blank_values=True)
            status, headers, content = account.answer(self.command, unquote(parts.path), query, self.headers, body)
            if isinstance(content, str):
                headers = {**headers, "x-ms-error-code": content}
                content = (
                    f"<?xml version='1.0'?><Error><Code>{content}</Code><Message>{content}</Message></Error>".encode()
                )
            content = b"" if status == 304 or self.command == "HEAD" else content
            self.send_response(status)
            for key, value in {
                "Last-Modified": formatdate(usegmt=True),
                "Content-Type": "application/xml",
                **headers,
            }.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_DELETE = do_HEAD = _answer

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(Container, "_url", f"http://127.0.0.1:{server.server_port}")
    try:
        yield account
    finally:
        server.shutdown()
        server.server_close()
