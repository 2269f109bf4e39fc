"""How nvidia-smi shows MIG: profiles and instances (`mig -lgip`, `-lgi`), devices in the table, in -L and in -q -x."""

from __future__ import annotations

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Gpu = dict[str, Any]


def free(gpu: Gpu) -> tuple[int, int]:
    """Compute and memory slices that no instance has."""
    used = [
        gpu["mig"]["profiles"][item["profile"]]["slices"] for item in state.read(state.MIG, {}).get(gpu["uuid"], [])
    ]
    compute, memory = gpu["mig"]["slices"]
    return compute - sum(u[0] for u in used), memory - sum(u[1] for u in used)


def profiles(gpus: list[Gpu]) -> None:
    line = "+-----------------------------------------------------------------------------+"
    print(line)
    print("| GPU instance profiles:                                                      |")
    print("| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |")
    print("|                              Free/Total   GiB              CE    JPEG  OFA  |")
    print("|=============================================================================|")
    for gpu in gpus:
        slices_left = free(gpu)
        for name, p in gpu["mig"]["profiles"].items():
            some = min(slices_left[0] // p["slices"][0], slices_left[1] // p["slices"][1])
            head = f"|{gpu['index']:>4}  MIG {name:<14}{p['id']:>3}" + f"{some}/{p['total']}".rjust(9)
            print(
                f"{head}{p['memory_mib'] / 1024:>12.2f}       No{p['sm']:>7}{p['decoders']:>6}{0:>6}   |\n"
                f"|{p['copy']:>62}{p['jpeg']:>6}{p['ofa']:>6}   |\n{line}"
            )


def listing(gpus: list[Gpu]) -> int:
    rows = [(gpu, item) for gpu in gpus for item in state.read(state.MIG, {}).get(gpu["uuid"], [])]
    if not rows:
        print("No GPU instances found: Not Found")
        return 6
    line = "+---------------------------------------------------------+"
    print(line)
    print("| GPU instances:                                          |")
    print("| GPU   Name               Profile  Instance   Placement  |")
    print("|                            ID       ID       Start:Size |")
    print("|=========================================================|")
    starts: dict[str, int] = {}
    for gpu, item in rows:
        profile = gpu["mig"]["profiles"][item["profile"]]
        start = starts.get(gpu["uuid"], 0)
        starts[gpu["uuid"]] = start + profile["slices"][1]
        span = f"{start}:{profile['slices'][1]}"
        print(
            f"|{gpu['index']:>4}  MIG {item['profile']:<14}{profile['id']:>6}{item['id']:>9}{span:>14}       |\n{line}"
        )
    return 0


def elements(gpu: Gpu) -> str:
    """<mig_devices> of `-q -x`, indented as in the place where it stands."""
    out = "\t\t<mig_devices>\n"
    for device in gpu["mig_devices"]:
        shared = {
            "multiprocessor_count": device["sm"],
            "copy_engine_count": device["copy"],
            "encoder_count": 0,
            "decoder_count": device["decoders"],
            "ofa_count": device["ofa"],
            "jpg_count": device["jpeg"],
        }
        memory = device["memory_mib"]
        bar1 = gpu["product"]["bar1"] * device["slices"][1] // gpu["mig"]["slices"][1]
        tree = [
            ("index", device["index"]),
            ("gpu_instance_id", device["instance"]),
            ("compute_instance_id", 0),
            ("device_attributes", [("shared", list(shared.items()))]),
            ("ecc_error_count", [("volatile_count", [("sram_uncorrectable", 0)])]),
            ("fb_memory_usage", [("total", f"{memory} MiB"), ("reserved", "0 MiB"), ("used", "12 MiB"),
                                 ("free", f"{memory - 13} MiB")]),
            ("bar1_memory_usage", [("total", f"{bar1} MiB"), ("used", "0 MiB"), ("free", f"{bar1} MiB")]),
        ]  # fmt: skip
        out += "\t\t\t<mig_device>\n" + _xml(tree, 4) + "\t\t\t</mig_device>\n"
    return out + ("" if gpu["mig_devices"] else "\t\t\tNone\n") + "\t\t</mig_devices>\n"


def _xml(tree: list[tuple[str, Any]], depth: int) -> str:
    tabs, out = "\t" * depth, ""
    for tag, value in tree:
        if isinstance(value, list):
            out += f"{tabs}<{tag}>\n{_xml(value, depth + 1)}{tabs}</{tag}>\n"
        else:
            out += f"{tabs}<{tag}>{value}</{tag}>\n"
    return out


def table(gpus: tuple[Gpu, ...]) -> str:
    """The MIG rows below nvidia-smi's table; empty where no GPU is in MIG mode."""
    if not any(gpu["mig_current"] == "Enabled" for gpu in gpus):
        return ""
    wide = "+-----------------------------------------------------------------------------------------+"
    line = "+------------------+----------------------------------+-----------+-----------------------+"
    out = (
        f"\n{wide}\n| MIG devices:{'|':>77}\n{line}\n"
        "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
        "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
        "|                  |                                  |        ECC|                       |\n"
        "|==================+==================================+===========+=======================|\n"
    )
    for gpu in gpus:
        for d in gpu["mig_devices"]:
            bar1 = gpu["product"]["bar1"] * d["slices"][1] // gpu["mig"]["slices"][1]
            out += (
                f"|{gpu['index']:>3}{d['instance']:>5}{0:>4}{d['index']:>4}  |"
                f"{'12MiB /':>21}{d['memory_mib']:>6}MiB    |{d['sm']:>3}{0:>7} |"
                f"{d['copy']:>3}{0:>4}{d['decoders']:>5}{d['ofa']:>5}{d['jpeg']:>5} |\n"
                f"|{'':18}|{'0MiB /':>21}{bar1:>6}MiB    |{'':11}|{'':23}|\n{line}\n"
            )
    if not any(gpu["mig_devices"] for gpu in gpus):
        out += f"|  No MIG devices found{'':67}|\n{line}\n"
    return out


def device_line(device: dict[str, Any]) -> str:
    """A MIG device's line below its GPU in `nvidia-smi -L`."""
    return f"  MIG {device['profile']:<11} Device {device['index']:>2}: (UUID: {device['uuid']})\n"
