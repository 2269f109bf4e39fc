"""Requests to an Alertmanager. API v2 (github prometheus/alertmanager, api/v2/openapi.yaml)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from provisioner.common.errors import GpuprovError

if TYPE_CHECKING:
    import urllib3

DEADLINE_S, ANSWER_S = 15.0, 5.0
"""For all requests of one call, and for one of them. A thousand silences take half a second."""
WATCHDOG = "GpuprovWatchdog"
"""The dead man's switch (rules/own.py)."""
LIMIT = 16 << 20
"""Bytes of an answer."""
MESSAGE = 300
"""Characters of what a server says."""


def alerting(url: str, cluster: str, severity: str) -> dict[str, list[str]]:
    """Node → its firing alerts of a severity, without those that a silence or another alert hides. Raises GpuprovError,
    also where the alert that always fires (WATCHDOG) is absent: no Prometheus sends the others either."""
    alerts: dict[str, list[str]] = {}
    is_watched = False
    with Alertmanager(url) as manager:
        query = [("active", "true"), ("silenced", "false"), ("inhibited", "false"), ("filter", f'cluster="{cluster}"')]
        rows = manager.request("GET", f"alerts?{urlencode(query)}")
        try:
            for labels in (row["labels"] for row in rows):
                name = str(labels["alertname"])
                is_watched = is_watched or (name == WATCHDOG and labels.get("cluster") == cluster)
                if (labels.get("cluster"), labels.get("severity")) == (cluster, severity) and "node" in labels:
                    alerts.setdefault(str(labels["node"]), []).append(name)
        except (TypeError, LookupError, AttributeError) as error:
            raise manager.unfit() from error
    if not is_watched:
        raise GpuprovError(f"no Prometheus sends alerts of this cluster: {WATCHDOG} is absent", where=url)
    return {node: sorted({*names}) for node, names in sorted(alerts.items())}


class Alertmanager:
    """Requests to one Alertmanager, over one connection, with a deadline for all of them."""

    def __init__(self, url: str) -> None:
        import urllib3  # only where cluster.yaml names an Alertmanager: every command that drains imports this module

        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(retries=False)
        self._until = time.monotonic() + DEADLINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def request(self, method: str, path: str, document: Any = None) -> Any:
        """The JSON document of the answer; None for an empty one, and for a silence that is gone already. Raises
        GpuprovError."""
        from urllib3.exceptions import HTTPError

        url = f"{self._url}/api/v2/{path}"
        try:
            timeout = min(ANSWER_S, max(0.1, self._until - time.monotonic()))
            answer = self._pool.request(
                method, url, body=None if document is None else json.dumps(document),
                headers={"Content-Type": "application/json"}, timeout=timeout, redirect=False, preload_content=False,
            )  # fmt: skip
            content = self._content(answer)
            if method == "DELETE" and answer.status == 404:  # another operator was faster
                return None
            if answer.status >= 300:
                text = content.decode("utf-8", "replace").strip()[:MESSAGE]
                raise GpuprovError(f"status {answer.status}: {text}", where=url)
            try:
                return json.loads(content) if content else None
            except (ValueError, RecursionError):
                raise self.unfit() from None
        except (HTTPError, OSError, ValueError) as error:
            raise GpuprovError(str(error).rpartition(": ")[2][:MESSAGE] or type(error).__name__, where=url) from error

    def _content(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """Raises ValueError for an answer that is too large, or comes too slowly."""
        content = b""
        while chunk := answer.read1(65536):
            content += chunk
            if len(content) > LIMIT:
                raise ValueError(f"the answer has more than {LIMIT >> 20} MiB")
            if time.monotonic() > self._until:
                raise ValueError(f"no whole answer within {DEADLINE_S:g} s")
        answer.release_conn()
        return content

    def unfit(self) -> GpuprovError:
        """For an answer of another shape."""
        return GpuprovError("the server does not answer as an Alertmanager", where=self._url)
