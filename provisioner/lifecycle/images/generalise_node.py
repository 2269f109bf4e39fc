"""Runs on a builder as root, by standard input: takes away what belongs to this one machine, then looks for secrets.

Argument: the identity that the image gets, as JSON for /etc/gpuprov/image.json. Prints one JSON object: {"removed":
[what was taken away], "secrets": ["path:line: what it looks like"], "unread": [paths]}. Standard library only, Python
3.9 or newer.
"""

from __future__ import annotations

import contextlib
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
    ".netrc", ".ssh/known_hosts", ".ssh/known_hosts.old",
)  # fmt: skip
STOPPED = (
    "walinuxagent.service", "waagent.service", "amazon-ssm-agent.service",
    "snap.amazon-ssm-agent.amazon-ssm-agent.service", "fwupd-refresh.timer", "fwupd-refresh.service",
    "fwupd.service",
)  # fmt: skip
"""What makes a key of its own when it starts, and would make it again before the machine is off."""
REMOVED = (
    ("host keys of ssh", "/etc/ssh/ssh_host_*"),
    ("cloud-init's record of this machine", "/var/lib/cloud/*"),
    ("network configuration of this machine", "/etc/netplan/50-cloud-init.yaml"),
    ("network configuration of this machine", "/etc/udev/rules.d/70-persistent-net.rules"),
    ("leases", "/var/lib/dhcp/*"),
    ("leases", "/var/lib/NetworkManager/*.lease"),
    ("rights that cloud-init gave", "/etc/sudoers.d/90-cloud-init-users"),
    ("record of what gpuprov found there", "/var/lib/gpuprov/before"),
    ("seed of random numbers", "/var/lib/systemd/random-seed"),
    ("key of systemd's credentials", "/var/lib/systemd/credential.secret"),
    ("machine-id", "/var/lib/dbus/machine-id"),
    # once it is enrolled anywhere it signs for every machine of the image; DKMS makes another when it needs one. Its
    # certificate stays: by that a machine with Secure Boot is told to take the modules that are here
    ("key that DKMS signs modules with", "/var/lib/dkms/mok.key"),
    ("key that DKMS signs modules with", "/var/lib/shim-signed/mok/MOK.priv"),
    # TransportPrivate.pem, which the agent makes for extensions (Azure/WALinuxAgent, protocol/wire.py), ovf-env.xml,
    # *.prv of certificates: what `waagent -deprovision` removes (azurelinuxagent/pa/deprovision/default.py)
    ("keys and record of Azure's agent", "/var/lib/waagent/*"),
    # registration and key of this instance; the agent registers anew (aws/amazon-ssm-agent, agent/managedInstances)
    ("registration of AWS Systems Manager", "/var/lib/amazon/ssm/*"),
    # made at fwupd's first start (fwupd/fwupd, jcat's engine for self-signed reports)
    ("key of fwupd", "/var/lib/fwupd/pki/*"),
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
NOT_SCANNED = (
    "/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/snap", "/usr",
    "/lost+found", "/etc/ssl/certs", "/etc/alternatives", "/etc/gpuprov-sandbox", "/opt/gpuprov-sandbox",
    "/var/lib/dpkg", "/var/lib/apt", "/var/lib/dkms", "/var/lib/docker/overlay2", "/var/lib/docker/image",
    "/var/lib/containerd", "/var/cache/apt", "/var/cache/man", "/var/cache/gpuprov-compiled", "/var/log/journal",
)  # fmt: skip
"""Packages' own files, which test keys are among, and layers of container images, which are known by their digests."""
ALSO_SCANNED = ("/usr/local",)
MOST = 20
"""Places in one file that are worth telling."""
PIECE, OVERLAP = 1 << 20, 4096
"""Bytes that are looked through at a time, and those that two pieces share."""
SECRETS = (
    (
        "a private key", (b"private key", b"putty-user-key-file"),
        re.compile(
            rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[\s\\nr]*"
            rb"(?:[A-Za-z-]+: [^\n]*\n\s*){0,9}[0-9A-Za-z+/]{40}"
            rb"|PuTTY-User-Key-File-[23]:"
        ),
    ),
    ("an age key", (b"age-secret-key-1",), re.compile(rb"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}")),
    (
        "a WireGuard key", (b"privatekey", b"presharedkey"),
        re.compile(rb"(?m)^[ \t]*(?:PrivateKey|PresharedKey)\s*=\s*[0-9A-Za-z+/]{43}="),
    ),
    (
        "an access key of AWS", (b"akia", b"asia", b"secretaccess", b"secret_access"),
        re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|(?i:secret_?access_?key)[\x22\x27 ]*[=:]\s*[0-9A-Za-z/+]{40}"),
    ),
    ("an access key of Alibaba Cloud", (b"ltai",), re.compile(rb"\bLTAI[0-9A-Za-z]{12,26}\b")),
    ("a secret id of Tencent Cloud", (b"akid",), re.compile(rb"\bAKID[0-9A-Za-z]{13,40}\b")),
    (
        "a key of Azure", (b"accountkey=", b"sig="),
        re.compile(rb"AccountKey=[0-9A-Za-z+/]{86}==|[?&]sig=[0-9A-Za-z%+/]{40,}"),
    ),
    (
        "a key of Google", (b"aiza", b"gocspx-", b"1//0"),
        re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b|\bGOCSPX-[0-9A-Za-z_-]{20,}|\b1//0[0-9A-Za-z_-]{30,}"),
    ),
    (
        "a token of GitHub", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        re.compile(rb"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{82})\b"),
    ),
    ("a token of GitLab", (b"glpat-",), re.compile(rb"\bglpat-[0-9A-Za-z_-]{20}")),
    ("a token of Hugging Face", (b"hf_",), re.compile(rb"\bhf_[0-9A-Za-z]{30,40}\b")),
    (
        "a key of NVIDIA NGC", (b"nvapi-", b"ngc"),
        re.compile(rb"\bnvapi-[0-9A-Za-z_-]{60,70}|(?i:ngc[_ ]?(?:cli_)?api_?key)[\"' ]*[=:]\s*[\"']?[0-9A-Za-z]{20,}"),
    ),
    (
        "a token of Slack", (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxo-", b"xoxs-", b"xoxr-", b"hooks.slack.com"),
        re.compile(rb"\bxox[abposr]-[0-9A-Za-z-]{10,}|hooks\.slack\.com/services/T[0-9A-Z]+/"),
    ),
    ("a key of OpenAI or Anthropic", (b"sk-",), re.compile(rb"\bsk-(?:proj-|ant-)?[0-9A-Za-z_-]{32,}")),
    ("a key of Weights & Biases", (b"wandb_api_key",), re.compile(rb"WANDB_API_KEY\s*[=:]\s*[\"']?[0-9A-Za-z]{20,}")),
    (
        "a login at a registry", (b'"auth"', b'token"'),
        re.compile(rb'"(?:auth|identitytoken|registrytoken)"\s*:\s*"[0-9A-Za-z+/=._-]{8,}"'),
    ),
    (
        "a login of Kubernetes", (b"client-key-data:", b"token:"),
        re.compile(rb"(?m)^[ \t]*client-key-data:\s*[0-9A-Za-z+/]{40,}|^[ \t]*token:\s*[0-9A-Za-z._-]{40,}"),
    ),
    (
        "a password of netrc or apt", (b"password",),
        re.compile(rb"\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S+"),
    ),
    (
        "a password in an address", (b"://",),
        re.compile(rb"(?i:\b[a-z][a-z0-9+.-]{1,20})://[^\s/:@\"'<>]{0,80}:[^\s/@\"'<>]{3,200}@[0-9A-Za-z\[]"),
    ),
)  # fmt: skip
"""What it is; bytes of which a place with it has one, in lower case, because a search for them is eight times as fast;
how it looks."""


def take_away(kind: str, pattern: str, removed: list[str]) -> None:
    """Remove everything that the pattern names."""
    count = 0
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
        count += 1
    if count:
        removed.append(f"{kind}: {pattern}")


def homes() -> list[str]:
    return [path for pattern in HOMES for path in glob.glob(pattern) if os.path.isdir(path)]


def of_homes(removed: list[str]) -> None:
    """What people leave in their homes."""
    for home in homes():
        for name in OF_A_HOME:
            # a folder that is a link leads to files of somebody else
            if not os.path.islink(os.path.join(home, os.path.dirname(name))):
                take_away("of a login", f"{glob.escape(home)}/{name}", removed)


def of_this_machine(removed: list[str]) -> None:
    """Keys, records and identities."""
    for unit in STOPPED:  # most machines have none of them; a key that comes back all the same is found by the scan
        subprocess.run(["systemctl", "stop", unit], check=False, capture_output=True, timeout=120)
    for kind, pattern in REMOVED:
        take_away(kind, pattern, removed)


def generalise() -> list[str]:
    """Take everything away; a line for each kind that was there."""
    removed: list[str] = []
    if shutil.which("cloud-init"):
        subprocess.run(["cloud-init", "clean", "--logs"], check=True, capture_output=True, timeout=120)
    subprocess.run(["apt-get", "clean"], check=False, capture_output=True, timeout=120)
    of_this_machine(removed)
    of_homes(removed)
    for folder, _, names in os.walk("/var/log"):
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):  # a log that is gone meanwhile
                if stat.S_ISREG(os.lstat(path).st_mode) and os.path.getsize(path):
                    with open(path, "wb"):
                        pass
    removed.append("contents of logs: /var/log")
    with open("/etc/machine-id", "w", encoding="ascii"):
        removed.append("machine-id: /etc/machine-id")
    return removed


def lines_of(path: str) -> list[str]:
    """The places in a file that look like a secret, whatever kind of file it is."""
    findings: list[str] = []
    with open(path, "rb") as stream:
        overlap, line = b"", 1
        while piece := stream.read(PIECE):
            content = overlap + piece
            lower = content.lower()
            for kind, signs, pattern in SECRETS:
                for match in pattern.finditer(content) if any(sign in lower for sign in signs) else ():
                    at = line + content.count(b"\n", 0, match.start())
                    finding = f"{path}:{at}: looks like {kind}"
                    if finding not in findings:
                        findings.append(finding)
            if len(findings) > MOST:
                break
            keep = content[-OVERLAP:]
            line += content.count(b"\n") - keep.count(b"\n")
            overlap = keep
    return findings


def scan() -> tuple[list[str], list[str]]:
    """Files that look as if they held a secret, and those that could not be read."""
    findings: list[str] = []
    unread: list[str] = []
    for top in ("/", *ALSO_SCANNED):
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if os.path.join(folder, name) not in NOT_SCANNED]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        findings += lines_of(path)
                except FileNotFoundError:  # it went while others were looked through
                    continue
                except OSError:
                    unread.append(path)
    return findings, unread


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
