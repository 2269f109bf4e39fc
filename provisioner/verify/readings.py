"""What a node exports beside the results of its checks: readings that no other exporter has, not judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

BUILD = "%Y%m%d-%H%M%S"
"""Name of an image's build: when it began, in UTC."""
EFA_COUNTERS: Mapping[str, str] = {
    "rx_bytes": "Bytes received",
    "tx_bytes": "Bytes sent",
    "rx_drops": "Packets received and dropped",
    "retrans_timeout_events": "Timeouts after which packets took another path",
    "impaired_remote_conn_events": "Connections slowed down because of their other end",
    "unresponsive_remote_events": "Connections whose other end did not answer",
}
"""hw_counters of an EFA port, and what they count (amzn/amzn-drivers, efa_verbs.c; AWS, "Monitor an Elastic Fabric
Adapter"). node_exporter reads none of them (prometheus/node_exporter#3670)."""
_DEVICE = re.compile(r"[A-Za-z0-9_-]{1,64}")


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


def readings(node: Facts, expected: Expected) -> Iterator[Metric]:
    """What could be read alone: an absent sample is never taken for a good one."""
    if (built := _image_build(node)) is not None:
        samples = {"": f"{built.timestamp():.0f}"}
        yield Metric("gpuprov_image_build_timestamp_seconds", "Build of the golden image the node was made of", samples)
    if expected.network == "efa":
        yield from _efa_counters(node)


def _efa_counters(node: Facts) -> Iterator[Metric]:
    """Since the driver was loaded, for each device: EFA has one port."""
    for counter, about in EFA_COUNTERS.items():
        samples = {
            f'{{device="{device.name}"}}': str(port.counters[counter])
            for device in node.rdma or ()
            for port in device.ports[:1]
            if counter in port.counters and _DEVICE.fullmatch(device.name)
        }
        if samples:
            yield Metric(f"gpuprov_efa_{counter}_total", f"{about}, EFA device", samples, "counter")


def _image_build(node: Facts) -> datetime | None:
    """None for a node that was made of no golden image, and for a build whose name is no time."""
    if node.image is None:
        return None
    try:
        return datetime.strptime(node.image.build, BUILD).replace(tzinfo=UTC)
    except ValueError:
        return None
