"""What watches the node: the DCGM exporter and what it has seen, DCGM's background watches."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import ACTIONS, NO_LOCK, NO_TYPE, check, fail, note, saw, skip, unknown
from provisioner.verify.checks.diagnostics import has_nvlink
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.checks.unread import end_unread
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.dcgm_exporter import XIDS

FRESH_S = 120.0
"""Oldest reading that counts as fresh, where the exporter writes time stamps at all: four scrapes of 30 s."""


@check(
    "dcgm.exporter",
    severity="fatal",
    measured="dcgm_exporter/h100-8gpu-580",
    action="reconfigure",
    vendor="nvidia",
    follows=("driver.responds",),
    applies=lambda e: e.dcgm_exporter is not False,
    otherwise="the lock has no exporter",
    lock="only where it has an exporter one has to answer",
    without_lock="one that answers without readings of a GPU, or with old ones, warns",
    says="The DCGM exporter does not answer, or has no readings of a GPU: the node would run unwatched.",
)
def test_exporter(node: Facts, expected: Expected) -> None:
    source, output = node.source("dcgm-exporter.prom"), node.outputs.get("dcgm-exporter.prom")
    if node.dcgm is None and not expected.dcgm_exporter:
        skip("no lock asks for an exporter, and none gives readings")
    if not expected.dcgm_exporter and node.gpus_present is None and not expected.knows("gpu_count"):
        skip("no lock asks for an exporter, and nothing says how many GPUs there are")
    unsure = () if expected.dcgm_exporter else (NO_LOCK,)
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    saw(expected=f"readings of {present} GPUs", actual=source.reason)
    if present == 0:
        unknown("no GPU answers, so there is nothing to export: see gpu.count")
    # A refused or hung connection is an answer about the exporter, unlike a file that nobody collected.
    if source.state == "hung" or (output is not None and output.rc not in (0, None)):
        fail(f"port 9400 does not answer: {output.error or source.reason}" if output else source.reason)
    if node.dcgm is None:
        unknown(source.reason)
    uuids = set(node.dcgm.gpus.values()) - {None}
    saw(expected=f"readings of {present} GPUs", actual=f"readings of {len(node.dcgm.gpus)} GPUs")
    have = {gpu.uuid for gpu in node.gpus or ()}
    has_uuids = have & uuids and len(have) == present and None not in have and len(uuids) == len(node.dcgm.gpus)
    # UUIDs are compared where both sides give one for each GPU (and mean the same: some tools mask them), else numbers.
    silent = len(have - uuids) if has_uuids else max(0, present - len(node.dcgm.gpus))
    if silent:
        fail(f"no reading of {silent} of {counted(present, 'GPU')}", unverified=unsure)
    if node.dcgm.newest is not None and node.collected is not None and node.collected - node.dcgm.newest > FRESH_S:
        fail(f"the newest reading is {node.collected - node.dcgm.newest:.0f} s old", unverified=unsure)


@check(
    "dcgm.xid",
    severity="fatal",
    documented="NVIDIA DCGM, field 230 DCGM_FI_DEV_XID_ERRORS: the last Xid of a GPU",
    action="reset",
    vendor="nvidia",
    follows=("gpu.xid", "gpu.xid_again", "gpu.count", "load.xid"),
    says="DCGM has seen an Xid that the kernel log no longer has. Follow the steps for its code.",
)
def test_xid(node: Facts, expected: Expected) -> None:
    if node.dcgm is None:
        skip("no readings of the exporter: see dcgm.exporter")
    if XIDS not in node.dcgm.metrics:
        skip(f"the exporter has no sample of {XIDS}")
    table, codes = expected.xids or {}, node.dcgm.xids
    saw(expected="no fatal Xid since DCGM was started", actual={f"GPU {gpu}": code for gpu, code in codes.items()})
    rows = {gpu: table.get(str(code), {}) for gpu, code in codes.items()}
    fatal = [gpu for gpu, row in rows.items() if row.get("severity") == "fatal"]
    if fatal:
        actions = [next(a for a in ACTIONS if a == rows[gpu].get("action", "reset")) for gpu in fatal]
        message = "; ".join(f"GPU {gpu}: Xid {codes[gpu]}: {rows[gpu].get('advice', '')}" for gpu in fatal)
        fail(message, action=max(actions, key=ACTIONS.index))
    if strange := [codes[gpu] for gpu, row in rows.items() if not row]:
        unknown(f"Xid {strange[0]} is not in the catalogue's Xid table")


EXPLAINED = (
    "driver.responds", "gpu.count", "gpu.ecc", "gpu.remap", "gpu.retired_pages", "gpu.xid", "nvlink.links",
    "nvswitch.fabric", "nvswitch.sxid", "dcgm.memory", "dcgm.xid", "dcgm.exporter",
)  # fmt: skip


@check(
    "dcgm.health",
    severity="fatal",
    documented="NVIDIA DCGM user guide, Health Monitor: Failure; github NVIDIA/NVSentinel, facebookresearch/gcm",
    action="vendor",
    reads=("dcgmi-health.json",),
    follows=EXPLAINED,
    vendor="nvidia",
    lock="only it says that DCGM has to be there",
    without_lock="what DCGM's watches say where it is installed",
    says="DCGM's background watches have seen a part of a GPU fail. Its message says which; drain the node, test it.",
)
def test_health(node: Facts, expected: Expected) -> None:
    _watched(node, expected, "Failure")


@check(
    "dcgm.health_warning",
    severity="warn",
    action="vendor",
    reads=("dcgmi-health.json",),
    follows=(*EXPLAINED, "dcgm.health", "gpu.inforom", "gpu.pcie_replay", "gpu.throttle"),
    vendor="nvidia",
    lock="only it says that DCGM has to be there",
    without_lock="what DCGM's watches say where it is installed",
    says="DCGM's background watches warn of a GPU: replays, heat, power, its InfoROM. Read the message, and watch it.",
)
def test_health_warning(node: Facts, expected: Expected) -> None:
    _watched(node, expected, "Warning")


MOMENTARY = ("power", "thermal")
"""Systems of DCGM's watches that warn of any GPU at work (github NVIDIA/DCGM#285: a threshold of zero;
NVIDIA/NVSentinel#1668: 69 of 100 nodes; #1708 leaves them out by default)."""


def _watched(node: Facts, expected: Expected, state: str) -> None:
    health = node.dcgm_health
    if health is None:
        reason = "no lock says that DCGM is on this machine" if expected.packages is None else None
        end_unread(node, "dcgmi-health.json", skips=reason)
    if health.overall is None:
        reason = "no watch of DCGM is set: `dcgmi health -s a` sets all, as role dcgm_exporter does"
        unknown(reason) if expected.dcgm_exporter else skip(reason)
    wrong = [i for i in health.incidents if (i.state == "Warning") == (state == "Warning") and i.state != "Healthy"]
    saw(expected="Healthy", actual=[f"{i.entity}: {i.system}" for i in wrong] or health.overall)
    if state == "Warning" and wrong and all(i.system.lower().startswith(MOMENTARY) for i in wrong):
        note("; ".join(f"{i.entity}: {i.system}: {i.message}" for i in wrong[:4]))
    if wrong:  # dcgm.health_warning is silent then, and what it knows may be the cause
        also = [i for i in health.incidents if i.state == "Warning" and i not in wrong]
        # DCGM watches NVLinks that have no bridge too (github NVIDIA/NVSentinel#1481).
        links_alone = all("nvlink" in i.system.lower() for i in wrong)
        message = "; ".join(f"{i.entity}: {i.system}: {i.message}" for i in [*wrong[:4], *also[:2]])
        unsure = (NO_TYPE,) if links_alone and not has_nvlink(expected) else ()
        # Links that trained late stay in its memory (github NVIDIA/NVSentinel#1701: 214 of 288 nodes after a reboot).
        down = links_alone and all("down" in i.message.lower() for i in wrong)
        if down and not unsure and _all_links_up(node, expected):
            message, unsure = f"{message}; nvidia-smi shows all links up", ("what DCGM remembers",)
        fail(message, unverified=unsure)
    if state == "Failure" and health.overall in ("Failure", "Internal error"):
        fail(f"overall health is {health.overall}, without a word why")


def _all_links_up(node: Facts, expected: Expected) -> bool:
    """Whether every GPU has all the NVLinks that its type has, now."""
    expected_links, present = expected.nvlinks_per_gpu or (), node.nvlinks or {}
    return any(expected_links) and sorted(expected_links) == sorted(links.active or 0 for links in present.values())


NODE_EXPORTER = 9100


@check(
    "services.node_exporter",
    severity="info",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: bool(e.monitoring_units),
    otherwise="cluster.yaml has neither monitoring.prometheus nor monitoring.health_check",
    says="Nothing listens where node_exporter does (9100): no scrape reads what gpuprov's timer writes.",
)
def test_node_exporter(node: Facts) -> None:
    sockets = [s for s in reported(host_of(node).listening, "what listens on it") if s.port == NODE_EXPORTER]
    saw(expected=f"port {NODE_EXPORTER}", actual=f"{len(sockets)} sockets")
    if not sockets:
        fail(f"nothing listens on port {NODE_EXPORTER}")


NEEDED = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
"""What dashboards and alerts live on, and every exporter's own list of counters has (dcgm-exporter,
default-counters.csv)."""


@check(
    "dcgm.fields",
    severity="warn",
    action="reconfigure",
    vendor="nvidia",
    follows=("dcgm.exporter", "driver.responds", "gpu.count"),
    applies=lambda e: e.dcgm_exporter is not False,
    otherwise="the lock has no exporter",
    lock="somebody's own exporter has a list of fields of its own",
    without_lock="readings that stand still",
    says="The exporter gives old readings, or lacks fields that alerts need. Restart nvidia-dcgm, then the exporter.",
)
def test_fields(node: Facts, expected: Expected) -> None:
    if node.dcgm is None:
        skip("no readings of the exporter: see dcgm.exporter")
    # Somebody's own exporter has a list of counters of its own.
    missing = [name for name in NEEDED if name not in node.dcgm.metrics] if expected.packages is not None else []
    if missing:
        saw(expected=list(NEEDED), actual=missing)
        fail(f"no {', '.join(missing)}")
    if node.collected is None and expected.packages is None:
        skip("no lock, and it is unknown whether both were read at the same time")
    smi_temperatures = {
        gpu.uuid: gpu.temperature for gpu in node.gpus or () if gpu.uuid and gpu.temperature is not None
    }
    pairs = {
        f"GPU {index}": (value, float(smi_temperatures[uuid]))
        for index, value in node.dcgm.temperatures.items()
        if (uuid := node.dcgm.gpus.get(index)) in smi_temperatures
    }
    maximum = expected.most["dcgm.temperature"]
    saw(
        expected=f"within {maximum:g} °C of nvidia-smi",
        actual={name: f"{a:g}, {b:g}" for name, (a, b) in pairs.items()},
    )
    if not pairs:
        skip("every field is there; no GPU has a temperature in both, so their age is not known")
    off = [f"{name}: {a:g} °C, nvidia-smi says {b:g}" for name, (a, b) in pairs.items() if abs(a - b) > maximum]
    if len(off) == len(pairs) > 2:  # readings that stand still are so of all; one GPU or two may be taking up work
        fail("; ".join(off[:4]), unverified=expected.unsupported("dcgm.temperature"))
