"""Files of a bundle that take more than one command: the kernel's log, packages on hold, RDMA devices, the exporter.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import stat
import time
from typing import Any

from provisioner.verify.probe.host_network import listening
from provisioner.verify.probe.runner import COLLECTORS, KEEP, LIMIT, listed, pci_address, read_file, result, run, texts

LOOPBACK = "127.0.0.1"
UNIT = "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result"
INTERRUPTION = ("/run/gpuprov/interruption.json", "/etc/gpuprov/interrupted")

EFA_TRIES, EFA_WAIT_S = 3, 5.0
"""As github aws-samples/awsome-distributed-training waits for the devices of a p5en."""
BEFORE = ["journalctl", "-k", "-b", "-1", "-o", "short-monotonic", "--no-hostname", "--no-pager", "-q", "-n", "20000"]
"""The kernel log of the boot before, where the journal is kept (journald.conf(5), Storage=)."""
SINCE_BOOT = [argument if argument != "-1" else "0" for argument in BEFORE[:-2]]
BOOTED = "Linux version "
"""In the kernel's first line."""


def kernel_log(deadline: float, command: list[str] | None = None) -> dict[str, Any]:
    """dmesg, bounded: of a flood every line about GPUs and PCIe errors is kept, and the end. Where the kernel's ring
    has lost the boot, the journal may have it still."""
    out = run(command or ["dmesg"], deadline)
    if command is None and out["rc"] == 0 and BOOTED not in out["text"]:
        journal = run(SINCE_BOOT, max(1.0, deadline - out["seconds"] - 1))
        if journal["rc"] == 0 and BOOTED in journal["text"] and not journal["truncated"]:  # its end would be missing
            out = journal
    if len(out["text"]) > KEEP:
        phrases = (
            "NVRM",
            "SXid",
            "nvidia",
            "AER",
            "fallen off",
            "Linux version",
            "Hardware Error",
            "EDAC",
            "amdgpu",
            "mlx5",
        )
        head = [line for line in out["text"][:-KEEP].split("\n") if any(phrase in line for phrase in phrases)]
        head_text = "\n".join(head)
        out["truncated"] = out["truncated"] or len(head_text) > KEEP
        out["text"] = head_text[-KEEP:] + "\n" + out["text"][-KEEP:].partition("\n")[2]
    return out


def holds(deadline: float) -> dict[str, Any]:
    """What `apt-mark showhold` prints, from dpkg, where the hold is kept: half a second of work less."""
    out = run(["dpkg-query", "-W", "-f", "${db:Status-Want} ${binary:Package}\n"], deadline)
    names = [line[5:] for line in out["text"].splitlines() if line.startswith("hold ")]
    if out["rc"] == 0:
        out["text"] = "".join(name + "\n" for name in names)
    return out


def exporter(port: int, deadline: float) -> dict[str, Any]:
    """A real scrape, at the address where the exporter listens. rc as curl's: 7 refused, 22 not status 200, 28 too
    slow."""
    started = time.monotonic()
    try:
        connection = http.client.HTTPConnection(_address(port), port, timeout=deadline)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(LIMIT)
    except OSError as error:
        slow = isinstance(error, TimeoutError) or "timed out" in str(error)
        return result("", 28 if slow else 7, time.monotonic() - started, error=str(error))
    except http.client.HTTPException as error:
        return result("", 22, time.monotonic() - started, error=f"no HTTP answer: {error!r}")
    rc = 0 if answer.status == 200 else 22
    seconds = time.monotonic() - started
    return result(body.decode("utf-8", "replace"), rc, seconds, error="" if rc == 0 else f"HTTP {answer.status}")


def _address(port: int) -> str:
    """Where something listens on a port: loopback where that leads there, else the address itself."""
    rows = [row.split() for row in listening()]
    addresses = [address for _, address, number in rows if number == str(port)]
    reaches_loopback = {LOOPBACK, "0.0.0.0", "::"}.intersection(addresses)  # noqa: S104
    return LOOPBACK if reaches_loopback else next(iter(addresses), LOOPBACK)


def interruption(record: str, hook: str) -> dict[str, Any]:
    """What the node's watcher wrote (None: nothing), and the sha256 of its hook ("": there is none)."""
    contents: list[Any] = []
    for path in (record, hook):
        answer = read_file(path)
        if answer["missing"] and os.path.lexists(path):
            return answer
        contents.append(None if answer["missing"] else answer["text"])
    digest = "" if contents[1] is None else hashlib.sha256(contents[1].encode()).hexdigest()
    return result(json.dumps({"record": contents[0], "hook": digest}), 0)


MOST = 65536


def maintenance(deadline: float, service: dict[str, Any] | None) -> dict[str, Any]:
    """What a metadata service lists as events of this machine, as it is, and the machine's own name there."""
    if service is None:
        return result(missing=True, error="there is nobody to ask for events")
    started = time.monotonic()

    def ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        remaining_s = max(0.1, started + deadline - time.monotonic())
        connection = http.client.HTTPConnection(service["address"], timeout=remaining_s)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MOST).decode("utf-8", "replace")
        finally:
            connection.close()

    headers, name, openly = dict(service["headers"]), "", None
    try:
        if service["token"]:
            openly = ask("GET", service["path"], headers)[0]
            status, token = ask("PUT", service["token"]["path"], dict(service["token"]["ask"]))
            if status != 200:
                return result("", 22, error=f"no token: HTTP {status}")
            headers[service["token"]["header"]] = token.strip()
        if service["name"]:
            name = ask("GET", service["name"], headers)[1].strip()
        status, text = ask("GET", service["path"], headers)
    except OSError as error:
        slow = isinstance(error, TimeoutError) or "timed out" in str(error)
        return result("", None, time.monotonic() - started, timed_out=slow, error=str(error))
    except (http.client.HTTPException, ValueError) as error:
        return result("", 22, error=f"no HTTP answer: {error!r}")
    return result(
        json.dumps({"status": status, "name": name, "text": text, "without_token": openly}),
        0,
        time.monotonic() - started,
    )


def device_nodes() -> dict[str, Any]:
    """What `ls -l /dev/nvidia*` prints, without a program: type and rights, device numbers, name."""
    rows = []
    for name in sorted(os.listdir("/dev")):  # noqa: PTH208 (a plain script)
        if name.startswith("nvidia"):
            with contextlib.suppress(OSError):
                status = os.lstat("/dev/" + name)
                number = f"{os.major(status.st_rdev)}, {os.minor(status.st_rdev)}"
                owner = f"{status.st_uid} {status.st_gid}"
                rows.append(f"{stat.filemode(status.st_mode)} 1 {owner} {number} /dev/{name}\n")
    return result("".join(rows), 0, missing=not rows, error="" if rows else "there is no /dev/nvidia*")


def modules(deadline: float) -> dict[str, Any]:
    """What lsmod prints says the same; it is asked where /proc/modules is not there."""
    has_proc_file = os.path.exists("/proc/modules")  # noqa: PTH110 (a plain script)
    return read_file("/proc/modules") if has_proc_file else run(["lsmod"], deadline)


RDMA = "/sys/class/infiniband"
DEVICE_FILES = (
    "fw_ver", "hca_type", "board_id", "device/numa_node", "device/current_link_speed", "device/current_link_width",
    "device/max_link_width", "device/p2p",
)  # fmt: skip
PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")


def rdma() -> dict[str, Any]:
    """RDMA devices as the kernel shows them, file by file; a file that can't be read is left out."""
    devices: dict[str, Any] = {}
    for device in listed(RDMA):
        base = RDMA + "/" + device
        row: dict[str, Any] = texts(base, DEVICE_FILES)
        row["net"] = {
            name: texts(base + "/device/net/" + name, ["operstate"]) for name in listed(base + "/device/net")[:8]
        }
        row["pci"] = pci_address(base)
        row["ports"] = {}
        for port in listed(base + "/ports"):
            port_folder = base + "/ports/" + port
            port_row: dict[str, Any] = texts(port_folder, PORT_FILES)
            port_row["counters"] = {}
            for kind in ("counters", "hw_counters"):
                port_row["counters"].update(texts(port_folder + "/" + kind, listed(port_folder + "/" + kind)))
            port_row["pkeys"] = list(texts(port_folder + "/pkeys", listed(port_folder + "/pkeys")[:128]).values())
            port_row["gids"] = texts(port_folder + "/gids", listed(port_folder + "/gids")[:256])
            port_row["gid_types"] = texts(port_folder + "/gid_attrs/types", list(port_row["gids"]))
            row["ports"][port] = port_row
        devices[device] = row
    verbs = [texts("/sys/class/infiniband_verbs/" + name, ["ibdev"]).get("ibdev") for name in listed("/dev/infiniband")]
    drivers = {name: text for name in ("mlx5_core",) for text in texts("/sys/module/" + name, ["version"]).values()}
    return result(json.dumps({"devices": devices, "uverbs": [name for name in verbs if name], "drivers": drivers}), 0)


def pci_bus(deadline: float, folder: str = "/sys/bus/pci/devices") -> dict[str, Any]:
    """`lspci -Dnnx`; where pciutils is not installed, what `lspci -Dnx` reads, from /sys: numbers without names."""
    out = run(["lspci", "-Dnnx"], deadline)
    rows: list[str] = []
    for slot in listed(folder) if out["missing"] else []:
        device = texts(f"{folder}/{slot}", ("class", "vendor", "device", "revision"))
        if len(device) < 4:  # taken out meanwhile
            continue
        code, vendor, number, revision = (value[2:] for value in device.values())
        rows.append(f"{slot} {code[:4]}: {vendor}:{number}" + (f" (rev {revision})" if revision != "00" else ""))
        with contextlib.suppress(OSError), open(f"{folder}/{slot}/config", "rb") as stream:  # noqa: PTH123
            registers = stream.read(64)
            rows += [f"{at:02x}: {registers[at : at + 16].hex(' ')}" for at in range(0, len(registers), 16)]
        rows.append("")
    return result("\n".join(rows) + "\n", 0, out["seconds"]) if rows else out


def efa_devices(deadline: float, expected_count: int) -> dict[str, Any]:
    """fi_info, again while devices are missing: on some machines they come some seconds after the boot."""
    for turn in range(EFA_TRIES):
        out = run(["fi_info", "-p", "efa"], deadline / EFA_TRIES - EFA_WAIT_S, merge=True)
        domains = {line.split()[-1].rpartition("-")[0] for line in out["text"].splitlines() if "domain:" in line}
        if len(domains) >= expected_count or out["missing"] or out["timed_out"] or turn == EFA_TRIES - 1:
            break
        time.sleep(EFA_WAIT_S)
    return out


def units(deadline: float, names: list[str]) -> dict[str, Any]:
    return run(["systemctl", "show", UNIT, "--no-pager", "--", *names], deadline)


def diag(deadline: float, level: int) -> dict[str, Any]:
    return run(["dcgmi", "diag", "-r", str(level), "-j"], deadline)


def all_reduce(deadline: float, gpus: int) -> dict[str, Any]:
    return run(["all_reduce_perf", "-b", "1G", "-e", "8G", "-f", "2", "-g", str(gpus)], deadline, merge=True)


COLLECTORS.update(
    {
        "dmesg.txt": lambda seconds, _: kernel_log(seconds),
        "dmesg-after.txt": lambda seconds, _: kernel_log(seconds),
        "dmesg-before.txt": lambda seconds, _: kernel_log(seconds, BEFORE),
        "holds.txt": lambda seconds, _: holds(seconds),
        "modules.txt": lambda seconds, _: modules(seconds),
        "dcgm-exporter.prom": lambda seconds, request: exporter(int(request.get("port", 9400)), seconds),
        "interruption.json": lambda _, __: interruption(*INTERRUPTION),
        "maintenance.json": lambda seconds, request: maintenance(seconds, request.get("maintenance")),
        "nvidia-dev.txt": lambda _, __: device_nodes(),
        "rdma.json": lambda _, __: rdma(),
        "rdma-after.json": lambda _, __: rdma(),
        "lspci.txt": lambda seconds, _: pci_bus(seconds),
        "fi_info.txt": lambda seconds, request: efa_devices(seconds, int(request.get("efa", 0))),
        "units.txt": lambda seconds, request: units(seconds, request.get("units", [])),
        "dcgmi-diag.json": lambda seconds, request: diag(seconds, request.get("diag", 1)),
        "all_reduce.txt": lambda seconds, request: all_reduce(seconds, request.get("gpu_count", 1)),
    }
)
