"""Scratch at work: what fio reached on the local disks, and what they counted meanwhile."""

from __future__ import annotations

from provisioner.verify.baseline import NAMED
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.fleet import spread_of
from provisioner.verify.checks.storage import no_health
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.fio import Fio
from provisioner.verify.peers import Peers

NEEDS = ("fio.json",)
IO = "storage.io"
BROKEN = ("storage.scratch", "storage.raid", "storage.nvme_count", "storage.nvme_state", "log.io_error")
"""What explains that scratch does not work at all, or not as it did."""
MEASURES = ("scratch_write", "scratch_read", "scratch_iops")
NO_SCRATCH = "cluster.yaml has no storage.scratch"


def tried(node: Facts) -> Fio:
    """fio's run, whatever came of it; skipped beside a job, unknown where there was nothing to run it with or on."""
    assert node.fio is not None
    fio = node.fio
    if fio.state == "busy":
        skip(f"not tested: a job is using the GPUs: {', '.join(fio.busy[:3])}")
    if fio.state == "absent":
        install = ": `gpuprov up` installs it with role scratch" if "not installed" in fio.why else ""
        unknown(fio.why + install)
    return fio


@check(
    IO,
    severity="fatal",
    measured="fio/read-libaio-3.33",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=BROKEN,
    applies=lambda e: e.scratch,
    otherwise=NO_SCRATCH,
    says="Reads or writes of the local disks fail or do not end: a checkpoint or a data set on them would be lost.",
)
def test_io(node: Facts) -> None:
    if node.fio is not None and node.fio.state == "absent":
        skip("nothing was written: see storage.bandwidth")
    fio = tried(node)
    wrong = [
        f"{p.name}: no end after {p.seconds or 0:.0f} s" if p.timed_out else f"{p.name}: {p.error or f'status {p.rc}'}"
        for p in fio.phases
        if p.timed_out or p.rc != 0 or p.error
    ]
    saw(expected="no error", actual=wrong or [p.name for p in fio.phases])
    if wrong:
        fail("; ".join(wrong))


@check(
    "storage.bandwidth",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=(IO, *BROKEN),
    applies=lambda e: e.scratch,
    otherwise=NO_SCRATCH,
    says="Scratch is slower than its disks: GPUs wait for data, checkpoints take long. Look for one slow disk.",
)
def test_bandwidth(node: Facts, expected: Expected) -> None:
    fio = tried(node)
    write = fio.phase("write")
    if write is None or write.gbps is None:
        unknown(f"fio gave no rate: see {IO}")
    reached = {name: rate for name in MEASURES if (rate := NAMED[name].of(node)) is not None}
    minimums = {name: expected.least[name] for name in MEASURES if name in expected.least}
    rate_texts = {name: f"{rate:.4g} {NAMED[name].unit}" for name, rate in reached.items()}
    saw(expected={n: f"{rate:g} {NAMED[n].unit} or more" for n, rate in minimums.items()} or None, actual=rate_texts)
    if fio.size is not None and (write.done or 0) < fio.size:
        seconds = write.seconds or 0
        fail(f"of {fio.size >> 20} MiB only {(write.done or 0) >> 20} were written in {seconds:.0f} s")
    if slow := [name for name, rate in minimums.items() if name in reached and reached[name] < rate]:
        messages = (f"{NAMED[name].title}: {rate_texts[name]}, {minimums[name]:g} is the least" for name in slow)
        fail("; ".join(messages), unverified=expected.unsupported(*slow))
    if missing := [name for name in MEASURES if name not in reached]:
        unknown(f"fio gave no {', '.join(missing)}: see {IO}")


@check(
    "storage.latency",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=(IO, "storage.bandwidth", *BROKEN),
    applies=lambda e: e.scratch,
    otherwise=NO_SCRATCH,
    says="Some small reads of scratch take very long: a disk repeats them within itself. Find it before it fails.",
)
def test_latency(node: Facts, expected: Expected) -> None:
    random = tried(node).phase("random")
    if random is None or random.tail_ms is None:
        unknown(f"fio gave no times of small reads: see {IO}")
    maximum = expected.most["scratch.read_tail_ms"]
    saw(expected=f"999 of 1,000 within {maximum:g} ms", actual=f"{random.tail_ms:.3g} ms")
    if random.tail_ms > maximum:
        fail(f"one small read of 1,000 takes {random.tail_ms:.3g} ms or more, {maximum:g} is the most")


@check(
    "storage.media_errors",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=(IO, "storage.nvme_state"),
    applies=lambda e: e.scratch,
    otherwise=NO_SCRATCH,
    says="An NVMe disk counted errors of its flash while it was written and read. Replace it before data is lost.",
)
def test_media_errors(node: Facts, expected: Expected) -> None:
    disks = tried(node).disks
    if not disks:
        no_health(node, expected)
    grown = [f"{d.name}: {d.media_after - d.media_before} more" for d in disks if d.media_after > d.media_before]
    saw(expected="no counter grows", actual=grown or f"{len(disks)} disks count no more")
    if grown:
        fail("; ".join(grown))


@check(
    "fleet.slow_scratch",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=(IO, "storage.bandwidth", *BROKEN),
    applies=lambda e: e.scratch,
    otherwise=NO_SCRATCH,
    says="This node's scratch is slower than the rest of its group's: one disk of the array, or one too few lanes.",
)
def test_slow_scratch(node: Facts, expected: Expected, peers: Peers) -> None:
    tried(node)
    slow, silent, typical_rates, own_rates = [], [], {}, {}
    for name in MEASURES:
        measure = NAMED[name]
        rate = measure.of(node)
        if rate is None:
            silent.append(measure.title)
            continue
        spread = spread_of(peers, measure.of, f"{measure.unit} of {measure.title}")
        typical_rates[name], own_rates[name] = f"about {spread.median:.4g} {measure.unit}", round(rate, 3)
        if spread.below(rate, expected.most["fleet.slow"]):
            slow.append(f"{measure.title}: {rate:.4g} {measure.unit}, {spread.said} nodes have {spread.median:.4g}")
    saw(expected=typical_rates, actual=own_rates)
    if slow:
        fail("; ".join(slow))
    if silent:
        unknown(f"fio gave no {', '.join(silent)}: see {IO}")
