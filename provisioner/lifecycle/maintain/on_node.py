"""Runs on a node as root, by standard input: looks at what maintenance it needs, or does it.

main() takes a request (work.py makes it): {"mode": "look" or "work", "private": whether apt's lists are read into a
folder of our own, "locked": [packages that stay], "keep_days": days, "images": [references and digests that stay],
"clean": bool, "packages": {name: version} (of "work"), "uptime_days": number or null}. Prints one JSON object; "error"
says why there is no answer. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import calendar
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any

APT_S, ASK_S, LOCK_S = 3600, 120, 1200
"""Seconds that apt may take, another program may, and that apt waits for another one that has its lock."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
}
NOT_KERNELS = ("linux-libc-dev", "linux-base")
"""Packages whose names begin as those of kernels do."""
INSTALLATION = re.compile(r"^Inst (\S+)(?: \[(\S+)\])? \((\S+) (.*?) ?\[[\w-]+\]\)", re.M)
"""A line of `apt-get --simulate`: package, installed version, new version, origins of the new version."""
GONE = re.compile(r"Version '[^']*' for '([^']+)' was not found")
ARCHIVES = "/var/cache/apt/archives/*.deb"
JOURNALS = ("/var/log/journal/*/*@*.journal", "/var/log/journal/*/*@*.journal~", "/var/log/journal/*/*.journal~")
"""Journals that are closed: journald writes to the others."""
DUMPS = ("/var/lib/systemd/coredump/*", "/var/crash/*")
MODULES = ("nvidia", "amdgpu")
REPLACED_LIBC = re.compile(r"/libc(-2\.\d+)?\.so(\.6)? \(deleted\)$")
DAY_S = 86400


class NoAnswer(Exception):
    """What can't be told or done, with the reason."""


def call(*argv: str, seconds: float = ASK_S, check: bool = True) -> str:
    """What a command prints. Raises NoAnswer where it fails or does not end."""
    try:
        done = subprocess.run(
            argv, check=False, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise NoAnswer(f"{argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{' '.join(argv[:2])} did not end within {seconds:.0f} s") from None
    if check and done.returncode:
        lines = (done.stderr + done.stdout).decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if line.startswith(("E:", "dpkg: error"))] or lines[-1:]
        verb = next((term for term in argv[1:] if not term.startswith("-") and "=" not in term), "")
        raise NoAnswer(f"{argv[0]} {verb}: " + ("; ".join(errors)[:500] or f"status {done.returncode}"))
    return (done.stdout + (b"" if check else done.stderr)).decode("utf-8", "replace")


def distribution() -> tuple[str, str]:
    """ID and codename of the distribution."""
    values = {}
    with open("/etc/os-release", encoding="utf-8") as stream:
        for line in stream:
            key, _, value = line.strip().partition("=")
            values[key] = value.strip("\"'")
    return values.get("ID", ""), values.get("VERSION_CODENAME", "")


class Apt:
    """apt that takes the distribution's security updates alone: those of other origins, also newer ones, have a lower
    priority than what is installed. A person's own preferences for a package still count."""

    def __init__(self, folder: str, private: bool) -> None:
        identity, codename = distribution()
        if identity == "ubuntu":
            self.suite, pin = codename + "-security", f"o=Ubuntu,a={codename}-security"
            self.origin = re.compile(rf"(?:^|, )Ubuntu:(?:[^/,]*/)?{re.escape(codename)}-security(?:,|$)")
        elif identity == "debian":
            self.suite, pin = codename + "-security", "o=Debian,l=Debian-Security"
            self.origin = re.compile(r"(?:^|, )Debian-Security:")
        else:
            raise NoAnswer(f"no security updates are known of distribution {identity!r}")
        rules = (("a=now", 100), (pin, 500), ("a=*", 1))
        text = "".join(f"Package: *\nPin: release {row[0]}\nPin-Priority: {row[1]}\n\n" for row in rules)
        with contextlib.suppress(OSError), open("/etc/apt/preferences", encoding="utf-8") as stream:
            text += stream.read()
        preferences = os.path.join(folder, "preferences")
        with open(preferences, "w", encoding="utf-8") as stream:
            stream.write(text)
        self.options = ["-o", "Dir::Etc::Preferences=" + preferences, "-o", f"DPkg::Lock::Timeout={LOCK_S}"]
        if private:
            lists = os.path.join(folder, "lists")
            os.makedirs(os.path.join(lists, "partial"))
            self.options += ["-o", "Dir::State::Lists=" + lists, "-o", "Dir::Cache::pkgcache=", "-o",
                             "Dir::Cache::srcpkgcache="]  # fmt: skip
        self.pin = pin

    def update(self) -> None:
        """Read the repositories' lists. Raises NoAnswer where one can't be had, or none has security updates."""
        call("apt-get", *self.options, "-o", "APT::Update::Error-Mode=any", "-q", "update", seconds=APT_S)
        policy = call("apt-cache", *self.options, "policy")
        desired = dict(part.split("=") for part in self.pin.split(","))
        for line in policy.splitlines():
            if line.strip().startswith("release "):
                row = dict(part.partition("=")[::2] for part in line.strip()[8:].split(","))
                if all(row.get(key) == value for key, value in desired.items()):
                    return
        raise NoAnswer(f"its apt has no source for {self.suite}")

    def updates(self, *options: str) -> dict[str, str]:
        """Package → version, of the security updates that apt would install."""
        output = call("apt-get", *self.options, *options, "--simulate", "--with-new-pkgs", "upgrade", seconds=APT_S)
        return {
            name: new for name, old, new, origins in INSTALLATION.findall(output) if old and self.origin.search(origins)
        }

    def install(self, packages: dict[str, str]) -> list[str]:
        """Install exactly these versions; gives the packages whose version the archive has no longer. Raises NoAnswer
        where apt fails: what is installed then has to be looked at."""
        configure_unpacked()
        missing: list[str] = []
        argv = ["apt-get", *self.options, "-q", "-y", "--only-upgrade", "--no-remove",
                "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]  # fmt: skip
        while packages:
            versions = [f"{name}={version}" for name, version in sorted(packages.items())]
            output = call(*argv, "--simulate", "install", *versions, seconds=APT_S, check=False)
            absent = [name for name in GONE.findall(output) if name in packages]
            if not absent:
                break
            missing += absent
            packages = {name: version for name, version in packages.items() if name not in absent}
        if packages:
            automatic = set(call("apt-mark", "showauto", *packages).split())
            call(*argv, "install", *versions, seconds=APT_S)
            if automatic:
                call("apt-mark", "auto", *sorted(automatic))
        return missing


def configure_unpacked() -> None:
    """End what an interrupted installation has begun; waits while another program installs."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            call("dpkg", "--configure", "-a", seconds=APT_S)
            return
        except NoAnswer as error:
            if "lock" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(1)


def versions_of(names: list[str]) -> dict[str, str]:
    """Package → installed version, of those that are installed."""
    if not names:
        return {}
    form = "${binary:Package}\t${db:Status-Status}\t${Version}\n"
    rows = [line.split("\t") for line in call("dpkg-query", "-W", "-f", form, *names, check=False).splitlines()]
    versions = {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}
    native = call("dpkg", "--print-architecture").strip()
    plain = {name: version for full, version in versions.items() for name in (full, full.replace(":" + native, ""))}
    return {name: plain[name] for name in names if name in plain}


def older(names: dict[str, str]) -> dict[str, str]:
    """Those that are installed in an older version."""
    present = versions_of(sorted(names))

    def precedes(name: str) -> bool:
        argv = ["dpkg", "--compare-versions", present[name], "lt", names[name]]
        return not subprocess.run(argv, check=False, env=ENVIRONMENT, timeout=ASK_S).returncode

    return {name: names[name] for name in present if precedes(name)}


def is_kernel(name: str) -> bool:
    return name.startswith("linux-") and name.split(":", maxsplit=1)[0] not in NOT_KERNELS


def choose(apt: Apt, locked: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The updates to take (package → version), and those that wait (package → why)."""
    every, free = apt.updates("--ignore-hold"), apt.updates()
    waiting = {}
    for name in sorted({**every, **free}):
        if is_kernel(name):
            waiting[name] = "a kernel: not taken yet"
        elif name.split(":")[0] in locked:
            waiting[name] = "in the lock"
        elif name not in free:
            waiting[name] = "on hold"
    return {name: version for name, version in free.items() if name not in waiting}, waiting


def size_of(paths: list[str]) -> int:
    """Bytes on the disk."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_blocks * 512
    return total


def files_of(patterns: tuple[str, ...], days: float) -> list[str]:
    """Files that were last written so many days ago or earlier."""
    limit = time.time() - days * DAY_S
    paths = []
    for path in (path for pattern in patterns for path in glob.glob(pattern)):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if os.path.isfile(path) and not os.path.islink(path) and status.st_mtime <= limit:
                paths.append(path)
    return paths


def removable(keep_days: float) -> dict[str, list[str]]:
    """What → files that may go."""
    return {
        "apt cache": files_of((ARCHIVES,), 0),
        "journal": files_of(JOURNALS, keep_days),
        "core dumps": files_of(DUMPS, keep_days),
    }


def docker(*arguments: str) -> list[str]:
    return call("docker", *arguments, seconds=600).splitlines()


def stopped_containers(keep_days: float) -> list[str]:
    """Containers that ended so many days ago or earlier."""
    stopped = []
    ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", "status=exited", "--filter", "status=dead")
    for row in json.loads("\n".join(docker("container", "inspect", *ids))) if ids else []:
        # 2026-11-27T22:00:00.123456789Z
        ended = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", row["State"]["FinishedAt"])
        if ended:
            seconds = time.time() - calendar.timegm(time.strptime(ended.group(1), "%Y-%m-%dT%H:%M:%S"))
            if seconds >= keep_days * DAY_S:
                stopped.append(row["Id"])
    return stopped


def unused_images(keep: list[str], without: list[str]) -> dict[str, int]:
    """Image → bytes, of those that no lock names and no container has. `without`: containers that do not count."""
    ids = sorted(set(docker("image", "ls", "--quiet", "--no-trunc")))
    if not ids:
        return {}
    containers = [id for id in docker("ps", "--all", "--quiet", "--no-trunc") if id not in without]
    inspected = json.loads("\n".join(docker("container", "inspect", *containers))) if containers else []
    used, retained = {row["Image"] for row in inspected}, set(keep)
    unused = {}
    for row in json.loads("\n".join(docker("image", "inspect", *ids))):
        digests = row.get("RepoDigests") or []
        names = {*(row.get("RepoTags") or []), *digests, *(digest.partition("@")[2] for digest in digests), row["Id"]}
        if row["Id"] not in used and not names & retained:
            unused[row["Id"]] = row["Size"]
    return unused


def has_docker() -> bool:
    return shutil.which("docker", path=ENVIRONMENT["PATH"]) is not None and os.path.exists("/var/run/docker.sock")


def free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def sizes(request: dict[str, Any]) -> dict[str, int]:
    """What → bytes that its removal would free. Images share layers: theirs is the most that it can be."""
    result = {category: size_of(paths) for category, paths in removable(request["keep_days"]).items()}
    if has_docker():
        stopped = stopped_containers(request["keep_days"])
        result["containers and images"] = sum(unused_images(request["images"], stopped).values())
    return result


def clean(request: dict[str, Any]) -> dict[str, int]:
    """Remove what may go: what → bytes freed."""
    freed = {}
    for category, paths in removable(request["keep_days"]).items():
        size_before = size_of(paths)
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        freed[category] = size_before - size_of(paths)
    if has_docker():
        root = docker("info", "--format", "{{.DockerRootDir}}")[0]
        free_before = free_bytes(root)
        stopped = stopped_containers(request["keep_days"])
        if stopped:
            docker("container", "rm", *stopped)
        unused = list(unused_images(request["images"], []))
        if unused:
            docker("image", "rm", "--force", *unused)
        freed["containers and images"] = max(0, free_bytes(root) - free_before) if stopped or unused else 0
    return freed


def uptime_s() -> float:
    """Seconds since systemd started: as the kernel's, and right in a container, too."""
    text = call("systemctl", "show", "--property=UserspaceTimestampMonotonic", "--value").strip()
    return time.clock_gettime(time.CLOCK_MONOTONIC) - int(text or 0) / 1e6


def new_kernel(running: str) -> str:
    """The newest kernel in /boot, if it was installed since the last boot; else empty. One that was there before did
    not boot then, so it does not boot next: a person has chosen another one."""
    names = [os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob("/boot/vmlinuz-*")]

    def key(name: str) -> list[Any]:
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|[a-z]+", name)]

    newest = max(names, key=key) if names else running
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return newest if newest != running and os.stat("/boot/vmlinuz-" + newest).st_ctime > booted else ""


def old_libraries() -> int:
    """Processes that run with a libc that was replaced since they started."""
    count = 0
    for path in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            count += any(REPLACED_LIBC.search(line) for line in stream)
    return count


def reboot(request: dict[str, Any]) -> dict[str, Any]:
    """{"reasons": why a reboot is due, "blocked": why the node must not reboot now}."""
    reasons, blocked = [], ""
    if os.path.exists("/run/reboot-required"):
        packages = ""
        with contextlib.suppress(OSError), open("/run/reboot-required.pkgs", encoding="utf-8") as stream:
            packages = ", ".join(sorted(set(stream.read().split()))[:5])
        reasons.append("/run/reboot-required" + (": " + packages if packages else ""))
    running = os.uname().release
    newest = new_kernel(running)
    if newest:
        reasons.append(f"kernel {newest} is installed, {running} runs")
        with open("/proc/modules", encoding="utf-8") as stream:
            loaded = {line.split()[0] for line in stream}
        for module in MODULES:
            if module in loaded:
                try:
                    call("modinfo", "-k", newest, "-n", module)
                except NoAnswer:
                    blocked = f"kernel {newest} would boot, and module {module} is not built for it"
    processes = old_libraries()
    if processes:
        reasons.append(f"processes that use a replaced libc: {processes}")
    if request["uptime_days"] is not None:
        days = uptime_s() / DAY_S
        if days >= request["uptime_days"]:
            reasons.append(f"up for {days:.0f} days")
    return {"reasons": reasons, "blocked": blocked}


def look(request: dict[str, Any], apt: Apt | None) -> dict[str, Any]:
    """What the node needs; changes nothing but apt's lists."""
    packages: dict[str, str] = {}
    waiting: dict[str, str] = {}
    if apt:
        apt.update()
        packages, waiting = choose(apt, request["locked"])
    freeable = sizes(request) if request["clean"] else {}
    return {"packages": packages, "waiting": waiting, "freeable": freeable, "reboot": reboot(request)}


def work(request: dict[str, Any], apt: Apt | None) -> dict[str, Any]:
    """Install, then clean: what is downloaded is removed, too."""
    updates, missing = older(request["packages"]), []
    earlier = versions_of(sorted(updates))
    if apt and updates:
        apt.update()
        missing = apt.install(updates)
    after = versions_of(sorted(request["packages"]))
    return {
        "installed": {name: after[name] for name in earlier if after.get(name) != earlier[name]},
        "present": after,
        "missing": missing,
        "freed": clean(request) if request["clean"] else {},
        "reboot": reboot(request),
    }


def main(request: dict[str, Any]) -> None:
    os.umask(0o022)
    folder = tempfile.mkdtemp(prefix="gpuprov-maintain-", dir="/run")
    os.chmod(folder, 0o755)  # noqa: S103 - apt's own user reads and writes lists below it
    try:
        apt = Apt(folder, request["private"]) if request["security"] else None
        answer = {"look": look, "work": work}[request["mode"]](request, apt)
    except (NoAnswer, OSError, ValueError, subprocess.SubprocessError) as error:
        answer = {"error": str(error)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("gpuprov:" + json.dumps(answer))
