"""on_node.py on nodes: what maintenance they need, and doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provisioner.common.errors import GpuprovError
from provisioner.rundir.fleet import PARALLEL, Node
from provisioner.spec.maintenance import Maintenance
from provisioner.stack.models import Stack
from provisioner.transport import root_program

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

LOOK_S, WORK_S = 900.0, 7200.0
"""Seconds for one node: apt's lists over a slow line; a hundred packages, and apt's lock that another program has."""

Mode = Literal["look", "work"]
Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?$", max_length=255)]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+:~-]*$", max_length=255)]
"""Of Debian's policy. What one node answers becomes an argument of apt on the others."""
Reason = Annotated[str, Field(max_length=1000)]


class Answer(BaseModel):
    """What on_node.py prints. A node writes it: what does not fit is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


AnswerT = TypeVar("AnswerT", bound=Answer)


class Reboot(Answer):
    """`reasons`: why a reboot is due; `blocked`: why the node must not reboot now."""

    reasons: list[Reason]
    blocked: Reason


class Look(Answer):
    """`packages`: security updates to take (package → version); `waiting`: those that are not taken, with the reason;
    `freeable`: what → bytes."""

    packages: dict[Package, Version]
    waiting: dict[Package, Reason]
    freeable: dict[str, int]
    reboot: Reboot


class Work(Answer):
    """`installed`: what was moved (package → version); `present`: of all packages of the set, the installed version;
    `missing`: packages whose version the archive has no longer; `freed`: what → bytes."""

    installed: dict[Package, Version]
    present: dict[Package, Version]
    missing: list[Package]
    freed: dict[str, int]
    reboot: Reboot


def request(
    mode: Mode, settings: Maintenance, stack: Stack, *, private: bool = False, packages: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What on_node.py is told. `private`: apt's own lists stay as they are; `packages`: the set of the group."""
    images = {name for image in stack.images for name in (image.reference, image.pull, image.digest, image.config)}
    return {
        "mode": mode,
        "private": private,
        "security": "security" in settings.work,
        "clean": "clean" in settings.work,
        "locked": sorted(package.name for package in stack.packages),
        "images": sorted(images - {""}),
        "keep_days": settings.keep_days,
        "uptime_days": settings.uptime_days,
        "packages": dict(packages or {}),
    }


def look(cluster: Cluster, requests: Mapping[str, dict[str, Any]], nodes: Sequence[Node]) -> dict[str, Look | str]:
    """Node → what it needs, or why nobody can tell."""
    return _ask_all(cluster, requests, nodes, Look, LOOK_S)


def work(cluster: Cluster, requests: Mapping[str, dict[str, Any]], nodes: Sequence[Node]) -> dict[str, Work | str]:
    """Node → what was done on it, or why it did not work."""
    return _ask_all(cluster, requests, nodes, Work, WORK_S)


def _ask_all(
    cluster: Cluster, requests: Mapping[str, dict[str, Any]], nodes: Sequence[Node], kind: type[AnswerT], seconds: float
) -> dict[str, AnswerT | str]:
    source = files("provisioner.lifecycle.maintain").joinpath("on_node.py").read_text(encoding="utf-8")

    def ask(node: Node) -> AnswerT | str:
        try:
            return _ask(cluster, node, source, requests[node.name], kind, seconds)
        except GpuprovError as error:
            return str(error.message)

    with ThreadPoolExecutor(PARALLEL) as pool:
        return dict(zip([node.name for node in nodes], pool.map(ask, nodes), strict=True))


def _ask(
    cluster: Cluster, node: Node, source: str, node_request: dict[str, Any], kind: type[AnswerT], seconds: float
) -> AnswerT:
    document = root_program.ask(cluster.paths, node.name, source, node_request, deadline_s=seconds)
    try:
        answer: AnswerT = kind.model_validate(document)
    except ValidationError as error:
        raise GpuprovError(f"its answer is not understood: {str(error)[:200]}", where=node.name) from None
    return answer
