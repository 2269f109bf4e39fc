"""Silences in Alertmanager for nodes that gpuprov has taken out of service: one for each node, ended when it is back.

Nothing is kept of them here: those of a node are found by their matchers and their author. API v2 of Alertmanager
(github prometheus/alertmanager, api/v2/openapi.yaml).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3

from provisioner.common.errors import GpuprovError

AUTHOR = "gpuprov"
LASTS = timedelta(days=7)
"""Alertmanager takes no silence without an end. A node that is out of service for longer alerts again."""
ANSWER_S = 10.0
RETRIES = urllib3.Retry(total=2, backoff_factor=0.5, allowed_methods=None, status_forcelist=(502, 503, 504))
"""The same request twice makes no second silence: it has the id of the first, or its answer was an error."""


def begin(url: str, cluster: str, comments: Mapping[str, str]) -> None:
    """Silence all alerts of these nodes (node → why), or prolong what they have. `url`: of the Alertmanager, without
    /api. `cluster`: the label of the cluster. Raises GpuprovError."""
    with _Alertmanager(url) as manager:
        existing, start = manager.ids(cluster), datetime.now(UTC)
        for node, comment in comments.items():
            document = {
                "matchers": [_matcher("cluster", cluster), _matcher("node", node)],
                "startsAt": start.isoformat(),
                "endsAt": (start + LASTS).isoformat(),
                "createdBy": AUTHOR,
                "comment": comment,
            }
            if node in existing:
                document["id"] = existing[node][0]
            manager.request("POST", "silences", document)


def end(url: str, cluster: str, nodes: Collection[str]) -> None:
    """End what `begin` has silenced of these nodes. Raises GpuprovError."""
    with _Alertmanager(url) as manager:
        existing = manager.ids(cluster)
        for node in nodes:
            for silence in existing.get(node, ()):
                manager.request("DELETE", f"silence/{silence}")


class _Alertmanager:
    """Requests to one Alertmanager, over one connection."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(timeout=ANSWER_S, retries=RETRIES)

    def __enter__(self) -> _Alertmanager:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def ids(self, cluster: str) -> dict[str, list[str]]:
        """Node → ids of gpuprov's silences that have not ended."""
        ids: dict[str, list[str]] = {}
        for row in self.request("GET", "silences"):
            matchers = {matcher["name"]: matcher["value"] for matcher in row["matchers"]}
            is_ours = row["createdBy"] == AUTHOR and row["status"]["state"] != "expired"
            if is_ours and matchers.keys() == {"cluster", "node"} and matchers["cluster"] == cluster:
                ids.setdefault(matchers["node"], []).append(row["id"])
        return ids

    def request(self, method: str, path: str, document: Any = None) -> Any:
        """The JSON document of the answer; None for an empty one. Raises GpuprovError."""
        url = f"{self._url}/api/v2/{path}"
        try:
            answer = self._pool.request(method, url, json=document) if document else self._pool.request(method, url)
            if answer.status >= 400:
                text = answer.data.decode("utf-8", "replace").strip()
                raise GpuprovError(f"status {answer.status}: {text}", where=url)
            return json.loads(answer.data) if answer.data else None
        except (urllib3.exceptions.HTTPError, ValueError, LookupError, TypeError) as error:
            raise GpuprovError(str(error) or type(error).__name__, where=url) from error


def _matcher(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value, "isRegex": False, "isEqual": True}
