"""Silences in Alertmanager for nodes that gpuprov has taken out of service: one for each node, ended when it is back.

Nothing is kept of them here: those of a node are found by their matchers and their author. API v2 of Alertmanager
(github prometheus/alertmanager, api/v2/openapi.yaml).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from provisioner.common.errors import GpuprovError

if TYPE_CHECKING:
    import urllib3

AUTHOR = "gpuprov"
LASTS = timedelta(days=7)
"""Alertmanager takes no silence without an end. A node that is out of service for longer alerts again."""
DEADLINE_S, ANSWER_S = 15.0, 5.0
"""For all requests of one call, and for one of them. A thousand silences take half a second."""
LIMIT = 16 << 20
"""Bytes of an answer."""
MESSAGE = 300
"""Characters of what a server says."""


def begin(url: str, cluster: str, comments: Mapping[str, str]) -> None:
    """Silence all alerts of these nodes (node → why), or prolong what they have. `url`: of the Alertmanager, without
    /api. `cluster`: the label of the cluster. Raises GpuprovError."""
    with _Alertmanager(url) as manager:
        manager.begin(cluster, comments, manager.ids(cluster))


def end(url: str, cluster: str, nodes: Collection[str]) -> None:
    """End what `begin` has silenced of these nodes. Raises GpuprovError."""
    with _Alertmanager(url) as manager:
        manager.end(nodes, manager.ids(cluster))


def settle(url: str, cluster: str, comments: Mapping[str, str]) -> None:
    """Silence these nodes (node → why) of the cluster and no others: what an Alertmanager did not answer before is made
    up for. Raises GpuprovError."""
    with _Alertmanager(url) as manager:
        ids = manager.ids(cluster)
        manager.end(ids.keys() - comments.keys(), ids)
        manager.begin(cluster, {node: comment for node, comment in comments.items() if node not in ids}, ids)


class _Alertmanager:
    """Requests to one Alertmanager, over one connection, with a deadline for all of them."""

    def __init__(self, url: str) -> None:
        import urllib3  # only where cluster.yaml names an Alertmanager: every command that drains imports this module

        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(retries=False)
        self._until = time.monotonic() + DEADLINE_S

    def __enter__(self) -> _Alertmanager:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def begin(self, cluster: str, comments: Mapping[str, str], ids: Mapping[str, list[str]]) -> None:
        start = datetime.now(UTC)
        for node, comment in comments.items():
            document = {
                "matchers": [_matcher("cluster", cluster), _matcher("node", node)],
                "startsAt": start.isoformat(),
                "endsAt": (start + LASTS).isoformat(),
                "createdBy": AUTHOR,
                "comment": comment.encode("utf-8", "replace").decode(),  # a lone surrogate is no JSON to it
            }
            if node in ids:
                document["id"] = ids[node][0]
            self._request("POST", "silences", document)

    def end(self, nodes: Collection[str], ids: Mapping[str, list[str]]) -> None:
        for node in sorted(nodes):
            for silence in ids.get(node, ()):
                self._request("DELETE", f"silence/{silence}")

    def ids(self, cluster: str) -> dict[str, list[str]]:
        """Node → ids of gpuprov's silences that have not ended."""
        ids: dict[str, list[str]] = {}
        rows = self._request("GET", "silences")
        try:
            for row in rows:
                plain = all(matcher["isEqual"] and not matcher["isRegex"] for matcher in row["matchers"])
                matchers = {str(matcher["name"]): str(matcher["value"]) for matcher in row["matchers"]}
                is_ours = plain and row["createdBy"] == AUTHOR and row["status"]["state"] != "expired"
                if is_ours and matchers.keys() == {"cluster", "node"} and matchers["cluster"] == cluster:
                    ids.setdefault(matchers["node"], []).append(str(row["id"]))
        except (TypeError, LookupError, AttributeError) as error:
            raise GpuprovError("the server does not answer as an Alertmanager", where=self._url) from error
        return ids

    def _request(self, method: str, path: str, document: Any = None) -> Any:
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
            return json.loads(content) if content else None
        except (HTTPError, OSError, ValueError, RecursionError) as error:
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


def _matcher(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value, "isRegex": False, "isEqual": True}
