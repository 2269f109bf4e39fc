"""Machine images of the clouds that bring a GPU stack: candidates of the component vendor_image, whose needs are what
the image holds (data/vendor_images.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from provisioner.catalog import distributions
from provisioner.spec.models import ClusterSpec
from provisioner.stack.candidates import Candidate, Spec, branch_of, candidates, driver, newest_first, starts
from provisioner.stack.components import COMPONENTS
from provisioner.stack.conflict import Place, StackConflict
from provisioner.stack.facts import rows

NAME = "vendor_image"
WITH_DRIVER = ("fabric_manager", "imex")
"""Parts that an image with a driver has wherever the machine needs them."""


@cache
def images(provider: str) -> tuple[Candidate, ...]:
    """The known images of a provider, the best first: by distribution, then the newest; empty where it has none."""
    order = distributions.names()
    options = []
    for row in rows(NAME):
        if row["provider"] == provider:
            needs: dict[str, Spec] = {"os": (row["os"],), "gpu": tuple(row["gpu"])}
            needs |= {name: (version,) for name, version in row["has"].items()}
            rank = (order.index(row["os"]), newest_first(row["version"]))
            options.append(Candidate(NAME, row["version"], needs, {}, rank, row, row["source"]))
    return tuple(sorted(options, key=lambda c: c.rank))


def why_none(provider: str) -> str:
    """Why a provider has no such image, a sentence."""
    return str(rows("vendor_image_without").get(provider) or f"no image of {provider} with a GPU stack is known")


def brought(provider: str, *, rdma: bool) -> list[str]:
    """Components that a node has only where `stack` asks for them, and that every known image of the provider holds."""
    held_components = [set(candidate.facts["has"]) for candidate in images(provider)]
    kinds = ("pinned", "rdma") if rdma else ("pinned",)
    return [
        name
        for name, component in COMPONENTS.items()
        if component.when in kinds and all(name in some for some in held_components)
    ]


def provider_of(spec: ClusterSpec, group: str) -> str:
    """The provider whose own GPU image a group boots; "" where it boots a plain one."""
    return spec.sites[spec.site_of(group)].provider if spec.groups[group].base == "vendor-hpc" else ""


def refuse(spec: ClusterSpec, locate: Place) -> None:
    """Raise StackConflict for a group that wants its provider's own GPU image where there is none, or that wants of
    the local disks what the image does itself."""
    for name, group in spec.groups.items():
        provider, path = provider_of(spec, name), f"groups.{name}.base"
        if not provider:
            continue
        if not images(provider):
            message = f"base: vendor-hpc is not available at {provider}: {why_none(provider)}"
            hint = "leave base out: a plain image is the default, and gpuprov installs the stack"
            raise StackConflict(message, where=locate(path), hint=hint, asked={path: message})
        mounted = next((image.facts["scratch"] for image in images(provider) if image.facts["scratch"]), None)
        if mounted and group.storage.scratch is not None:
            path = f"groups.{name}.storage.scratch"
            message = f"{provider}'s GPU image takes the local disks itself (mounted at {mounted})"
            hint = f"leave storage.scratch out and use {mounted}, or leave out base: vendor-hpc"
            raise StackConflict(message, where=locate(path), hint=hint, asked={path: message})


def with_what_they_hold(
    candidates_by_name: Mapping[str, Sequence[Candidate]], provider: str
) -> dict[str, tuple[Candidate, ...]]:
    """Every component's candidates, and among them each version that an image of the provider holds."""
    more = {name: tuple(some) for name, some in candidates_by_name.items()}
    for image in images(provider):
        for name, version in image.facts["has"].items():
            if name in more and not any(candidate.version == version for candidate in more[name]):
                more[name] = (*more[name], _unlisted_version(name, version, image))
        dcgm = image.facts["has"].get("dcgm")
        if dcgm and "dcgm_exporter" in more:
            more["dcgm_exporter"] += _exporter(more["dcgm_exporter"], dcgm)
    return more


def _exporter(known: Sequence[Candidate], dcgm: str) -> tuple[Candidate, ...]:
    """The newest exporter for a DCGM that none was built against: it asks the host engine over a socket, and its
    package asks for DCGM of the same major alone (unverified)."""
    if any(exporter.needs.get("dcgm") == f"=={dcgm}" for exporter in known):
        return ()
    newest = min(known, key=lambda exporter: newest_first(exporter.version))
    wider: dict[str, Spec] = {**newest.needs, "dcgm": f"=={dcgm.partition('.')[0]}.*"}
    return (replace(newest, needs=wider, rank=(99, *newest.rank)),)


def _unlisted_version(name: str, version: str, image: Candidate) -> Candidate:
    """A version that no row has: what holds of its driver branch, or of the newest release of the same series."""
    if name == "driver" and (row := branch_of(version)) is not None:
        return driver(row, version)
    known = next((candidate for candidate in candidates(name) if starts(candidate.version, version)), None)
    return replace(known, version=version) if known else Candidate(name, version, rank=(99,), source=image.source)


def parts(image: Candidate, chosen: Mapping[str, Any], unused: Sequence[str] = ()) -> dict[str, str]:
    """Part of the lock → version, of what the image holds and the machine has."""
    versions: dict[str, str] = {name: version for name, version in image.facts["has"].items() if name in chosen}
    if "driver" in versions:
        versions |= {part: versions["driver"] for part in WITH_DRIVER if part not in unused}
    return versions
