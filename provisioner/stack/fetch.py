"""Files by HTTP(S), with patience: what passes (no answer, 429, 5xx) is tried again until the deadline, no longer.

One deadline is for everything that a lock reads: when it is over, connections are cut, however slowly somebody still
sends. What comes is bytes of whoever answered; who trusts them checks first.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Retry, Timeout, parse_url

from provisioner import __version__
from provisioner.common.errors import GpuprovError, without_queries

DEADLINE = 300.0
"""Seconds for all that one lock reads."""
PAUSE = 0.5
"""Seconds before the second try; twice as long before each further one."""
TRIES = 7
"""Tries of one file: half a minute of pauses, where nobody asks to wait longer."""
TRIES_ALONE = 3
"""Tries of a file while nobody at all has answered yet, and no connection is made: this computer has no network, and
patience mends none."""
SILENCE = 20.0
"""Seconds without a byte after which an answer counts as none."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others in a moment."""


class FetchError(GpuprovError):
    """A file that could not be read. `status`: the last HTTP status, None where there was none."""

    code = "download_failed"

    def __init__(self, message: str, *, hint: str, status: int | None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered. `headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Fetch:
    """All requests of one lock; used from several threads. `say` is told what is tried again."""

    say: Callable[[str], None] = lambda _: None
    deadline_s: float = field(default_factory=lambda: DEADLINE)
    pause_s: float = field(default_factory=lambda: PAUSE)
    _began: float = field(default_factory=time.monotonic)
    _reached: bool = False
    """Whether anybody has answered yet."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _pools: dict[str, urllib3.PoolManager] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cuts: list[socket.socket] = field(default_factory=list)
    _timer: threading.Timer | None = None

    def get(
        self, url: str, *, who: str, limit: int, method: str = "GET", headers: Mapping[str, str] | None = None,
        redirect: bool = True, into: IO[bytes] | None = None,
    ) -> Answer:  # fmt: skip
        """The answer, whatever its status, but one that passes only when time is up.

        `who` begins the sentence of an error; `limit`: bytes that the body may have; `into`: a file that gets the body
        from its start, which the answer then has not. Raises GpuprovError where nothing answers in time, where an
        answer is longer, or where https leads to http.
        """
        pause, failure, tries, status = self.pause_s, "", 0, None
        self._watch()
        while True:
            wait, tries = pause, tries + 1
            max_tries = TRIES
            try:
                answer = self._once(url, who, limit, method, headers or {}, redirect=redirect, into=into)
            except urllib3.exceptions.HTTPError as error:
                failure = _plain(error) if self._left() > 0 else failure or f"incomplete after {self.deadline_s:g} s"
                reason = getattr(error, "reason", error)
                if isinstance(reason, urllib3.exceptions.SSLError | urllib3.exceptions.ResponseError):
                    raise self._failed(who, url, failure) from None  # no certificate, or round in circles: it stays so
                if not self._reached and isinstance(reason, urllib3.exceptions.NewConnectionError):
                    max_tries = TRIES_ALONE
            else:
                self._reached = True
                if answer.status not in PASSING:
                    return answer
                status = answer.status
                failure, wait = f"HTTP {status}", max(pause, _asked_to_wait(answer))
            if self._ended.is_set() or wait >= self._left() or tries >= max_tries:
                after = f"{tries} {'try' if tries == 1 else 'tries'}"
                retry_after = f", Retry-After {wait:.0f} s" if wait > pause else ""
                raise self._failed(who, url, f"{failure}{retry_after}; gave up after {after}", status)
            self.say(without_queries(f"{who}: {failure}; retrying in {wait:.1f} s"))
            self._ended.wait(wait)
            pause *= 2

    def stop(self) -> None:
        """End the requests that other threads are at."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        self._cut()

    def _watch(self) -> None:
        """Have every connection cut when time is up: a byte now and then keeps each single wait short."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(max(0.0, self._left()), self._cut)
                self._timer.daemon = True
                self._timer.start()

    def _cut(self) -> None:
        with self._lock:
            cut, self._cuts = self._cuts, []
        for connection in cut:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _noted(self, connection: socket.socket) -> socket.socket:
        """The connection, known to `_cut` by a descriptor of its own: TLS takes the other one away."""
        with self._lock:
            self._cuts.append(socket.socket(fileno=os.dup(connection.fileno())))
        if self._ended.is_set() or self._left() <= 0:
            self._cut()
        return connection

    def _once(
        self, url: str, subject: str, limit: int, method: str, headers: Mapping[str, str], *, redirect: bool,
        into: IO[bytes] | None,
    ) -> Answer:  # fmt: skip
        seconds_left = self._left()
        retries = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5 if redirect else 0,
                        raise_on_status=False, raise_on_redirect=redirect)  # fmt: skip
        sent_headers = {"User-Agent": f"gpuprov/{__version__}", "Accept-Encoding": "identity", **headers}
        timeout = Timeout(connect=max(0.1, min(10.0, seconds_left)), read=max(0.1, min(SILENCE, seconds_left)))
        response = self._pool(url).request(
            method,
            url,
            headers=sent_headers,
            retries=retries,
            redirect=redirect,
            timeout=timeout,
            preload_content=False,
        )
        try:
            body, size = bytearray(), 0
            if into is not None:  # what an earlier try left
                into.seek(0)
                into.truncate()
            while chunk := response.read1(65536, decode_content=False):
                size += len(chunk)
                if into is None:
                    body += chunk
                else:
                    into.write(chunk)
                if size > limit:
                    raise self._failed(subject, url, f"larger than the limit of {limit} bytes")
            if self._left() <= 0 or self._ended.is_set():  # where it was cut, an end looks like any other
                raise urllib3.exceptions.TimeoutError("too slow")
        finally:
            response.release_conn()
        hops = [str(hop.redirect_location) for hop in response.retries.history] if response.retries else []
        if parse_url(url).scheme == "https" and any(hop.lower().startswith("http:") for hop in hops):
            raise self._failed(subject, url, f"refused redirect from https to {hops[-1]}")
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, bytes(body))

    def _left(self) -> float:
        return self.deadline_s - (time.monotonic() - self._began)

    def _pool(self, url: str) -> urllib3.PoolManager:
        parsed = parse_url(url)
        proxy = "" if proxy_bypass(parsed.host or "") else getproxies().get(parsed.scheme or "", "")
        with self._lock:
            if proxy not in self._pools:
                manager = urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager(maxsize=8)
                manager.pool_classes_by_scheme = _pools_that_tell(self._noted)
                self._pools[proxy] = manager
            return self._pools[proxy]

    @staticmethod
    def _failed(subject: str, url: str, message: str, status: int | None = None) -> FetchError:
        return FetchError(
            without_queries(f"{subject}: {url}: {message}"),
            hint="check that this machine can reach the URL, then run `gpuprov lock` again",
            status=status,
        )


def ask(url: str, *, who: str, limit: int, deadline_s: float, headers: Mapping[str, str] | None = None) -> Answer:
    """One question with a deadline of its own, for APIs and price lists. A redirect is not followed: what `headers` has
    for one host is for no other. Raises GpuprovError where nothing answers in time, or with more than `limit` bytes."""
    fetch = Fetch(deadline_s=deadline_s)
    try:
        return fetch.get(url, who=who, limit=limit, headers=headers, redirect=False)
    finally:
        fetch.stop()


def loopback(host: str) -> bool:
    """Whether a host is this machine, where http is as good as https."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: 127.evil.example is nobody's loopback
        return False


def _pools_that_tell(callback: Callable[[socket.socket], socket.socket]) -> dict[str, Any]:
    """urllib3's pools of connections, each of which is told of as soon as it is there."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return callback(super()._new_conn())

    class Tls(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return callback(super()._new_conn())

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


def _asked_to_wait(answer: Answer) -> float:
    try:
        return Retry().parse_retry_after(answer.headers["retry-after"])
    except (KeyError, urllib3.exceptions.InvalidHeader):
        return 0.0


def _plain(error: urllib3.exceptions.HTTPError) -> str:
    """A sentence of urllib3's, without the objects in it."""
    reason = getattr(error, "reason", None) or error
    if type(reason).__name__ in ("ConnectTimeoutError", "ReadTimeoutError"):
        return "timed out"
    # "HTTPConnection(host='…', port=…): Failed to establish a new connection: [Errno 111] Connection refused"
    return re.sub(r"^<?[\w.]*(HTTPS?Connection\w*|Plain|Tls|Retry)\b.*?: ", "", str(reason)).strip("[]")
