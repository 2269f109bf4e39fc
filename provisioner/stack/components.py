"""The components of a stack: the rows of data/components.yaml, from which every list of components follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from provisioner.stack.facts import rows

When = Literal["always", "pinned", "rdma", "efa", "exporter", "image", "head", "storage", "driver", "vendor"]


@dataclass(frozen=True, slots=True)
class Component:
    """One row; data/components.yaml says what its keys mean."""

    name: str
    title: str
    when: When
    vendor: Literal["nvidia", "amd"] | None = None
    pin: bool = False
    version: str = ""
    field: str = ""
    bare: bool = False

    @property
    def key(self) -> str | None:
        """The key of cluster.yaml that chooses its version; None where gpuprov's data do."""
        return self.version or (f"stack.{self.name}" if self.pin else None)

    def is_for(self, vendor: str) -> bool:
        """Whether machines with GPUs of this vendor may have it; without GPUs ("none") no framework's image."""
        return self.vendor in (None, vendor) and (vendor != "none" or self.when != "image")

    @property
    def solved(self) -> bool:
        """Whether it has versions of its own to choose from."""
        return self.when != "driver"


COMPONENTS: Mapping[str, Component] = MappingProxyType({row["name"]: Component(**row) for row in rows("components")})
"""Name → component, in the order in which versions are chosen."""

PARTS = frozenset(block["part"] for block in rows("packages"))
"""Components that have packages; what a package belongs to."""


def title(name: str) -> str:
    """What people call a component; an image is called by its name."""
    return COMPONENTS[name].title if name in COMPONENTS else name


def label(name: str, version: str) -> str:
    """A component with its version: CUDA 13.0.2, ubuntu-24.04."""
    known = COMPONENTS.get(name)
    return version if known is not None and known.bare else f"{title(name)} {version}".strip()


def component_of(part: str) -> str:
    """The component whose version the packages of a part have: fabric manager and IMEX are released with the driver."""
    return "driver" if COMPONENTS[part].when == "driver" else part


def pins(vendor: str) -> tuple[str, ...]:
    """Keys of `stack` that mean something to machines with GPUs of this vendor; "none": to those without GPUs."""
    return tuple(c.name for c in COMPONENTS.values() if c.pin and c.is_for(vendor))


def on_request() -> tuple[str, ...]:
    """Components that a node has only where `stack` asks for them."""
    return tuple(c.name for c in COMPONENTS.values() if c.when in ("pinned", "rdma"))
