#!/usr/bin/python3
"""The MIG layout of this machine's GPUs: the same instances on every GPU, or none; written by gpuprov.

Runs at each boot (gpuprov-mig.service), because no GPU keeps its instances over a reboot, and when gpuprov configures the
node. Nothing is touched where the layout is as asked. A GPU that a job uses is left alone, and the job is named.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

MONITORING = ("nvidia-dcgm-exporter.service", "nvidia-dcgm.service")
"""What holds every GPU all the time and may be stopped for a moment, in the order in which it is stopped."""
CDI = "gpuprov-cdi.service"
UNIT = "/etc/systemd/system/gpuprov-mig.service"


class Refused(Exception):
    """The layout can't be had now; the text says why and what to do."""


def run(*command, ok=(0,), timeout=120):
    """Exit status and what was said; raises Refused with the command's own words when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{' '.join(command)} has not ended after {timeout} s") from error
    text = (done.stdout + done.stderr).strip()
    if ok is not None and done.returncode not in ok:
        raise Refused(f"{' '.join(command)}: {' '.join(text.split()) or done.returncode}")
    return done.returncode, text


def modes():
    """GPU index → (mode now, mode after a reset), "Enabled", "Disabled" or "[N/A]"."""
    _, text = run("nvidia-smi", "--query-gpu=index,mig.mode.current,mig.mode.pending", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    if any(len(row) != 3 or not row[0].isdigit() for row in rows):
        raise Refused(f"nvidia-smi's list of GPUs cannot be read: {text[:200]}")
    return {int(index): (current, later) for index, current, later in rows}


def layouts():
    """GPU index → profiles of its MIG devices, sorted."""
    _, text = run("nvidia-smi", "-L")
    profiles_by_gpu, current = {}, None
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        if gpu:
            current = profiles_by_gpu.setdefault(int(gpu[1]), [])
        device = re.match(r"\s+MIG (\S+)\s+Device", line)
        if device and current is not None:
            current.append(device[1])
    return {index: sorted(profiles) for index, profiles in profiles_by_gpu.items()}


def jobs():
    """Compute processes as "name (pid N)"; nvidia-smi lists those on MIG devices as well."""
    _, text = run("nvidia-smi", "--query-compute-apps=pid,name", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",", 1)] for line in text.splitlines() if line[:1].isdigit()]
    return [f"{name} (pid {pid})" for pid, name in rows]


def differing(profiles, modes_by_gpu, have):
    """Indices of the GPUs that are not as asked."""
    mode = "Enabled" if profiles else "Disabled"
    return [i for i, (current, _) in modes_by_gpu.items()
            if current not in ((mode,) if profiles else (mode, "[N/A]", "N/A")) or have.get(i, []) != profiles]  # fmt: skip


def joined(indices):
    return ",".join(map(str, indices))


def switch(indices, mode):
    """Bring GPUs into a mode; those that only a reset brings there are reset together (NVSwitch boards want that)."""
    other = [index for index, gpu_modes in modes().items() if index in indices and gpu_modes != (mode, mode)]
    if other:
        run("nvidia-smi", "-i", joined(other), "-mig", "1" if mode == "Enabled" else "0", ok=None)
    waiting = [index for index, (current, _) in modes().items() if index in indices and current != mode]
    if not waiting:
        return
    _, output = run("nvidia-smi", "--gpu-reset", "-i", joined(waiting), ok=None, timeout=300)
    remaining = [index for index, (current, _) in modes().items() if index in waiting and current != mode]
    if remaining:
        raise Refused(
            f"MIG is set to {mode} and waits for a reset of GPU {joined(remaining)}, which is refused: "
            f"{' '.join(output.split())[:300]}. End what uses the GPUs and run `gpuprov up` again, or reboot the node"
        )


def lay_out(indices, profiles):
    """Destroy what is there and create what is wanted, on GPUs in MIG mode."""
    modes_by_gpu = modes()
    for index in indices:
        if modes_by_gpu[index][0] == "Enabled":
            # 6: there is none
            run("nvidia-smi", "mig", "-i", str(index), "-dci", ok=(0, 6))
            run("nvidia-smi", "mig", "-i", str(index), "-dgi", ok=(0, 6))
    switch(indices, "Enabled" if profiles else "Disabled")
    if profiles:
        run("nvidia-smi", "mig", "-i", joined(indices), "-cgi", ",".join(profiles), "-C", timeout=300)


def paused():
    """Stop the monitoring that runs; returns what is to be started again."""
    # Exit status 3: not active; the words say which.
    running = [unit for unit in MONITORING if run("systemctl", "is-active", unit, ok=None)[1] == "active"]
    for unit in running:
        run("systemctl", "stop", unit)
    return running


def described(profiles):
    return f"{len(profiles)} x {profiles[0]}" if profiles and len(set(profiles)) == 1 else ", ".join(profiles) or "none"


def bring(options):
    """Bring the layout to what was asked. Returns what was done, "" for nothing; raises Refused."""
    profiles = [options.profile] * options.instances if options.profile != "off" else []
    modes_by_gpu = modes()
    if len(modes_by_gpu) != options.gpus:
        raise Refused(f"nvidia-smi lists {len(modes_by_gpu)} GPUs, this machine type has {options.gpus}")
    wrong = differing(profiles, modes_by_gpu, layouts())
    if not wrong:
        return ""
    busy = jobs()
    if busy:
        raise Refused(
            f"GPU {joined(wrong)} must get another MIG layout ({described(profiles)}), and jobs run: "
            f"{', '.join(busy[:4])}. End them or drain the node, then run `gpuprov up` again"
        )
    stopped = paused()
    try:
        lay_out(wrong, profiles)
    finally:
        for unit in reversed(stopped):
            run("systemctl", "start", unit, ok=None)
    have = layouts()
    still_wrong = differing(profiles, modes(), have)
    if still_wrong:
        raise Refused(
            f"asked for {described(profiles)} on every GPU, and GPU {still_wrong[0]} has "
            f"{described(have[still_wrong[0]])}"
        )
    # Containers see GPUs by a description that names MIG devices. Not waited for: at boot it starts after this.
    run("systemctl", "--no-block", "try-restart", CDI, ok=None)
    return f"{described(profiles)} on GPU {joined(wrong)}"


def forget():
    """Nothing makes a layout at boot any more. Returns what was done."""
    if not os.path.exists(UNIT):
        return ""
    run("systemctl", "--quiet", "disable", os.path.basename(UNIT), ok=None)
    os.unlink(UNIT)
    return "nothing at boot"


def main(arguments=None):
    """Exit status 0: the layout is as asked; 1: it is not, standard error says why."""
    parser = argparse.ArgumentParser(prog="gpuprov-mig", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", required=True, help="such as 1g.5gb, or off")
    parser.add_argument("--instances", type=int, required=True, help="instances of it on one GPU")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of the machine type")
    parser.add_argument("--forget", action="store_true", help="remove the unit that makes the layout at boot")
    options = parser.parse_args(arguments)
    try:
        done = bring(options)
        if options.forget:
            done = "; ".join(part for part in (done, forget()) if part)
    except (Refused, OSError) as refusal:
        print(f"gpuprov-mig: {refusal}", file=sys.stderr)
        return 1
    print(f"changed: {done}" if done else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
