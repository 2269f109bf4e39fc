#!/usr/bin/python3
"""One scratch filesystem over the local NVMe disks of this machine, as RAID0; written by gpuprov.

Runs at each boot (gpuprov-scratch.service) and when gpuprov configures the node. It takes disks on which there is
nothing at all, and only when there are exactly as many as the machine type has, or, where nobody knows how many that
are, all that are empty and alike; it never formats over anything. Disks that a cloud gives back empty after a stop are
made into a new, empty filesystem; an array that lost a disk is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys

NAME = "gpuprov-scratch"
ARRAY = "/dev/md/" + NAME
LABEL = "gpuprov"
"""Label of the filesystem: xfs allows 12 characters."""
COLUMNS = "NAME,KNAME,TYPE,SIZE,RO,TRAN,MODEL,SERIAL,FSTYPE,LABEL,PTTYPE,MOUNTPOINTS"


class Refused(Exception):
    """The disks are not as they must be; the text says what is there and what to do."""


def run(*command, ok=(0,), timeout=300):
    """Exit status and standard output; raises Refused with the command's own words when it fails."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{' '.join(command)} has not ended after {timeout} s") from error
    if done.returncode not in ok:
        raise Refused(f"{' '.join(command)}: {' '.join((done.stderr or done.stdout).split()) or done.returncode}")
    return done.returncode, done.stdout


def devices():
    """All block devices with what is on them, as lsblk's tree."""
    _, out = run("lsblk", "--json", "--bytes", "--output", COLUMNS, timeout=60)
    return json.loads(out)["blockdevices"]


def is_nvme(disk):
    return disk["type"] == "disk" and (disk.get("tran") == "nvme" or disk["name"].startswith("nvme"))


def is_ours(disk):
    """A member of our array, or the one disk that has our filesystem."""
    label = disk.get("label") or ""
    if disk.get("fstype") == "linux_raid_member":
        return label.rpartition(":")[2] == NAME
    return bool(disk.get("fstype")) and label == LABEL


def places(device):
    return [mount_point for mount_point in device.get("mountpoints") or [] if mount_point]


def why_not(disk, network_models):
    """What keeps an NVMe disk from being taken, "" for an empty local one."""
    model = (disk.get("model") or "").strip()
    if any(model_text.lower() in model.lower() for model_text in network_models):
        return f"is a network disk ({model})"
    if disk.get("ro"):
        return "is read-only"
    if places(disk):
        return f"is mounted at {places(disk)[0]}"
    children = disk.get("children") or []
    if children:
        kinds = sorted({child["type"] for child in children})
        return "has partitions" if "part" in kinds else f"is part of {children[0]['name']} ({kinds[0]})"
    if disk.get("fstype") or disk.get("pttype"):
        return f"holds {disk.get('fstype') or 'a partition table'}"
    # What lsblk knows comes from udev and may be old; this reads the disk itself.
    status, out = run("blkid", "-p", "-o", "export", f"/dev/{disk['name']}", ok=(0, 2, 8), timeout=60)
    fields = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    if status != 2:
        return f"holds {fields.get('TYPE') or fields.get('PTTYPE') or 'something that blkid can not tell'}"
    return ""


def look(network_models):
    """(our disks, empty disks, name → why not) of the NVMe disks."""
    ours, empty, refused = [], [], {}
    for disk in filter(is_nvme, devices()):
        if is_ours(disk):
            ours.append(disk)
            continue
        reason = why_not(disk, network_models)
        if reason:
            refused[disk["name"]] = reason
        else:
            empty.append(disk)
    return ours, empty, refused


def filesystem_device(ours):
    """The device with the filesystem, or None while the array does not run."""
    if ours[0].get("fstype") != "linux_raid_member":
        return ours[0]
    # The array's device is a child of each member; another array than ours can't be below a member of ours.
    running = [child for child in ours[0].get("children") or [] if child["type"].startswith("raid")]
    return running[0] if running else None


def members(ours):
    """Of how many disks the array consists, as one of its members says; 1 for the one disk without an array."""
    if ours[0].get("fstype") != "linux_raid_member":
        return 1
    _, out = run("mdadm", "--examine", "--export", f"/dev/{ours[0]['name']}", timeout=60)
    fields = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    if not fields.get("MD_DEVICES", "").isdigit():
        raise Refused(f"mdadm does not say of how many disks the array on {ours[0]['name']} consists")
    return int(fields["MD_DEVICES"])


def listed(names):
    return ", ".join(names) or "none"


def number(text):
    """How many disks there must be; None for any."""
    return None if text == "any" else int(text)


def check_empty(empty, refused, options):
    """Raise Refused unless the empty disks are those of the machine type."""
    refused_text = "; ".join(f"{name} {reason}" for name, reason in refused.items()) or "none"
    details = (
        f"({listed(disk['name'] for disk in empty)}). The others: {refused_text}. Nothing was formatted. Replace the "
        "machine, or empty the disks that may be taken (wipefs --all) and run again"
    )
    if options.disks is not None and len(empty) != options.disks:
        raise Refused(
            f"this machine type has {options.disks} local NVMe disks, and {len(empty)} that are empty are there "
            f"{details}"
        )
    kinds = sorted({f"{(disk.get('model') or 'no model').strip()}, {disk['size']} bytes" for disk in empty})
    if options.disks is None and len(kinds) != 1:
        raise Refused(
            f"the empty local NVMe disks are not of one model and size: {'; '.join(kinds) or 'none'} {details}"
        )


def settle():
    """lsblk shows what udev knows, and udev needs a moment; a machine without udev has nothing to wait for."""
    try:
        run("udevadm", "settle", "--timeout=30", ok=range(256), timeout=60)
    except Refused:
        return


def make(empty, options):
    """An array over empty disks, or the one disk as it is, with an empty filesystem."""
    names = [f"/dev/{disk['name']}" for disk in empty]
    target = names[0]
    if len(names) > 1:
        target = ARRAY
        run("mdadm", "--create", target, "--level=0", f"--raid-devices={len(names)}", f"--name={NAME}",
            "--homehost=any", "--metadata=1.2", "--run", *names)  # fmt: skip
    # Neither is forced: both refuse what is not empty. Discarding terabytes is left to the disks.
    if options.filesystem == "xfs":
        run("mkfs.xfs", "-q", "-K", "-L", LABEL, target)
    else:
        run("mkfs.ext4", "-q", "-E", "nodiscard", "-m", "0", "-L", LABEL, target, timeout=1800)
    settle()
    return f"made {options.filesystem} over {listed(disk['name'] for disk in empty)}"


def mount(device, options):
    """Mount by UUID where nothing is hidden by it, and let everybody write there."""
    if os.path.ismount(options.mount):
        raise Refused(f"something else is mounted at {options.mount}: unmount it, or name another place for scratch")
    os.makedirs(options.mount, mode=0o755, exist_ok=True)
    if os.listdir(options.mount):
        raise Refused(
            f"{options.mount} holds files on the root disk, which the scratch disks would hide: move them away "
            f"({listed(sorted(os.listdir(options.mount))[:3])})"
        )
    _, uuid = run("blkid", "-p", "-s", "UUID", "-o", "value", f"/dev/{device['name']}", timeout=60)
    run("mount", "-o", options.options, f"UUID={uuid.strip()}", options.mount)


def bring(options):
    """Bring the disks to what was asked. Returns what was done, "" for nothing; raises Refused."""
    ours, empty, refused = look(options.network_model)
    done = []
    if not ours:
        check_empty(empty, refused, options)
        done.append(make(empty, options))
        ours = look(options.network_model)[0]
    disks = options.disks if options.disks is not None else members(ours)
    if len(ours) != disks:
        raise Refused(
            f"scratch consists of {disks} disks, and {len(ours)} of them are there "
            f"({listed(disk['name'] for disk in ours)}; empty: {listed(disk['name'] for disk in empty)}). A RAID0 that "
            "has lost a disk has lost its data: empty the rest (mdadm --stop, wipefs --all) and run again, or replace "
            "the machine"
        )
    device = filesystem_device(ours)
    if device is None:
        run("mdadm", "--assemble", ARRAY, *(f"/dev/{disk['name']}" for disk in ours))
        settle()
        done.append("assembled the array")
        device = filesystem_device(look(options.network_model)[0])
        if device is None:
            raise Refused(f"{ARRAY} was assembled, and lsblk does not show it")
    if not device.get("fstype"):
        raise Refused(f"{device['name']} runs and has no filesystem: making it was cut off. "
                      f"mdadm --stop /dev/{device['name']}, wipefs --all its disks, run again")  # fmt: skip
    if options.mount not in places(device):
        if places(device):
            raise Refused(
                f"scratch is mounted at {places(device)[0]}, asked for {options.mount}: unmount it, run again"
            )
        mount(device, options)
        done.append(f"mounted at {options.mount}")
        if options.mount not in places(filesystem_device(look(options.network_model)[0])):
            raise Refused(f"mount ended well, and lsblk does not show {options.mount}")
    # Everybody may write, nobody removes what is another's: as /tmp.
    if stat.S_IMODE(os.stat(options.mount).st_mode) != 0o1777:
        os.chmod(options.mount, 0o1777)
        done.append("opened it to everybody")
    return "; ".join(done)


def main(arguments=None):
    """Exit status 0: scratch is mounted; 1: it is not, standard error says why."""
    parser = argparse.ArgumentParser(prog="gpuprov-scratch", description=__doc__.splitlines()[0])
    parser.add_argument("--mount", required=True, help="where it is mounted")
    count = "how many local NVMe disks the machine type has, or any: all that are empty and alike"
    parser.add_argument("--disks", type=number, required=True, help=count)
    parser.add_argument("--filesystem", choices=("xfs", "ext4"), default="xfs")
    parser.add_argument("--options", default="noatime", help="mount options")
    parser.add_argument("--network-model", action="append", default=[], help="words of a model that is no local disk")
    options = parser.parse_args(arguments)
    try:
        done = bring(options)
    except (Refused, OSError) as refusal:
        print(f"gpuprov-scratch: {refusal}", file=sys.stderr)
        return 1
    print(f"changed: {done}" if done else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
