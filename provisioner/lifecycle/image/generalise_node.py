"""Runs on a builder as root, by standard input: takes away what belongs to this one machine, then looks for secrets.

Argument: the identity that the image gets, as JSON for /etc/gpuprov/image.json. Prints one JSON object: {"removed":
[what was taken away], "secrets": ["path:line: what it looks like"], "unread": [paths]}. Standard library only, Python
3.9 or newer.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys

HOMES = ("/root", "/home/*")
OF_A_HOME = (
    ".bash_history", ".zsh_history", ".python_history", ".lesshst", ".viminfo", ".wget-hsts",
    ".sudo_as_admin_successful", ".cache", ".ansible", ".ssh/authorized_keys", ".ssh/authorized_keys2",
    ".ssh/known_hosts", ".ssh/known_hosts.old",
)  # fmt: skip
REMOVED = (
    ("host keys of ssh", "/etc/ssh/ssh_host_*"),
    ("cloud-init's record of this machine", "/var/lib/cloud/*"),
    ("network configuration of this machine", "/etc/netplan/50-cloud-init.yaml"),
    ("network configuration of this machine", "/etc/udev/rules.d/70-persistent-net.rules"),
    ("leases", "/var/lib/dhcp/*"),
    ("leases", "/var/lib/NetworkManager/*.lease"),
    ("rights that cloud-init gave", "/etc/sudoers.d/90-cloud-init-users"),
    ("seed of random numbers", "/var/lib/systemd/random-seed"),
    ("key of systemd's credentials", "/var/lib/systemd/credential.secret"),
    ("machine-id", "/var/lib/dbus/machine-id"),
    ("lists of packages", "/var/lib/apt/lists/*"),
    ("downloaded packages", "/var/cache/apt/archives/*.deb"),
    ("caches of apt", "/var/cache/apt/*.bin"),
    ("journal", "/var/log/journal/*"),
    ("old logs", "/var/log/*.gz"),
    ("old logs", "/var/log/*.[0-9]"),
    ("temporary files", "/tmp/*"),
    ("temporary files", "/tmp/.[!.]*"),
    ("temporary files", "/var/tmp/*"),
    ("crash dumps", "/var/crash/*"),
)
KEPT = re.compile(r"^/tmp/\.(X11|ICE|XIM|font|Test)-unix$|^/(var/)?tmp/systemd-private-")
SCANNED = ("/root", "/home", "/etc", "/opt", "/srv", "/var/lib", "/usr/local")
LEFT_OUT = re.compile(
    r"^/var/lib/(docker|containerd|dpkg|apt|dkms|systemd/catalog)(/|$)|^/etc/(ssl/certs|alternatives)(/|$)"
)
MOST = 1 << 20
"""Bytes of a file that is looked through."""
SECRETS = (
    ("a private key", re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")),
    ("an access key of AWS", re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("an access key of Alibaba Cloud", re.compile(rb"\bLTAI[0-9A-Za-z]{12,26}\b")),
    ("a secret id of Tencent Cloud", re.compile(rb"\bAKID[0-9A-Za-z]{13,40}\b")),
    ("a storage key of Azure", re.compile(rb"AccountKey=[0-9A-Za-z+/]{86}==")),
    ("a key of Google", re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("a token of GitHub", re.compile(rb"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{82})\b")),
    ("a token of GitLab", re.compile(rb"\bglpat-[0-9A-Za-z_-]{20}\b")),
    ("a token of Hugging Face", re.compile(rb"\bhf_[A-Za-z]{34}\b")),
    ("a key of NVIDIA NGC", re.compile(rb"\bnvapi-[0-9A-Za-z_-]{60,70}\b")),
    ("a token of Slack", re.compile(rb"\bxox[abposr]-[0-9A-Za-z-]{10,}\b")),
    ("a login at a registry", re.compile(rb'"auth"\s*:\s*"[0-9A-Za-z+/=]{8,}"')),
    ("a password in an address", re.compile(rb"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>${}]+:[^\s/@\"'<>${}*]{3,}@")),
)


def take_away(what: str, pattern: str, removed: list[str]) -> None:
    """Remove everything that the pattern names."""
    gone = 0
    for path in glob.glob(pattern):
        if KEPT.match(path):
            continue
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            continue
        gone += 1
    if gone:
        removed.append(f"{what}: {pattern}")


def homes() -> list[str]:
    return [path for pattern in HOMES for path in glob.glob(pattern) if os.path.isdir(path)]


def generalise() -> list[str]:
    """Take everything away; a line for each kind that was there."""
    removed: list[str] = []
    if shutil.which("cloud-init"):
        subprocess.run(["cloud-init", "clean", "--logs"], check=True, capture_output=True, timeout=120)
    subprocess.run(["apt-get", "clean"], check=False, capture_output=True, timeout=120)
    for what, pattern in REMOVED:
        take_away(what, pattern, removed)
    for home in homes():
        for name in OF_A_HOME:
            take_away("of a login", f"{home}/{name}", removed)
    for folder, _, names in os.walk("/var/log"):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode) and os.path.getsize(path):
                with open(path, "wb"):
                    pass
    removed.append("contents of logs: /var/log")
    with open("/etc/machine-id", "w", encoding="ascii"):
        removed.append("machine-id: /etc/machine-id")
    return removed


def lines_of(path: str) -> list[str]:
    """The places in a file that look like a secret."""
    with open(path, "rb") as stream:
        content = stream.read(MOST)
    if b"\0" in content[:4096]:
        return []
    found = []
    for what, pattern in SECRETS:
        for match in pattern.finditer(content):
            found.append(f"{path}:{content.count(chr(10).encode(), 0, match.start()) + 1}: looks like {what}")
    return found


def scan() -> tuple[list[str], list[str]]:
    """Files that look as if they held a secret, and those that could not be read."""
    found: list[str] = []
    unread: list[str] = []
    for top in SCANNED:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if not LEFT_OUT.match(os.path.join(folder, name))]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        found += lines_of(path)
                except OSError:
                    unread.append(path)
    return found, unread


def identify(text: str) -> None:
    """What every machine of the image says that it was made of."""
    os.makedirs("/etc/gpuprov", mode=0o755, exist_ok=True)
    with open("/etc/gpuprov/image.json", "w", encoding="utf-8") as stream:
        stream.write(text + "\n")


def main() -> None:
    identify(sys.argv[1])
    removed = generalise()
    secrets, unread = scan()
    os.sync()
    json.dump({"removed": removed, "secrets": secrets, "unread": unread}, sys.stdout)


if __name__ == "__main__":
    main()
