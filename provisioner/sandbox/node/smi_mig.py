"""MIG: the mode and when it takes effect, instances (`nvidia-smi mig …`), GPU reset, and what uses a GPU meanwhile.

Ampere keeps the mode in the GPU over a reboot; later GPUs keep it while the driver is loaded. Instances are gone after
every reboot and reset, on all of them (NVIDIA MIG user guide).
"""

from __future__ import annotations

from . import smi_mig_text, state
from .smi_facts import Driver
from .smi_xml import matches

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Gpu = dict[str, Any]

INSTANCES = state.MIG
FIRST = {"7g": 0, "4g": 1, "3g": 1, "2g": 3, "1g": 7}
"""The first id that the driver gives an instance of each size; 1g with more memory counts as 2g."""
USERS = "run/gpuprov-sandbox/processes.json"
"""Compute processes, for tests: [{"gpu": index, "pid", "name"}]; one whose process has ended does not count."""


def processes(gpu: Gpu) -> list[dict[str, Any]]:
    """Compute processes on that GPU."""
    return [p for p in state.read(USERS, []) if p["gpu"] == gpu["index"] and state.exists(f"proc/{p['pid']}")]


def in_use(gpu: Gpu) -> bool:
    """Whether something holds the GPU that keeps its mode from changing: a job, or DCGM's host engine."""
    return bool(processes(gpu)) or state.hostengine_runs()


def set_mode(gpu: Gpu, mode: str) -> None:
    """-mig 0|1: at once where nothing uses the GPU, else pending until it is reset."""
    busy = in_use(gpu) or bool(gpu["mig_devices"])
    current = gpu["mig_current"] if busy else mode
    _remember(gpu, mig=mode, mig_now=current)
    if current != mode:
        verb = "enable" if mode == "Enabled" else "disable"
        print(
            f"Warning: MIG mode is in pending {verb} state for GPU {gpu['pci']}:In use by another client\n"
            f"{gpu['pci']} is currently being used by one or more other processes (e.g. CUDA application or a "
            "monitoring application such as another instance of nvidia-smi). Please first kill all processes using the "
            "device and retry the command or reboot the system to make MIG mode effective."
        )
        return
    _forget(gpu)
    print(f"{mode} MIG Mode for GPU {gpu['pci']}")


def reset(gpus: list[Gpu]) -> int:
    """--gpu-reset: pending modes take effect, instances are gone; refused for a GPU that something uses."""
    busy = [gpu for gpu in gpus if in_use(gpu)]
    if busy:
        print("The following GPUs could not be reset:")
        print("".join(f"  GPU {gpu['pci']}: In use by another client\n" for gpu in busy))
        print(
            f"{len(busy)} device{'s are' if len(busy) > 1 else ' is'} currently being used by one or more other "
            "processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a "
            "monitoring application such as another instance of nvidia-smi). Please first kill all processes using "
            f"{'these devices' if len(busy) > 1 else 'this device'} and all compute applications running in the system."
        )
        return 255
    for gpu in gpus:
        known = state.read(state.SETTINGS, {}).get(gpu["uuid"], {})
        _remember(gpu, **{f"{name}_now": known[name] for name in ("ecc", "mig") if name in known})
        _forget(gpu)
        print(f"GPU {gpu['pci']} was successfully reset.")
    print("All done.")
    return 0


def at_boot(machine: dict[str, Any]) -> None:
    """What the driver's start does to modes that were set: ECC and Ampere's MIG take effect, later MIG is off."""
    ampere = {gpu["uuid"] for gpu in machine.get("gpus", []) if gpu.get("arch") == "ampere"}

    def start(settings: dict[str, Any]) -> dict[str, Any]:
        retained = {
            u: v if u in ampere else {k: x for k, x in v.items() if "mig" not in k} for u, v in settings.items()
        }
        return {u: {**v, **{f"{k}_now": v[k] for k in ("ecc", "mig") if k in v}} for u, v in retained.items()}

    state.change(state.SETTINGS, start, {})


def _remember(gpu: Gpu, **values: str) -> None:
    state.change(state.SETTINGS, lambda s: {**s, gpu["uuid"]: {**s.get(gpu["uuid"], {}), **values}}, {})


def _put(gpu: Gpu, instances: list[dict[str, Any]]) -> None:
    state.change(INSTANCES, lambda all_: {**all_, gpu["uuid"]: instances}, {})


def _forget(gpu: Gpu) -> None:
    state.change(INSTANCES, lambda all_: {u: v for u, v in all_.items() if u != gpu["uuid"]}, {})


def mig(arguments: list[str], driver: Driver) -> int:
    """`nvidia-smi mig` with -lgip, -lgi, -cgi LIST [-C], -dci, -dgi, each for all GPUs or for -i LIST."""
    options = _parse(arguments)
    id_list = options.get("-i")
    selected = [g for g in driver.gpus if id_list is None or any(matches(g, id) for id in id_list.split(","))]
    gpus = [gpu for gpu in selected if gpu["mig_current"] == "Enabled"]
    if not gpus:
        print("No MIG-enabled devices found.")
        return 6
    if "-lgip" in options:
        smi_mig_text.profiles(gpus)
        return 0
    if "-lgi" in options:
        return smi_mig_text.listing(gpus)
    if "-cgi" in options:
        return _create(gpus, options["-cgi"].split(","), compute="-C" in options)
    if "-dci" in options:
        return _destroy_compute(gpus)
    if "-dgi" in options:
        return _destroy(gpus)
    print("Option is not recognized. Please run 'nvidia-smi mig -h'.\n(this form is not simulated by gpuprov)")
    return 2


LONG = {"--id": "-i", "--list-gpu-instance-profiles": "-lgip", "--list-gpu-instances": "-lgi",
        "--create-gpu-instance": "-cgi", "--default-compute-instance": "-C",
        "--destroy-compute-instance": "-dci", "--destroy-gpu-instance": "-dgi"}  # fmt: skip


def _parse(arguments: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    remaining = list(arguments)
    while remaining:
        name, _, value = remaining.pop(0).partition("=")
        name = LONG.get(name, name)
        options[name] = value or (remaining.pop(0) if name in ("-i", "-cgi") and remaining else "")
    return options


def _by_name(gpu: Gpu, profile_name: str) -> tuple[str, dict[str, Any]] | None:
    """A profile by its name (1g.5gb, MIG 1g.5gb) or id."""
    short = profile_name.removeprefix("MIG ").strip()
    return next(((n, p) for n, p in gpu["mig"]["profiles"].items() if short in (n, str(p["id"]))), None)


def _create(gpus: list[Gpu], profile_names: list[str], *, compute: bool) -> int:
    for gpu in gpus:
        for name in profile_names:
            profile = _by_name(gpu, name)
            if profile is None:
                print(f"Failed to parse GPU instance profile '{name}' for GPU {gpu['index']:>2}: Not Found")
                return 3
            have = state.read(INSTANCES, {}).get(gpu["uuid"], [])
            free, takes = smi_mig_text.free(gpu), profile[1]["slices"]
            if free[0] < takes[0] or free[1] < takes[1]:
                print(
                    f"Unable to create a GPU instance on GPU {gpu['index']:>2} using profile {profile[1]['id']}: "
                    "Insufficient Resources\nFailed to create GPU instances: Insufficient Resources"
                )
                return 4
            start = FIRST["2g" if takes[1] == 2 else profile[0].split(".")[0]]
            number = next(i for i in range(start, 64) if i not in {item["id"] for item in have})
            item = {"id": number, "profile": profile[0], "compute": compute}
            _put(gpu, [*have, item])
            print(
                f"Successfully created GPU instance ID {number:>2} on GPU {gpu['index']:>2} using profile "
                f"MIG {profile[0]} (ID {profile[1]['id']:>2})"
            )
            if compute:
                print(
                    f"Successfully created compute instance ID  0 on GPU {gpu['index']:>2} GPU instance ID {number:>2} "
                    f"using profile MIG {profile[0]} (ID {profile[1]['slices'][0] - 1:>2})"
                )
    return 0


def _destroy_compute(gpus: list[Gpu]) -> int:
    has_instance = False
    for gpu in gpus:
        for item in state.read(INSTANCES, {}).get(gpu["uuid"], []):
            if not item["compute"]:
                continue
            has_instance = True
            if processes(gpu):
                print(f"Unable to destroy compute instance ID  0 from GPU {gpu['index']:>2}: In use by another client")
                print("Failed to destroy compute instances: In use by another client")
                return 19
            print(
                f"Successfully destroyed compute instance ID  0 from GPU {gpu['index']:>2} "
                f"GPU instance ID {item['id']:>2}"
            )
        _put(gpu, [{**item, "compute": False} for item in state.read(INSTANCES, {}).get(gpu["uuid"], [])])
    if not has_instance:
        print("No compute instances found: Not Found")
        return 6
    return 0


def _destroy(gpus: list[Gpu]) -> int:
    has_instance = False
    for gpu in gpus:
        for item in state.read(INSTANCES, {}).get(gpu["uuid"], []):
            has_instance = True
            if item["compute"]:
                busy = "In use by another client"
                print(f"Unable to destroy GPU instance ID {item['id']:>2} from GPU {gpu['index']:>2}: {busy}")
                print(f"Failed to destroy GPU instances: {busy}")
                return 19
            print(f"Successfully destroyed GPU instance ID {item['id']:>2} from GPU {gpu['index']:>2}")
        _forget(gpu)
    if not has_instance:
        print("No GPU instances found: Not Found")
        return 6
    return 0


def attached(gpu: Gpu) -> list[dict[str, Any]]:
    import uuid  # only here: it costs every nvidia-smi 3 ms

    """MIG devices of a GPU as -L and -q list them: instances with a compute instance, numbered from 0."""
    instances = [item for item in state.read(INSTANCES, {}).get(gpu["uuid"], []) if item["compute"]]
    return [
        {
            **gpu["mig"]["profiles"][item["profile"]],
            "index": number,
            "instance": item["id"],
            "profile": item["profile"],
            "uuid": "MIG-" + str(uuid.uuid5(uuid.UUID(gpu["uuid"][4:]), str(item["id"]))),
        }
        for number, item in enumerate(instances)
    ]


USED = "used_gpu_memory [MiB]"
APP_FIELDS = {"name": "process_name", "used_memory": USED, "used_gpu_memory": USED}
APP_FIELDS |= {name: name for name in ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid")}
APP_FIELDS |= {"process_name": "process_name"}
"""Names that --query-compute-apps takes, and their columns."""


def compute_apps(driver: Driver, field_list: str, form: str) -> tuple[int, str]:
    """--query-compute-apps=… --format=csv[,noheader]: exit status, and a row for each compute process."""
    names = [name.strip() for name in field_list.split(",")]
    if wrong := next((name for name in names if name not in APP_FIELDS), None):
        return 2, f'Field "{wrong}" is not a valid field to query.\n\n'
    columns = [APP_FIELDS[name] for name in names]
    rows = [] if "noheader" in form else [", ".join(columns)]
    for gpu in driver.gpus:
        for process in processes(gpu):
            cells = {"pid": process["pid"], "process_name": process["name"], "gpu_uuid": gpu["uuid"],
                     "gpu_bus_id": gpu["pci"], "gpu_name": gpu["name"], "gpu_serial": gpu["serial"]}  # fmt: skip
            rows.append(", ".join(str(cells.get(column, "[N/A]")) for column in columns))
    return 0, "".join(f"{row}\n" for row in rows)
