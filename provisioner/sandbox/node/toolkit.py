"""The container toolkit (nvidia-ctk, the runtime hook) and nvcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from . import between, loading, nccl, state
from .smi_facts import NoAnswer, driver

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

DAEMON = "etc/docker/daemon.json"
GPUS = "etc/gpuprov-sandbox/gpus"
"""File in a container's root that says how many GPUs the runtime gave it; the simulated images read it."""


def nvidia_ctk(arguments: list[str], version: str) -> int:
    """cdi generate, cdi list, runtime configure, --version."""
    if "--version" in arguments:
        print(f"NVIDIA Container Toolkit CLI version {version}\ncommit: simulated-by-gpuprov")
        return 0
    subcommand = [a for a in arguments if not a.startswith("-")]
    options = _options(arguments)
    if subcommand[:2] == ["cdi", "generate"]:
        return _generate(options)
    if subcommand[:2] == ["cdi", "list"]:
        names = [
            name for file in ("etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.yaml") for name in _listed(state.path(file))
        ]
        print(f"Found {len(names)} CDI devices")
        print("\n".join(f"nvidia.com/gpu={name}" for name in names))
        return 0
    if subcommand[:2] == ["runtime", "configure"]:
        return _configure(options)
    if subcommand[:2] == ["system", "create-dev-char-symlinks"]:
        return _links(options)
    print(f"nvidia-ctk {' '.join(subcommand)}: not simulated by gpuprov", file=sys.stderr)
    return 1


def _options(arguments: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for i, item in enumerate(arguments):
        if item.startswith("--"):
            name, equals, value = item[2:].partition("=")
            following = arguments[i + 1] if i + 1 < len(arguments) else ""
            options[name] = value if equals else ("" if following.startswith("-") else following)
    return options


def _generate(options: dict[str, str]) -> int:
    try:
        gpus = driver().gpus
    except NoAnswer as error:
        print(
            f'level=error msg="failed to generate CDI spec: failed to initialize NVML: {str(error).splitlines()[0]}"',
            file=sys.stderr,
        )
        return 1
    names = [str(gpu["index"]) for gpu in gpus] + [gpu["uuid"] for gpu in gpus]
    names += [f"{gpu['index']}:{device['index']}" for gpu in gpus for device in gpu["mig_devices"]] + ["all"]
    text = "---\n# simulated by gpuprov\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
    text += "".join(f'- name: "{name}"\n  containerEdits:\n    env: [GPUPROV_SIMULATED=1]\n' for name in names)
    if options.get("output"):
        target = state.path(options["output"].lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _links(options: dict[str, str]) -> int:
    """Links from /dev/char to the devices of the GPUs; systemd needs them to know which devices a scope may use."""
    try:
        gpus = driver().gpus
    except NoAnswer as error:
        print(f'level=error msg="failed to create symlinks: {str(error).splitlines()[0]}"', file=sys.stderr)
        return 1
    if "create-all" not in options:
        print('level=error msg="not simulated by gpuprov without --create-all"', file=sys.stderr)
        return 1
    folder = state.path("dev/char")
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in [(gpu["index"], f"nvidia{gpu['index']}") for gpu in gpus] + [(255, "nvidiactl")]:
        link = folder / f"195:{number}"
        if not link.is_symlink():
            link.symlink_to(f"../{name}")
    return 0


def daemon_reload(_arguments: list[str], _version: str) -> int:
    """Runs as a systemd generator at every daemon-reload: containers that got their GPUs from the hook lose them where
    /dev/char has no links (NVIDIA/nvidia-container-toolkit#48)."""
    if any(state.path("dev/char").glob("195:*")):
        return 0
    for entry in state.read(state.GIVEN, []):
        Path(entry).unlink(missing_ok=True)
    return 0


def _listed(file: Path) -> list[str]:
    try:
        return [
            line.split('"')[1] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith('- name: "')
        ]
    except OSError:
        return []


def _configure(options: dict[str, str]) -> int:
    if options.get("runtime", "docker") != "docker":
        print(f"runtime {options['runtime']}: not simulated by gpuprov", file=sys.stderr)
        return 1
    target = options.get("config", "/" + DAEMON).lstrip("/")
    content: dict[str, Any] = state.read(target, {})
    runtimes = {**content.get("runtimes", {}), "nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    changed = {**content, "runtimes": runtimes}
    if "nvidia-set-as-default" in options or "set-as-default" in options:
        changed["default-runtime"] = "nvidia"
    state.path(target).parent.mkdir(parents=True, exist_ok=True)
    state.path(target).write_text(json.dumps(changed, indent=4) + "\n", encoding="utf-8")
    print(
        f'level=info msg="Wrote updated config to /{target}"\n'
        'level=info msg="It is recommended that docker daemon be restarted."'
    )
    return 0


def container_cli(arguments: list[str], version: str) -> int:
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"cli-version: {version}\nlib-version: {version}\nbuild date: simulated by gpuprov")
        return 0
    try:
        loaded = driver()
    except NoAnswer as error:
        print(f"nvidia-container-cli: initialization error: nvml error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    print(f"NVRM version:   {loaded.version}\nCUDA version:   {loaded.cuda}\n")
    for gpu in loaded.gpus:
        print(
            f"Device Index:   {gpu['index']}\nModel:          {gpu['name']}\n"
            f"GPU UUID:       {gpu['uuid']}\nBus Location:   {gpu['pci']}\n"
        )
    return 0


def container_runtime(arguments: list[str], _version: str) -> int:
    """runc with the hook added to the container's configuration, as the real wrapper does."""
    if "create" in arguments:
        at = arguments.index("--bundle") if "--bundle" in arguments else -1
        bundle = Path(arguments[at + 1]) if at >= 0 else Path.cwd()
        config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
        hooks = config.setdefault("hooks", {}).setdefault("prestart", [])
        hook = "/usr/bin/nvidia-container-runtime-hook"
        if Path(hook).exists() and not any(entry.get("path") == hook for entry in hooks):
            hooks.append({"path": hook, "args": [hook, "prestart"]})
            (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
    os.execvp("runc", ["runc", *arguments])  # noqa: S606 - this process becomes runc


PYTORCH = "opt/gpuprov-sandbox/pytorch"
"""Mounted into the node (provisioner/sandbox/pytorch.py)."""


PYTORCH_MOUNTS = (
    ("/usr", "usr"),
    ("/usr/bin", "bin"),
    ("/usr/lib", "lib"),
    ("/usr/lib64", "lib64"),
    ("/etc/passwd", "etc/passwd"),
    (f"/{PYTORCH}/site", "usr/local/lib/python3.11/dist-packages"),
    (f"/{PYTORCH}/site/bin", "usr/local/bin"),
)


def _give_pytorch(root: Path, pid: int) -> None:
    """A container of `gpuprov run` gets this node's Python with PyTorch for processors, in place of its simulated
    image's: mounted in the container's own mount namespace, before it becomes its root."""
    enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"]
    for source, target in PYTORCH_MOUNTS:
        mount_point = root / target
        if not target.startswith("usr/"):  # behind the node's /usr everything exists
            mount_point.parent.mkdir(parents=True, exist_ok=True)
            if Path(source).is_dir():
                mount_point.mkdir(exist_ok=True)
            else:
                mount_point.touch()
        subprocess.run([*enter, "mount", "--bind", source, str(mount_point)], check=True)
        subprocess.run([*enter, "mount", "-o", "remount,bind,ro", str(mount_point)], check=True)


def runtime_hook(arguments: list[str], _version: str) -> int:
    """prestart: tell the container how many GPUs it was given; fail as the real one does when there is no driver."""
    if arguments[:1] != ["prestart"]:
        return 0
    container = json.load(sys.stdin)
    bundle = Path(container["bundle"])
    config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    environment = dict(item.partition("=")[::2] for item in config["process"].get("env", []))
    visible_devices = environment.get("NVIDIA_VISIBLE_DEVICES", "void")
    if visible_devices in ("", "void", "none"):
        return 0
    try:
        gpus = driver().gpus
    except NoAnswer as error:
        print(f"nvidia-container-cli: initialization error: nvml error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    gpu_count = (
        len(gpus)
        if visible_devices == "all"
        else len([g for g in gpus if {str(g["index"]), g["uuid"]} & set(visible_devices.split(","))])
    )
    root = Path(config["root"]["path"])
    target = (root if root.is_absolute() else bundle / root) / GPUS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{gpu_count}\n", encoding="utf-8")
    arguments_text = " ".join(config["process"].get("args", []))
    has_pytorch = state.path(PYTORCH + "/site").is_dir()
    if "GPUPROV_JOB" in environment and has_pytorch:
        _give_pytorch(target.parent.parent.parent, container["pid"])
    elif "GPUPROV_JOB" in environment and _is_python(arguments_text):
        message = "the sandbox has no PyTorch: `gpuprov sandbox pytorch` installs it"
        print(f"nvidia-container-cli: {message}", file=sys.stderr)
        return 1
    if "GPUPROV_JOB" not in environment and "torchrun" in arguments_text:
        (target.parent / "load").write_text(
            "\n".join(loading.lines(state.hardware(), list(gpus[:gpu_count]))) + "\n", encoding="utf-8"
        )
        loading.started()
    if any("gpuprov-together" in argument for argument in config["process"].get("args", [])):
        direct = nccl.direct(state.hardware(), environment, config.get("mounts", []))
        (target.parent / between.LINE).write_text(between.line(state.hardware(), direct) + "\n", encoding="utf-8")
    state.change(state.GIVEN, lambda known: [*[path for path in known if Path(path).exists()], str(target)], [])
    return 0


def _is_python(arguments_text: str) -> bool:
    """Whether a command would run in the simulated image's Python, which answers questions of gpuprov's alone."""
    return "torchrun" in arguments_text or "python" in arguments_text


def nvcc(arguments: list[str], version: str) -> int:
    if not arguments or arguments[0] not in ("--version", "-V"):
        print("nvcc: simulated by gpuprov, it compiles nothing", file=sys.stderr)
        return 1
    short = ".".join(version.split(".")[:2])
    print("nvcc: NVIDIA (R) Cuda compiler driver (simulated by gpuprov)")
    print(f"Cuda compilation tools, release {short}, V{version}")
    return 0
