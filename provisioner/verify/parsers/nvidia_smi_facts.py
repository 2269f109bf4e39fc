"""What nvidia-smi can say of a GPU, as frozen facts: None wherever a driver, a product or a mode does not say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """A program that has a GPU open; `kind` is C, G or C+G, `used_mib` None where the tool reported no value."""

    pid: int | None
    kind: str | None
    name: str | None
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi lists it; `index` is its own number there, so that a GPU which it cannot open leaves a gap.
    MiB, °C, W."""

    index: int
    pci: str | None = None
    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    """Of the board, which two GPUs of a GB200 or GB300 share: no identity."""
    board_part: str | None = None
    vbios: str | None = None
    inforom: str | None = None
    gsp_firmware: str | None = None
    minor_number: int | None = None
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    bar1_mib: int | None = None
    lost: bool = False
    reset_required: bool | None = None
    drain_and_reset: bool | None = None
    recovery_action: str | None = None
    """What the driver asks for (branch 560 and later): None, Reset, Reboot, Drain P2P, Drain and Reset."""
    compute_mode: str | None = None
    display_active: bool | None = None
    ecc_mode: str | None = None
    ecc_pending: str | None = None
    ecc_volatile: int | None = None
    """Uncorrectable errors since the driver was loaded."""
    ecc_sram: int | None = None
    """Uncorrectable SRAM errors over the GPU's life."""
    ecc_aggregate: int | None = None
    """All uncorrectable errors over the GPU's life."""
    ecc_correctable: int | None = None
    ecc_sram_correctable: int | None = None
    ecc_dram_correctable: int | None = None
    sram_threshold: bool | None = None
    """More SRAM errors than the driver tolerates of a board (branch 550 and later)."""
    channel_repair: bool | None = None
    tpc_repair: bool | None = None
    unrepairable: bool | None = None
    """Memory that no row remap mends (580.173, 590 and later)."""
    remap_correctable: int | None = None
    remap_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    banks_low: int | None = None
    banks_none: int | None = None
    """Memory banks that have few and no spare rows left."""
    retired_sbe: int | None = None
    retired_dbe: int | None = None
    retired_pending: bool | None = None
    mig_mode: str | None = None
    mig_pending: str | None = None
    mig_devices: int = 0
    persistence: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    """The most that GPU and host can do together."""
    pcie_gen_device: int | None = None
    pcie_gen_host: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    pcie_rollovers: int | None = None
    temperature: int | None = None
    temperature_slowdown: int | None = None
    margin: int | None = None
    """Degrees left to the limit, on GPUs that say so instead of a threshold (Ada, Hopper and later)."""
    margin_slowdown: int | None = None
    """The margin at which the GPU slows down."""
    memory_temperature: int | None = None
    memory_temperature_max: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_draw_w: float | None = None
    """At the moment of asking, as the next three."""
    power_capped: bool | None = None
    """Whether its power limit holds its clocks down (sw_power_cap): usual under load, and only there."""
    pstate: str | None = None
    """P0 (highest) to P15."""
    utilization: int | None = None
    """Per cent of the time in which a kernel ran."""
    clock_sm_mhz: int | None = None
    """At the moment of asking."""
    clock_application_mhz: int | None = None
    clock_default_mhz: int | None = None
    clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    """At the moment of asking."""
    memory_clock_application_mhz: int | None = None
    memory_clock_default_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_clique: str | None = None
    fabric_cluster: str | None = None
    fabric_health: str | None = None
    fabric_bandwidth: str | None = None
    fabric_faults: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    throttle: tuple[str, ...] = ()
    slowed_us: tuple[tuple[str, int], ...] = ()
    """Reason → µs for which it has slowed the GPU down since the driver was loaded (branch 580 and later)."""
    errors: tuple[str, ...] = ()
    """Values in whose place an error stands ("Unknown Error", "ERR!")."""

    @property
    def ecc_uncorrectable(self) -> int | None:
        """The larger of the two counters: the aggregate holds the volatile one, but is not always there."""
        known = [n for n in (self.ecc_volatile, self.ecc_aggregate) if n is not None]
        return max(known) if known else None

    @property
    def wants(self) -> str | None:
        """What the driver asks to be done with the GPU, or None: from recovery action or, before it, reset status."""
        if self.recovery_action is not None and self.recovery_action.lower() != "none":
            return self.recovery_action
        if self.reset_required:
            return "Reset"
        return "Drain and Reset" if self.drain_and_reset else None


@dataclass(frozen=True, slots=True)
class Smi:
    driver_version: str | None
    cuda_version: str | None
    attached_gpus: int | None
    gpus: tuple[Gpu, ...]
    warnings: tuple[str, ...] = ()
    """Lines that nvidia-smi printed around the document or in its midst, such as "WARNING: infoROM is corrupted …"."""
    unreachable: tuple[str, ...] = ()
    """PCI addresses of GPUs for which it could not even get a handle."""
    made_by: str = ""
    """What listed the GPUs, where that is less than `nvidia-smi -q` tells: its table, -L, … What it does not say is
    then no sign of health."""
    excerpt: bool = False
    """A part of what was printed: how many GPUs there are it does not tell."""
