"""What the kernel wrote in its log of GPUs and PCIe beside Xids: faults that no counter shows."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.common.text import few
from provisioner.verify.check import Action, check, fail, note, saw
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers import pci
from provisioner.verify.parsers.kernel_events import Event

LOG = ("dmesg.txt",)
WINDOW_H = 24
"""Hours for which a line of what a node survived warns (Azure/azurehpc-health-checks looks back as far)."""
CLOCK_S = 60.0
"""Seconds by which the log may have been read after the time since the boot."""


def fail_on_lines(
    node: Facts,
    *kinds: str,
    action: Action | None = None,
    but: set[str] | None = None,
    extra_events: Iterable[Event] = (),
    window: bool = False,
) -> None:
    """Fails with the first lines of these kinds; `but`: devices whose lines are somebody else's to tell;
    `extra_events`: what else is to be told; `window`: what was logged more than WINDOW_H ago is a note. A line of which
    nobody knows when it was written is one of now."""
    assert node.log is not None
    events = [*(e for e in node.log.of(*kinds) if not (but and pci(e.where or "-") in but)), *extra_events]
    saw(expected="no such line", actual=[_line(event) for event in events[:8]] or "no such line")
    recent = [event for event in events if not window or is_recent(node, event)]
    if recent:
        fail(few([_line(event) for event in recent], 3), action=action)
    if events:
        note(f"{few([_line(event) for event in events], 3)}, more than {WINDOW_H} hours ago")


def is_recent(node: Facts, event: Event) -> bool:
    """Whether an event may be of the last WINDOW_H hours, by the kernel's stamp and the time since its boot."""
    up = node.host.uptime if node.host is not None else None
    if up is None or event.last is None or not 0 <= event.last <= up + CLOCK_S:
        return True
    return up - event.last <= WINDOW_H * 3600


def _line(event: Event) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    return f"{event.text}{times}"


@check(
    "log.rm_init",
    severity="warn",
    action="reboot",
    needs=LOG,
    vendor="nvidia",
    follows=("gpu.count", "gpu.xid", "driver.responds", "driver.version"),
    says="The driver could not start a GPU once. Where all answer now, watch it; if it happens again, replace it.",
)
def test_rm_init(node: Facts, expected: Expected) -> None:
    fail_on_lines(node, "rm_init", but=node.gone(expected), window=True)


@check(
    "log.gsp_timeout",
    severity="fatal",
    documented="NVIDIA open-gpu-kernel-modules kernel_gsp.c: Timeout … waiting for function",
    action="reset",
    needs=LOG,
    vendor="nvidia",
    follows=("gpu.count", "gpu.xid", "driver.responds"),
    says="A GPU's system processor (GSP) did not answer the driver, or the driver wants the GPU reset, without an Xid. "
    "Reset it, or reboot.",
)
def test_gsp(node: Facts) -> None:
    fail_on_lines(node, "gsp_timeout")


@check(
    "log.nvlink",
    severity="warn",
    action="reset",
    needs=LOG,
    vendor="nvidia",
    follows=("gpu.count", "gpu.xid", "nvlink.links", "nvswitch.sxid", "nvswitch.fabric"),
    says="NVLink training failed, or links had errors that they mended. Reset the GPUs and test NVLink under load.",
)
def test_nvlink(node: Facts) -> None:
    assert node.log is not None
    corrected = [Event("nvlink", x.pci, x.count, f"Xid {x.code}: {x.text}") for x in node.log.xids if x.fatal is False]
    fail_on_lines(node, "nvlink", extra_events=corrected, window=True)


@check(
    "log.pcie_aer",
    severity="fatal",
    documented="docs.kernel.org/PCI/pcieaer-howto.html: uncorrected, fatal",
    action="vendor",
    needs=LOG,
    follows=("gpu.count", "gpu.xid"),
    says="A PCIe device had a fatal error: what it carried is lost. Reseat or replace what stands at that address.",
)
def test_aer(node: Facts) -> None:
    fail_on_lines(node, "pcie_fatal")


@check(
    "log.pcie_uncorrected",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("log.pcie_aer", "gpu.count", "gpu.xid"),
    says="A PCIe device had uncorrected errors that it survived. Some do at boot; a GPU or a network card should not.",
)
def test_aer_uncorrected(node: Facts) -> None:
    fail_on_lines(node, "pcie_uncorrected", window=True)


@check(
    "log.pcie_corrected",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("log.pcie_aer", "log.pcie_uncorrected", "gpu.count", "gpu.xid"),
    says="A PCIe link corrects errors all the time: riser or connector go bad. GPUs fall off the bus after that.",
)
def test_aer_corrected(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    maximum = expected.most.get("aer.corrected", float("inf"))
    counts = {event.where or "?": event.count for event in node.log.of("pcie_corrected")}
    saw(expected=f"{maximum:g} of one device at most", actual=counts or "none")
    many = [event for event in node.log.of("pcie_corrected") if event.count > maximum]
    if recent := [event for event in many if is_recent(node, event)]:
        fail("; ".join(f"{event.where or '?'}: {event.count} corrected errors" for event in recent))
    if many:
        note("; ".join(f"{event.where or '?'}: {event.count} corrected errors" for event in many) + ", and none today")


# Told, and no more: most lines that nobody knows mean nothing, and what does gets a check of its own.
@check(
    "log.unknown",
    severity="info",
    action="none",
    needs=("dmesg-errors.txt",),
    follows=("gpu.xid", "gpu.count", "log.gsp_timeout", "log.rm_init", "log.kernel_bug", "driver.responds"),
    says="The kernel logged errors that gpuprov does not know. Read them if jobs fail without a reason.",
)
def test_unknown(node: Facts) -> None:
    strange = node.strange or ()
    saw(expected="none", actual=[f"{line.text} ({line.count})" for line in strange[:8]] or "none")
    if strange:
        fail(few([f"{o.text}{f' ({o.count} times)' if o.count > 1 else ''}" for o in strange], 3))


@check(
    "log.pcie_link_limited",
    severity="warn",
    action="reboot",
    needs=("dmesg.txt", "lspci.txt"),
    follows=("gpu.pcie", "gpu.pcie_gen"),
    applies=lambda e: e.bare_metal and e.pcie_width,
    otherwise="only boards with NVLink on bare metal are known to have all sixteen lanes",
    says="At boot the kernel found the link of a GPU or a Mellanox card narrower than it is. Reboot; if it stays, "
    "have it reseated.",
)
def test_limited(node: Facts) -> None:
    assert node.log is not None
    assert node.bus is not None
    present = {*node.bus.gpus, *node.bus.cards}
    narrow = [e for e in node.log.limited if e.pci in present and 0 < e.width < e.capable_width]
    saw(expected="none", actual=[f"{e.pci}: x{e.width} of x{e.capable_width}" for e in narrow] or "none")
    if narrow:
        fail("; ".join(f"{e.pci}: x{e.width} of x{e.capable_width}, {e.gbps:g} Gb/s" for e in narrow))
