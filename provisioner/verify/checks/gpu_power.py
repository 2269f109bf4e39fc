"""Heat, power and clocks of the GPUs, against each GPU's own thresholds and defaults."""

from __future__ import annotations

from provisioner.verify.check import check, fail, note, saw, skip, unknown
from provisioner.verify.checks.gpu import answering
from provisioner.verify.checks.looks import Looks
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.nvidia_smi import Gpu


def degrees_left(gpu: Gpu) -> int | None:
    """Degrees to the GPU's own slowdown; None where it does not say."""
    if gpu.margin is not None:
        return gpu.margin - (gpu.margin_slowdown or 0)
    if gpu.temperature is not None and gpu.temperature_slowdown is not None:
        return gpu.temperature_slowdown - gpu.temperature
    return None


@check(
    "gpu.temperature",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.throttle",),
    says="A GPU is close to the temperature at which it slows down. Look at fans, air flow and liquid cooling.",
)
def test_temperature(node: Facts, expected: Expected) -> None:
    gpus = answering(node)
    margins = {f"GPU {gpu.index}": degrees for gpu in gpus if (degrees := degrees_left(gpu)) is not None}
    minimum = expected.most.get("temperature.margin", 0)
    saw(
        expected=f"more than {minimum:g} °C below slowdown",
        actual={gpu: f"{value} °C" for gpu, value in margins.items()},
    )
    hot = [f"{gpu}: {degrees} °C left before slowdown" for gpu, degrees in margins.items() if degrees <= minimum]
    if hot:
        fail("; ".join(hot))
    if not margins and all(gpu.temperature is None for gpu in gpus):
        unknown("no GPU reports its temperature")
    if not margins:
        skip("these GPUs report no slowdown temperature")


@check(
    "gpu.memory_temperature",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.throttle", "gpu.temperature"),
    says="A GPU's memory is close to its highest temperature: errors follow. Look at fans and cooling.",
)
def test_memory_temperature(node: Facts, expected: Expected) -> None:
    margins = {
        f"GPU {gpu.index}": gpu.memory_temperature_max - gpu.memory_temperature
        for gpu in answering(node)
        if gpu.memory_temperature is not None and gpu.memory_temperature_max is not None
    }
    minimum = expected.most.get("temperature.margin", 0)
    saw(
        expected=f"more than {minimum:g} °C below the limit",
        actual={gpu: f"{value} °C" for gpu, value in margins.items()},
    )
    if not margins:
        skip("these GPUs report no maximum memory temperature")
    hot = [
        f"{gpu}: {degrees} °C left before its memory's limit" for gpu, degrees in margins.items() if degrees <= minimum
    ]
    if hot:
        fail("; ".join(hot))


@check(
    "gpu.power_limit",
    severity="warn",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    says="A GPU's power limit is not its default: a job waits for its slowest GPU. `nvidia-smi -pl` sets it back.",
)
def test_power_limit(node: Facts, expected: Expected) -> None:
    gpus = [g for g in answering(node) if g.power_limit_w is not None and g.power_default_w]
    saw(
        expected=sorted({f"{gpu.power_default_w:g} W" for gpu in gpus}),
        actual=sorted({f"{gpu.power_limit_w:g} W" for gpu in gpus}),
    )
    if not gpus:
        skip("these GPUs have no power limit to set")
    share = expected.most.get("power.limit_share", 0.0)
    other = [
        f"GPU {gpu.index}: {gpu.power_limit_w:g} W, default {gpu.power_default_w:g} W"
        for gpu in gpus
        if gpu.power_limit_w is not None
        and gpu.power_default_w is not None
        and abs(gpu.power_limit_w - gpu.power_default_w) > gpu.power_default_w * share
    ]
    if other:
        fail("; ".join(other))


@check(
    "gpu.power_brake",
    severity="fatal",
    documented="nvidia-smi(1) HW Power Brake Slowdown; github Azure/azurehpc-health-checks",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    says="The server's power supply brakes a GPU (external power brake): it runs at a fraction of its speed.",
)
def test_power_brake(node: Facts) -> None:
    answering(node)
    looks = Looks(node, "smi", lambda smi: {g.index for g in smi.gpus if "hw_power_brake_slowdown" in g.throttle})
    saw(expected="not asserted", actual=[sorted(look) for look in looks.each] if any(looks.each) else "not asserted")
    if looks.lasting:
        gpus = ", ".join(map(str, sorted(looks.lasting)))
        fail(f"power brake on GPU {gpus}{looks.words}", unverified=looks.unsure)
    if looks.over:
        note(f"power brake on GPU {', '.join(map(str, sorted(looks.over)))} for a moment: a later look shows none")


@check(
    "gpu.clocks",
    severity="warn",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    says="A GPU's application clock was set below its default. `nvidia-smi -rac` and `-rgc` set it back.",
)
def test_clocks(node: Facts) -> None:
    gpus = [g for g in answering(node) if g.clock_application_mhz is not None and g.clock_default_mhz is not None]
    saw(
        expected=sorted({f"{gpu.clock_default_mhz} MHz" for gpu in gpus}),
        actual=sorted({f"{gpu.clock_application_mhz} MHz" for gpu in gpus}),
    )
    if not gpus:
        skip("these GPUs, or this driver, have no application clocks")
    low = [f"GPU {g.index}: {g.clock_application_mhz} MHz, default {g.clock_default_mhz} MHz" for g in gpus
           if (g.clock_application_mhz or 0) < (g.clock_default_mhz or 0)]  # fmt: skip
    low += [f"memory of GPU {g.index}: {g.memory_clock_application_mhz} MHz, default {g.memory_clock_default_mhz} MHz"
            for g in gpus if g.memory_clock_application_mhz is not None and g.memory_clock_default_mhz is not None
            and g.memory_clock_application_mhz < g.memory_clock_default_mhz]  # fmt: skip
    if low:
        fail("; ".join(low))
