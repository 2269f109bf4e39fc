"""One port of an RDMA adapter, whichever tool has listed it."""

from __future__ import annotations

from dataclasses import dataclass

TRAINING = ("Polling", "PortConfigurationTraining", "LinkErrorRecovery")


@dataclass(frozen=True, slots=True)
class Port:
    """One port, with what is known of its card. `rate_gbps` is what it runs at now, in Gbit/s; `card` the card's type
    (MT4129); a `lid` of 0 is none."""

    device: str
    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    guid: str | None = None
    card: str | None = None
    firmware: str | None = None
    node_guid: str | None = None

    @property
    def up(self) -> bool:
        return self.state == "Active" and self.physical_state in ("LinkUp", None)

    @property
    def trains(self) -> bool:
        """Whether it looks for the other end of its cable, as each port does after a boot, or waits for the subnet
        manager (states of the InfiniBand specification, as ibstat prints them)."""
        return not self.up and (self.physical_state in TRAINING or self.state in ("Initializing", "Armed"))
