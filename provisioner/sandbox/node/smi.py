"""nvidia-smi: which form was asked for, and the switches that change a GPU's modes."""

from __future__ import annotations

import sys

from . import loading, smi_mig, smi_q, smi_query, smi_text, smi_topo, smi_xml, state
from .smi_facts import Driver, NoAnswer, complain, driver, hang_if_asked

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VALUED = {
    "-i": "id",
    "--id": "id",
    "-pm": "pm",
    "--persistence-mode": "pm",
    "-e": "ecc",
    "--ecc-config": "ecc",
    "-mig": "mig",
    "--multi-instance-gpu": "mig",
    "-f": "file",
    "--filename": "file",
    "-d": "display",
    "--display": "display",
    "-am": "am",
    "--query-gpu": "query-gpu",
    "--query-compute-apps": "query-compute-apps",
    "--format": "format",
    "-c": "compute",
    "--compute-mode": "compute",
    "-pl": "pl",
}


def nvidia_smi(arguments: list[str], version: str) -> int:
    """Answers like the real tool of that version, exit codes included; nothing works before the module is loaded."""
    hang_if_asked(state.hardware())
    if arguments[:1] == ["--version"] or "--version" in arguments:
        return _version(version)
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"NVIDIA System Management Interface -- v{version} (simulated by gpuprov)")
        return 0
    try:
        answer = driver()
        return _dispatch(arguments, answer)
    except NoAnswer as error:
        return complain(error)


def _version(version: str) -> int:
    try:
        loaded = driver()
    except NoAnswer:
        loaded = None
    library = state.library_version(state.hardware()) or version
    print(f"NVIDIA-SMI version  : {loaded.version if loaded else library}")
    print(f"NVML version        : {'.'.join(library.split('.')[:2])}")
    print(f"DRIVER version      : {loaded.version if loaded else 'Not Found'}")
    print(f"CUDA Version        : {loaded.cuda if loaded else 'Not Found'}")
    return 0


def _dispatch(arguments: list[str], loaded: Driver) -> int:
    commands: dict[str, Callable[[list[str], Driver], str]] = {"topo": smi_topo.topo, "nvlink": smi_topo.nvlink}
    if arguments and arguments[0] in commands:
        sys.stdout.write(commands[arguments[0]](arguments[1:], loaded))
        return 0
    if arguments[:1] == ["mig"]:
        return smi_mig.mig(arguments[1:], loaded)
    options, flags, unknown = _parse(arguments)
    if unknown:
        print(
            "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
            f"\n{unknown[0]}: not simulated by gpuprov"
        )
        return 2
    id_list = options.get("id")
    if id_list is not None and not any(smi_xml.matches(gpu, w) for gpu in loaded.gpus for w in id_list.split(",")):
        print("No devices were found")
        return 6
    selected = [g for g in loaded.gpus if id_list is None or any(smi_xml.matches(g, w) for w in id_list.split(","))]
    if flags & {"-r", "--gpu-reset"}:
        return smi_mig.reset(selected)
    changes = [name for name in ("pm", "ecc", "mig") if name in options]
    if changes:
        return _change(changes[0], options[changes[0]], selected)
    if "query-compute-apps" in options:
        code, answer = smi_mig.compute_apps(loaded, options["query-compute-apps"], options.get("format", ""))
        sys.stdout.write(answer)
        return code
    if "query-gpu" in options:
        code, answer = smi_query.query(loaded, options["query-gpu"], options.get("format", ""), id_list)
        sys.stdout.write(answer)
        return code
    if "-L" in flags or "--list-gpus" in flags:
        sys.stdout.write(smi_text.listing(loaded))
    elif ("-q" in flags or "--query" in flags) and ("-x" in flags or "--xml-format" in flags):
        text = smi_xml.document(loaded._replace(gpus=loading.at_first(loaded.gpus)), id_list)
        if "file" in options:
            state.path(options["file"]).write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    elif "-q" in flags or "--query" in flags:
        sys.stdout.write(smi_q.text(smi_xml.document(loaded, id_list), loaded.branch))
    else:
        sys.stdout.write(smi_text.table(loaded))
    return 0


def _parse(arguments: list[str]) -> tuple[dict[str, str], set[str], list[str]]:
    options: dict[str, str] = {}
    flags: set[str] = set()
    unknown: list[str] = []
    remaining = list(arguments)
    while remaining:
        item = remaining.pop(0)
        name, equals, value = item.partition("=")
        if equals and name in VALUED:
            options[VALUED[name]] = value
        elif item in VALUED and remaining:
            options[VALUED[item]] = remaining.pop(0)
        elif item in (
            "-q",
            "-x",
            "-L",
            "--query",
            "--xml-format",
            "--list-gpus",
            "-u",
            "--unit",
            "--dtd",
            "-r",
            "--gpu-reset",
        ):
            flags.add(item)
        elif item == "-qx":
            flags |= {"-q", "-x"}
        else:
            unknown.append(item)
    return options, flags, unknown


def _change(setting: str, value: str, gpus: list[dict[str, Any]]) -> int:
    on = value.lower() in ("1", "enabled")
    mode = "Enabled" if on else "Disabled"
    for gpu in gpus:
        if setting == "pm":
            _remember(state.PERSISTENCE, gpu["uuid"], on)
            already = gpu["persistence"] == mode
            print(
                f"{'Persistence mode is already ' if already else ''}{mode}{'' if already else ' persistence mode'} "
                f"for GPU {gpu['pci']}."
            )
            continue
        supported = gpu["ecc"]["supported"] if setting == "ecc" else gpu["mig"]["supported"]
        if not supported:
            print(
                f"{'ECC configuration' if setting == 'ecc' else 'MIG mode'} "
                f"is not supported for GPU {gpu['pci']}: Not Supported"
            )
            print("Treating as warning and moving on.")
            continue
        if setting == "mig":
            smi_mig.set_mode(gpu, mode)
            continue
        _remember(state.SETTINGS, gpu["uuid"], {**state.read(state.SETTINGS, {}).get(gpu["uuid"], {}), setting: mode})
        print(f"{mode} ECC support for GPU {gpu['pci']}.")
        print("All done.\nReboot required.")
    if setting != "ecc":
        print("All done.")
    return 0


def _remember(file: str, uuid: str, value: Any) -> None:
    state.change(file, lambda known: {**known, uuid: value}, {})
