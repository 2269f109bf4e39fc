"""What a node exports beside the results of its checks: readings that no other exporter has, not judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from provisioner.verify.facts import Facts

BUILD = "%Y%m%d-%H%M%S"
"""Name of an image's build: when it began, in UTC."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in Prometheus' text format. `samples`: labels as text ("" or `{name="value"}`) → value."""

    name: str
    about: str
    samples: Mapping[str, str]
    kind: Literal["gauge", "counter"] = "gauge"

    def __str__(self) -> str:
        rows = (f"{self.name}{labels} {value}" for labels, value in self.samples.items())
        return "\n".join([f"# HELP {self.name} {self.about}", f"# TYPE {self.name} {self.kind}", *rows])


def readings(node: Facts) -> Iterator[Metric]:
    """What could be read alone: an absent sample is never taken for a good one."""
    if (built := _image_build(node)) is not None:
        samples = {"": f"{built.timestamp():.0f}"}
        yield Metric("gpuprov_image_build_timestamp_seconds", "Build of the golden image the node was made of", samples)


def _image_build(node: Facts) -> datetime | None:
    """None for a node that was made of no golden image, and for a build whose name is no time."""
    if node.image is None:
        return None
    try:
        return datetime.strptime(node.image.build, BUILD).replace(tzinfo=UTC)
    except ValueError:
        return None
