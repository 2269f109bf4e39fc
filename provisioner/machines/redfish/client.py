"""A connection to one BMC: signed in, with a deadline, and signed out whatever happens.

gpuprov speaks to BMCs itself, over urllib3: it has fingerprints to be asserted before anything is sent, and leaves
repeating to whoever knows what a request does. Only reading is repeated by itself; a change that got no answer may have
been made, so who asked for it reads again.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import urllib3

from provisioner.machines.redfish import answers
from provisioner.machines.redfish.accounts import Account
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.tree import ROOT, Resource, Tree, address, inner, link
from provisioner.machines.redfish.trust import VERIFIED, Pins, unverified

REQUEST_S = 30.0
"""Most seconds for one answer; iDRACs take up to 20 s for an inventory that they gather anew."""
CONNECT_S = 8.0
READ_AGAIN = 3
LARGEST = 32 * 1024 * 1024
"""Bytes of one answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`status`: of HTTP; `body`: JSON where it was an object; `etag`: as the BMC sent it, "" without."""

    status: int
    body: Resource
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        return self.headers.get("etag", "")


@dataclass(slots=True)
class Bmc:
    """One machine's BMC; a context manager. `machine`: its name in cluster.yaml; `host`, `port`: of the BMC;
    `deadline`: time.monotonic() at which everything ends; `told`: what a person should know of the connection."""

    machine: str
    host: str
    account: Account = field(repr=False)
    pins: Pins = field(repr=False)
    deadline: float
    port: int = 443
    told: Callable[[str], object] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set by whoever wants everything to end: nothing more is asked, and the session is closed."""
    _pool: urllib3.HTTPSConnectionPool | None = None
    _token: str = field(default="", repr=False)
    _session: str = ""
    _basic: bool = False
    _verified: bool = False
    _closing: bool = False
    _pin: str = ""

    def __enter__(self) -> Bmc:
        try:
            pin, first = self.pins.meet(self.machine, self.host, self.port, min(CONNECT_S, self._remaining_s()))
        except OSError as error:
            raise self._unreachable(error) from error
        if first and pin != VERIFIED:
            self.told(f"BMC's certificate pinned: SHA256:{pin}")
        self._verified = pin == VERIFIED
        self._pin = pin
        self._pool = self._connections()
        try:
            self._sign_in()
        except BaseException:
            self.close()
            raise
        return self

    def _connections(self) -> urllib3.HTTPSConnectionPool:
        return urllib3.HTTPSConnectionPool(
            self.host, self.port, maxsize=1, retries=False,
            ssl_context=self.pins.context() if self._verified else unverified(),
            assert_fingerprint=None if self._verified else self._pin, assert_hostname=None if self._verified else False,
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sign out, which has seconds of its own: a session that is left blocks the next person."""
        if self._pool is None:
            return
        if self._session and self._token:
            self.deadline, self._closing = max(self.deadline, time.monotonic() + 5), True
            with contextlib.suppress(BmcError):
                self._once("DELETE", self._session, None, {})
        self._session = self._token = ""
        self._closing = False
        self._pool.close()
        self._pool = None

    def tree(self) -> Tree:
        """Everything that this BMC shows; see Tree for what is not there."""
        return Tree(self._resource)

    def _resource(self, uri: str) -> Resource | None:
        try:
            return self.get(uri).body
        except BmcError as error:
            if error.kind in ("not-found", "unsupported"):
                return None
            raise

    def get(self, uri: str) -> Reply:
        """Read, also again where the BMC is busy or drops the connection. Raises BmcError."""
        for attempt in range(1, READ_AGAIN + 1):
            try:
                return self._ask("GET", uri)
            except BmcError as error:
                over = attempt == READ_AGAIN or error.kind not in ("busy", "internal", "dropped", "in-post")
                if over or self._remaining_s(quiet=True) < 2**attempt:
                    raise
            self.stop.wait(2 ** (attempt - 1))
        raise AssertionError

    def post(self, uri: str, body: Mapping[str, Any]) -> Reply:
        return self._ask("POST", uri, body)

    def patch(self, uri: str, body: Mapping[str, Any]) -> Reply:
        """Change a resource, with the ETag that it has now: AMI and Lenovo refuse a change without one. A BMC that
        refuses a weak one is sent it as a strong one, then none."""
        etag = self.get(uri).etag
        forms = list(dict.fromkeys(filter(None, (etag, etag.removeprefix("W/")))))
        for form in [*forms, ""]:
            try:
                return self._ask("PATCH", uri, body, {"If-Match": form} if form else {})
            except BmcError as error:
                if error.kind != "precondition" or not form:
                    raise
        raise AssertionError

    def _ask(
        self, method: str, uri: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request; where the session is over, once more with a new one."""
        try:
            return self._once(method, uri, body, headers or {})
        except BmcError as error:
            over = error.kind == "no-session" or (error.status == 401 and self._token)
            if not over or self._basic:
                raise
        self._token = self._session = ""
        self._sign_in()
        return self._once(method, uri, body, headers or {})

    def _sign_in(self) -> None:
        """A session; basic authentication where the BMC has none, or none free."""
        root = self._once("GET", ROOT, None, {}).body
        sessions_uri = link(inner(root, "Links").get("Sessions")) or f"{ROOT}/SessionService/Sessions"
        try:
            reply = self._once(
                "POST", sessions_uri, {"UserName": self.account.user, "Password": self.account.password}, {}
            )
        except BmcError as error:
            if error.offers_basic:  # a proxy, or a BMC, that wants it before it makes a session
                self._basic = True
                with self._refused():
                    self._once("GET", link(root.get("Systems")) or f"{ROOT}/Systems", None, {})
                return
            if error.kind in ("session-limit", "not-found", "unsupported"):
                self._basic = True
                return
            with self._refused():
                raise
        self._token = reply.headers.get("x-auth-token", "")
        session_uri = urlsplit(reply.headers.get("location", "")).path or link(reply.body)
        self._session = address(session_uri) if session_uri else ""
        if not self._token:
            self._basic = True

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """A 401 says that the account is wrong."""
        try:
            yield
        except BmcError as error:
            if error.status != 401:
                raise
            raise BmcError(
                "the BMC does not accept the user and password", where=self.machine, kind="credentials", status=401,
                hint="check the site's `credentials` for this machine; too many failed tries may lock the account",
            ) from None  # fmt: skip

    def _once(self, method: str, uri: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Reply:
        if self._pool is None:
            raise AssertionError("not connected")
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"}
        pool, reading = self._pool, method == "GET"
        if not reading:  # on a connection of its own: HPE resets one that is used again, and then nobody knows
            pool, sent["Connection"] = self._connections(), "close"
        if self._token:
            sent["X-Auth-Token"] = self._token
        elif self._basic:
            sent |= urllib3.make_headers(basic_auth=f"{self.account.user}:{self.account.password}")
        if body is not None:
            sent["Content-Type"] = "application/json"
        seconds_left = self._remaining_s()
        timeout = urllib3.Timeout(connect=min(CONNECT_S, seconds_left), read=min(REQUEST_S, seconds_left))
        try:
            answer = pool.urlopen(
                method, uri, body=None if body is None else json.dumps(body), headers={**sent, **headers},
                timeout=timeout, redirect=False, preload_content=False, retries=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            raise self._broken(error) from error
        is_reusable = False
        try:
            raw, is_reusable = self._content(answer, reading), reading
        finally:
            (answer.release_conn if is_reusable else answer.close)()
        status = answer.status
        if status >= 300:
            parsed_answer = answers.read(status, raw)
            if status < 400:
                raise BmcError(
                    f"the BMC sends {method} {uri} elsewhere (HTTP {status})", where=self.machine, kind="refused",
                    status=status, hint="give the BMC's own address in cluster.yaml, not that of a proxy",
                )  # fmt: skip
            failed = parsed_answer.error(self.machine, status)
            failed.offers_basic = "basic" in answer.headers.get("WWW-Authenticate", "").lower()
            raise failed
        return Reply(status, _object(raw), {key.lower(): value for key, value in answer.headers.items()})

    def _content(self, answer: urllib3.BaseHTTPResponse, reading: bool) -> bytes:
        """What came of the body; an error's body may be cut, and then its status has to do. What the BMC has done
        already, a session made above all, is read to its end also where all is to end."""
        pieces, size = [], 0
        try:
            for piece in answer.stream(65536):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise BmcError("the BMC's answer has no end", where=self.machine, kind="refused")
                self._remaining_s(done=not reading)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if answer.status < 400:
                raise self._broken(error) from error
        return b"".join(pieces)

    def _remaining_s(self, *, quiet: bool = False, done: bool = False) -> float:
        """Seconds until the deadline. Raises BmcError where it is past, or, but for what is `done`, everything is to
        end."""
        if self.stop.is_set() and not (quiet or done or self._closing):
            raise BmcError("was interrupted", where=self.machine, kind="interrupted", hint="run the same command again")
        remaining = self.deadline - time.monotonic()
        if remaining <= 0 and not quiet:
            raise BmcError(
                "the BMC did not answer in time", where=self.machine, kind="slow",
                hint="look at its load and network; `--timeout` gives it longer; the other machines went on",
            )  # fmt: skip
        return max(remaining, 0.0)

    def _broken(self, error: Exception) -> BmcError:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib3.exceptions.SSLError) or isinstance(reason, ssl.SSLError):
            return BmcError(
                "the BMC's certificate is another one than a moment ago", where=self.machine, kind="certificate",
                hint="possible man in the middle: no password was sent on this connection",
            )  # fmt: skip
        if isinstance(error, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.NewConnectionError):
            return self._unreachable(reason)
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            self._remaining_s()
            return BmcError(
                f"the BMC gave no answer for {REQUEST_S:.0f} s", where=self.machine, kind="slow",
                hint="look at its load and network; reset the BMC if it stays",
            )  # fmt: skip
        return BmcError(
            "the BMC dropped the connection", where=self.machine, kind="dropped",
            hint="run the command again; reset the BMC if it stays",
        )  # fmt: skip

    def _unreachable(self, error: object) -> BmcError:
        error_text = str(error) if not isinstance(error, socket.gaierror) else "its name is not known"
        reason = (
            "no answer"
            if isinstance(error, TimeoutError) or "timed out" in error_text
            else error_text.rpartition("] ")[2]
        )
        return BmcError(
            f"its BMC {self.host}:{self.port} cannot be reached: {reason}", where=self.machine, kind="unreachable",
            hint="check the address (`bmc`), the route to the BMC network, and that its web server is on",
        )  # fmt: skip


def _object(raw: bytes) -> Resource:
    """A body as JSON object; empty for anything else."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
