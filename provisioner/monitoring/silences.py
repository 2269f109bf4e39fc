"""Silences in Alertmanager for nodes that gpuprov has taken out of service: one for each node, ended when it is back.

Nothing is kept of them here: those of a node are found by their matchers and their author.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.monitoring.alertmanager import Alertmanager

AUTHOR = "gpuprov"
LASTS = timedelta(days=7)
"""Alertmanager takes no silence without an end. A node that is out of service for longer alerts again."""


def begin(url: str, cluster: str, comments: Mapping[str, str]) -> None:
    """Silence all alerts of these nodes (node → why), or prolong what they have. `url`: of the Alertmanager, without
    /api. `cluster`: the label of the cluster. Raises GpuprovError."""
    with Alertmanager(url) as manager:
        _begin(manager, cluster, comments, _ids(manager, cluster))


def end(url: str, cluster: str, nodes: Collection[str]) -> None:
    """End what `begin` has silenced of these nodes. Raises GpuprovError."""
    with Alertmanager(url) as manager:
        _end(manager, nodes, _ids(manager, cluster))


def settle(url: str, cluster: str, comments: Mapping[str, str]) -> None:
    """Silence these nodes (node → why) of the cluster and no others: what an Alertmanager did not answer before is made
    up for. Raises GpuprovError."""
    with Alertmanager(url) as manager:
        ids = _ids(manager, cluster)
        _end(manager, ids.keys() - comments.keys(), ids)
        _begin(manager, cluster, {node: comment for node, comment in comments.items() if node not in ids}, ids)


def _begin(manager: Alertmanager, cluster: str, comments: Mapping[str, str], ids: Mapping[str, list[str]]) -> None:
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
        manager.request("POST", "silences", document)


def _end(manager: Alertmanager, nodes: Collection[str], ids: Mapping[str, list[str]]) -> None:
    for node in sorted(nodes):
        for silence in ids.get(node, ()):
            manager.request("DELETE", f"silence/{silence}")


def _ids(manager: Alertmanager, cluster: str) -> dict[str, list[str]]:
    """Node → ids of gpuprov's silences that have not ended."""
    ids: dict[str, list[str]] = {}
    rows = manager.request("GET", "silences")
    try:
        for row in rows:
            plain = all(matcher["isEqual"] and not matcher["isRegex"] for matcher in row["matchers"])
            matchers = {str(matcher["name"]): str(matcher["value"]) for matcher in row["matchers"]}
            is_ours = plain and row["createdBy"] == AUTHOR and row["status"]["state"] != "expired"
            if is_ours and matchers.keys() == {"cluster", "node"} and matchers["cluster"] == cluster:
                ids.setdefault(matchers["node"], []).append(str(row["id"]))
    except (TypeError, LookupError, AttributeError) as error:
        raise manager.unfit() from error
    return ids


def _matcher(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value, "isRegex": False, "isEqual": True}
