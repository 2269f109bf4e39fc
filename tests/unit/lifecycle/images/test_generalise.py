"""What is looked for on a builder before its disk becomes an image."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioner.lifecycle.images import generalise_node
from provisioner.lifecycle.images.generalise_node import PIECE, lines_of, take_away

SECRETS = {
    "a private key": "-----BEGIN OPENSSH PRIVATE " + "KEY-----\n" + "b3Bl" * 16,
    "an access key of AWS": "AKIA" + "ABCDEFGHIJKLMNOP",
    "a password of netrc or apt": "machine repo.example.com login me password hunter2",
    "a login at a registry": '{"auths": {"nvcr.io": {"auth": "' + "JG9hdXRodG9rZW46" + '"}}}',
    "a password in an address": "deb HTTPS://me:p4ss$word@repo.example.com/ ./",
    "a token of Hugging Face": "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7",
    "a login of Kubernetes": "    client-key-data: " + "QUJD" * 20,
    "a WireGuard key": "PrivateKey = " + "A" * 43 + "=",
    "an age key": "AGE-SECRET-KEY-1" + "Q" * 58,
    "an access key of Alibaba Cloud": "LTAI" + "5tAbCdEfGhIjKlMn",
    "a secret id of Tencent Cloud": "AKID" + "z8krbsJ5yKBZQpn74WFkmLPx3",
    "a key of Azure": "https://x.blob.core.windows.net/y?sv=1&sig=" + "Ab1%2B" * 8,
    "a key of Google": "GOCSPX-" + "a1B2c3D4e5F6g7H8i9J0",
    "a token of GitHub": "ghs_" + "a1B2c3D4e5F6" * 3,
    "a token of GitLab": "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "a key of NVIDIA NGC": "NGC_CLI_API_KEY" + "=" + "a1B2c3D4e5" * 3,
    "a token of Slack": "xoxb-" + "1234567890-abc",
    "a key of OpenAI or Anthropic": "sk-ant-" + "a1B2c3D4" * 5,
    "a key of Weights & Biases": "export WANDB_API_KEY=" + "0123456789" * 4,
}
CLEAN = (
    "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "deb https://repo.example.com/ubuntu noble main",
    "git@github.com:me/x.git", "PrivateTmp=yes", "proxy = http://proxy:3128", "token: none", "AKIA is a prefix",
    'if line.startswith("-----BEGIN RSA PRIVATE ' + 'KEY-----"):\n    raise ValueError',
    "-----BEGIN PRIVATE " + "KEY-----\n...\n",
)  # fmt: skip
MADE_BY_AGENTS = {
    "/var/lib/waagent/TransportPrivate.pem": "Azure/WALinuxAgent#2703, #3534: openssl req -x509 -nodes -keyout",
    "/var/lib/waagent/ovf-env.xml": "Azure/WALinuxAgent azurelinuxagent/common/protocol/ovfenv.py",
    "/var/lib/waagent/ABCDEF0123456789.prv": "azurelinuxagent/common/protocol/wire.py: Certificates",
    "/var/lib/amazon/ssm/Vault/Store/RegistrationKey": "aws/amazon-ssm-agent agent/managedInstances/registration",
    "/var/lib/fwupd/pki/secret.key": "fwupd/fwupd, made at its first start",
}
"""Files that software of clouds' own images makes by itself, and where that was read."""


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("prefix", [b"", b"\0\0", b"x" * (PIECE - 9) + b"\n"], ids=["plain", "binary", "far"])
def test_a_secret_is_found_wherever_it_is_in_a_file(tmp_path: Path, kind: str, prefix: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(prefix + b"\n" + SECRETS[kind].encode())
    assert any(line.endswith(f"looks like {kind}") for line in lines_of(str(file)))


def test_there_is_an_example_of_each() -> None:
    assert sorted(SECRETS) == sorted(kind for kind, _, _ in generalise_node.SECRETS)


def test_a_file_that_goes_meanwhile_is_none_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[tuple[str, list[str], list[str]]] = [(str(tmp_path), [], ["gone", "there"])]
    (tmp_path / "there").write_text(SECRETS["a token of GitLab"])
    monkeypatch.setattr("os.walk", lambda top: walked if top == "/" else [])
    assert generalise_node.scan() == ([f"{tmp_path}/there:1: looks like a token of GitLab"], [])


def test_its_line_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("\n" * 5 + SECRETS["an access key of AWS"] + "\n" + "\n" * (2 * PIECE))
    assert lines_of(str(file)) == [f"{file}:6: looks like an access key of AWS"]


@pytest.mark.parametrize("text", CLEAN)
def test_what_is_none_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert lines_of(str(tmp_path / "file")) == []


def test_only_what_the_pattern_names_goes(tmp_path: Path) -> None:
    for name in ("ssh_host_ed25519_key", "ssh_host_rsa_key.pub", "sshd_config"):
        (tmp_path / name).write_text("x")
    removed: list[str] = []
    take_away("host keys", f"{tmp_path}/ssh_host_*", removed)
    take_away("nothing", f"{tmp_path}/none*", removed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sshd_config"]
    assert removed == [f"host keys: {tmp_path}/ssh_host_*"]


def key() -> str:
    """As Azure's agent makes one, with its certificate."""
    openssl = [
        "openssl",
        "req",
        "-x509",
        "-nodes",
        "-subj",
        "/CN=LinuxTransport",
        "-days",
        "730",
        "-newkey",
        "rsa:2048",
    ]
    done = subprocess.run([*openssl, "-keyout", "-"], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_what_agents_of_clouds_make_is_taken_away_and_does_not_fail_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MADE_BY_AGENTS:
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(key())
        assert lines_of(str(file)) == [f"{file}:1: looks like a private key"]
    stopped: list[str] = []

    def stop(argv: list[str], **_: object) -> None:
        assert (tmp_path / "var/lib/waagent/TransportPrivate.pem").exists(), "it would come back"
        stopped.append(argv[-1])

    monkeypatch.setattr(subprocess, "run", stop)
    patterns = [(kind, f"{tmp_path}{pattern}") for kind, pattern in generalise_node.REMOVED]
    monkeypatch.setattr(generalise_node, "REMOVED", patterns)
    removed: list[str] = []
    generalise_node.of_this_machine(removed)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert [line.partition(": ")[0] for line in removed] == [
        "keys and record of Azure's agent", "registration of AWS Systems Manager", "key of fwupd",
    ]  # fmt: skip
    assert {"walinuxagent.service", "waagent.service", "fwupd.service"} <= set(stopped)


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("x")
    (tmp_path / "cache").symlink_to("theirs")
    take_away("caches", f"{tmp_path}/cache", [])
    assert (tmp_path / "theirs" / "file").exists()
    assert not (tmp_path / "cache").is_symlink()


def test_a_home_whose_ssh_folder_is_a_link_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, theirs = tmp_path / "a[b]", tmp_path / "theirs"
    for folder in (home, theirs):
        folder.mkdir()
    (theirs / "authorized_keys").write_text("x")
    (home / ".ssh").symlink_to(theirs)
    (home / ".bash_history").write_text("x")
    monkeypatch.setattr(generalise_node, "homes", lambda: [str(home)])
    generalise_node.of_homes([])
    assert (theirs / "authorized_keys").exists()
    assert not (home / ".bash_history").exists()
