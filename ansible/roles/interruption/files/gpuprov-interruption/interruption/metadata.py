"""Questions to an instance metadata service, with a deadline for each, and the times in its answers."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone

TOKEN = "/latest/api/token"
TOKEN_S = 21600
"""How long a token is good for: AWS's most, six hours."""
ANSWER_S = 2.0
"""Deadline of one question. The service is on the machine's own host and answers in milliseconds."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


class Silent(Exception):
    """The metadata service did not answer, or not as it should."""


def seconds_of(text):
    """Seconds since 1970 of a time such as 2026-11-21T22:10:00Z. Raises ValueError for anything else."""
    if not isinstance(text, str) or not TIME.fullmatch(text):
        raise ValueError("no time: {!r}".format(text))
    return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()


def utc(when):
    """A moment as 2026-11-21T22:10:00Z; its year with four digits, which strftime does not see to. Raises OverflowError
    for one that the calendar of UTC has not."""
    return when.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def fetch(address, method, path, headers, within, most=65536):
    """Status and text of the answer, all of which has to come `within` so many seconds. Raises Silent."""
    connection, began, late, timer = http.client.HTTPConnection(address, timeout=within), time.monotonic(), [], None
    try:
        connection.connect()
        stream = connection.sock  # an answer that ends with its connection takes it along

        def end():
            late.append(True)
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, began + within - time.monotonic()), end)
        timer.daemon = True
        timer.start()
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read(most).decode("utf-8", "replace")
        if late:
            raise TimeoutError("timed out")
        return answer.status, text
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "timed out" if late else str(error) or type(error).__name__
        raise Silent("{} {}: {}".format(method, path, reason)) from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def document(text, path, key):
    """The JSON object of an answer that must have a time under that key. Raises Silent."""
    try:
        parsed = json.loads(text)
        seconds_of(parsed[key])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Silent("{} says {!r}, which is no such notice".format(path, text[:120])) from error
    return parsed


class Metadata:
    """The metadata service at HOST:PORT; `header` has the token."""

    def __init__(self, address, header="X-aws-ec2-metadata-token"):
        self.address, self.token, self.good_until, self.header = address, None, 0.0, header

    def ask(self, path):
        """What is said at that path; None for "there is none" (404). Raises Silent."""
        status, text = self._call("GET", path, self._header())
        if status in (401, 403):  # an expired token, or the service has forgotten it
            self.token = None
            status, text = self._call("GET", path, self._header())
        if status not in (200, 404):
            raise Silent("{} is answered with status {}".format(path, status))
        return text if status == 200 else None

    def _header(self):
        if self.token is None or time.monotonic() > self.good_until:
            lifetime = {self.header + "-ttl-seconds": str(TOKEN_S)}
            status, text = self._call("PUT", TOKEN, lifetime)
            if status != 200 or not re.fullmatch(r"[\x21-\x7e]{1,4096}", text.strip()):
                raise Silent("no token: status {}".format(status))
            self.token, self.good_until = text.strip(), time.monotonic() + TOKEN_S / 2
        return {self.header: self.token}

    def _call(self, method, path, headers):
        return fetch(self.address, method, path, headers, ANSWER_S)
