"""What is AMD's alone: partitions, what rocm-smi gives of the boards, and amdgpu's lines in the kernel log."""

from __future__ import annotations

from collections import Counter

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.kernel_log import fail_on_lines
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.rocm_smi import AmdGpu


def cards(node: Facts) -> tuple[AmdGpu, ...]:
    if node.rocm is None or not node.rocm.gpus:
        unknown("no GPU answers")
    return node.rocm.gpus


@check(
    "amd.partitions",
    severity="warn",
    action="reconfigure",
    needs=("gpus",),
    vendor="amd",
    says="GPUs are cut into partitions, and jobs see slices. `amd-smi set --compute-partition SPX` makes them whole.",
)
def test_partitions(node: Facts) -> None:
    parts = {f"GPU {gpu.index}": gpu.partitions for gpu in cards(node)}
    saw(expected="whole GPUs", actual=sorted(set(parts.values())))
    cut = [f"{gpu} is in {count} parts" for gpu, count in parts.items() if count > 1]
    if cut:
        fail("; ".join(cut))


@check(
    "amd.unique_ids",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="amd",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="Two GPUs have one unique id: what picks GPUs by id takes the wrong one.",
)
def test_unique(node: Facts) -> None:
    ids = Counter(gpu.uuid for gpu in cards(node) if gpu.uuid)
    repeated = [f"{uuid} {count} times" for uuid, count in ids.items() if count > 1]
    saw(expected="one for each GPU", actual=repeated or "one for each GPU")
    if repeated:
        fail("; ".join(repeated))
    if not ids:
        skip("these GPUs have no unique id")


@check(
    "amd.memory_vendor",
    severity="info",
    action="none",
    needs=("gpus",),
    vendor="amd",
    says="GPUs of one node have memory of different makers: a board was changed. Harmless, and worth knowing.",
)
def test_memory_vendor(node: Facts) -> None:
    makers = sorted({gpu.memory_vendor for gpu in cards(node) if gpu.memory_vendor})
    saw(expected="one", actual=makers)
    if not makers:
        skip("rocm-smi does not report it")
    if len(makers) > 1:
        fail(", ".join(makers))


@check(
    "amd.vbios",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="amd",
    says="GPUs of one node have different VBIOS versions. Have them brought to one before a long job.",
)
def test_vbios(node: Facts) -> None:
    versions = Counter(gpu.vbios for gpu in cards(node) if gpu.vbios)
    saw(expected="one version", actual=dict(versions))
    if not versions:
        skip("rocm-smi does not report it")
    if len(versions) > 1:
        fail("; ".join(f"{version} on {count}" for version, count in versions.items()))


@check(
    "amd.firmware",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="amd",
    says="A part of a GPU has other firmware than on the node's other GPUs: the driver did not load all. Reboot.",
)
def test_firmware(node: Facts) -> None:
    reporting = [gpu for gpu in cards(node) if gpu.firmware]
    if not reporting:
        skip("rocm-smi does not report it")
    kinds: dict[str, dict[str, list[int]]] = {}
    for gpu in reporting:
        for part, version in gpu.firmware:
            kinds.setdefault(part, {}).setdefault(version, []).append(gpu.index)
    wrong = {part: versions for part, versions in kinds.items() if len(versions) > 1}
    saw(expected="one version of each part", actual=wrong or f"{len(kinds)} parts alike")
    if wrong:
        part, versions = next(iter(wrong.items()))
        fail(f"{part}: " + "; ".join(f"{version} on GPU {', '.join(map(str, on))}" for version, on in versions.items()))


@check(
    "amd.xgmi",
    severity="fatal",
    documented="github Azure/azurehpc-health-checks holds rocm-smi --showxgmierr to 0; rocm_smi.h, rsmi_xgmi_status_t",
    action="vendor",
    needs=("gpus",),
    vendor="amd",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="A link between GPUs (XGMI) had errors since it was last asked. Test it under load, then replace the board.",
)
def test_xgmi(node: Facts) -> None:
    counts = {f"GPU {gpu.index}": gpu.xgmi_errors for gpu in cards(node) if gpu.xgmi_errors is not None}
    saw(expected="no error", actual=counts)
    if not counts:
        skip("rocm-smi does not report it, as it does not on MI300 and newer: amd.ras and the load prove their links")
    if wrong := [name for name, count in counts.items() if count]:
        fail(f"errors of XGMI on {', '.join(wrong)}")


@check(
    "amd.pcie_replay",
    severity="info",
    action="vendor",
    needs=("gpus",),
    vendor="amd",
    says="A GPU repeats many PCIe transfers: a link that is going bad. Watch it under load.",
)
def test_replays(node: Facts, expected: Expected) -> None:
    counts = {f"GPU {gpu.index}": gpu.pcie_replays for gpu in cards(node) if gpu.pcie_replays is not None}
    maximum = expected.most.get("pcie.replays", float("inf"))
    saw(expected=f"{maximum:g} at most", actual=counts)
    if not counts:
        skip("rocm-smi does not report it")
    many = [f"{gpu}: {count} replays" for gpu, count in counts.items() if count > maximum]
    if many:
        fail("; ".join(many))


@check(
    "amd.init",
    severity="warn",
    action="reboot",
    needs=("dmesg.txt",),
    vendor="amd",
    follows=("gpu.count",),
    says="The amdgpu driver could not start a GPU at one time. Reboot; replace the node if it happens again.",
)
def test_init(node: Facts) -> None:
    fail_on_lines(node, "amd_init")


@check(
    "amd.ring_timeout",
    severity="fatal",
    documented="docs.kernel.org/gpu/amdgpu: amdgpu_job_timedout logs `ring … timeout` before it resets the GPU",
    action="reboot",
    needs=("dmesg.txt",),
    vendor="amd",
    follows=("gpu.count", "amd.ras"),
    says="A GPU stopped working on what it was given, and was reset. Reboot and test it under load.",
)
def test_ring(node: Facts) -> None:
    fail_on_lines(node, "amd_ring_timeout")


@check(
    "amd.throttle",
    severity="warn",
    action="vendor",
    needs=("dmesg.txt",),
    vendor="amd",
    says="A GPU became so hot that its driver slowed it down. Look at fans and air flow.",
)
def test_throttle(node: Facts) -> None:
    fail_on_lines(node, "amd_throttle")


@check(
    "amd.bad_pages",
    severity="fatal",
    documented="docs.kernel.org/gpu/amdgpu/ras.html: gpu_vram_bad_pages; github oci-hpc/oci-hpc-oke: none pending",
    action="reset",
    needs=("host.json",),
    vendor="amd",
    follows=("amd.ras",),
    says="Pages of a GPU's memory are bad and not set aside: whichever program gets them fails. Drain and reset it.",
)
def test_bad_pages(node: Facts) -> None:
    assert node.host is not None
    pages = node.host.amd_pages
    saw(expected="every bad page set aside", actual={name: Counter(flags) for name, flags in pages.items() if flags})
    if not pages:
        skip("the driver keeps no list of bad pages, as on virtual functions")
    flag_texts = {"P": "wait to be set aside", "F": "could not be set aside"}
    wrong = [f"{name}: {n} {flag_texts[flag]}" for name, flags in pages.items() for flag, n in Counter(flags).items()
             if flag in flag_texts]  # fmt: skip
    if wrong:
        fail("; ".join(wrong), action="replace" if any("F" in flags for flags in pages.values()) else "reset")


@check(
    "amd.ecc",
    severity="fatal",
    documented="AMD SMI, amd-smi metric --ecc: TOTAL_UNCORRECTABLE_COUNT; docs.kernel.org/gpu/amdgpu/ras.html",
    action="reset",
    needs=("gpus",),
    vendor="amd",
    says="A GPU counts memory errors that could not be corrected. Drain, reset and test it; then replace.",
)
def test_ecc(node: Facts) -> None:
    counts = {f"GPU {gpu.index}": gpu.ecc_uncorrectable for gpu in (node.rocm.gpus if node.rocm else ())}
    if all(count is None for count in counts.values()):
        skip("neither `amd-smi metric --ecc` nor `rocm-smi --showrasinfo` was given")
    saw(expected="none", actual={gpu: count for gpu, count in counts.items() if count} or "none")
    if wrong := [f"{gpu}: {count} uncorrectable errors" for gpu, count in counts.items() if count]:
        fail("; ".join(wrong))


@check(
    "amd.ras",
    severity="fatal",
    documented="docs.kernel.org/gpu/amdgpu/ras.html; github ROCm/cvs health tests",
    action="replace",
    needs=("dmesg.txt",),
    vendor="amd",
    says="A GPU had memory errors that could not be corrected. Drain, reset and test the GPU, then replace it.",
)
def test_ras(node: Facts) -> None:
    fail_on_lines(node, "amd_ras")
