"""Which machines are refused before the driver is installed, because their kernel would not load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import module

secure_boot = module("secure_boot")
NAME = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
ENROLLED = "/var/lib/shim-signed/mok/MOK.der is already enrolled\n"
"""In the binary of Debian's mokutil 0.6.0-2."""


class Ended(Exception):
    pass


class Module:
    """AnsibleModule, on a machine whose mokutil says that."""

    output = ""

    def __init__(self, **_: Any) -> None:
        self.commands: list[list[str]] = []

    def run_command(self, argv: list[str], **_: Any) -> tuple[int, str, str]:
        assert argv[:2] == ["timeout", "30"]
        return 1, self.output, ""

    def fail_json(self, **result: Any) -> None:
        raise Ended(f"refused: {result['msg']}")

    def exit_json(self, **result: Any) -> None:
        raise Ended(f"passes: {result['enabled']}")


@pytest.mark.parametrize(
    ("content", "loaded", "mokutil", "ended"),
    [
        (b"\x06\0\0\0\x01", False, "", "refused: Secure Boot is on"),
        (b"\x06\0\0\0\x01", False, "x is not enrolled\n", "refused: Secure Boot is on"),
        (b"\x06\0\0\0\x01", False, ENROLLED, "passes: True"),
        (b"\x06\0\0\0\x01", True, "", "passes: True"),
        (b"\x06\0\0\0\0", False, "", "passes: False"),
        (b"\x06\0", False, "", "passes: None"),
        (None, False, "", "passes: None"),
    ],
)
def test_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, loaded: bool, mokutil: str, ended: str
) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    certificate = tmp_path / "MOK.der"
    certificate.touch()
    monkeypatch.setattr(secure_boot.enabled, "__defaults__", (f"{tmp_path}/SecureBoot-*",))
    monkeypatch.setattr(secure_boot, "CERTIFICATES", (str(certificate), "/nowhere"))
    monkeypatch.setattr(secure_boot, "AnsibleModule", Module)
    monkeypatch.setattr(Module, "output", mokutil)
    monkeypatch.setattr(secure_boot.os.path, "isdir", lambda path: loaded and path == "/sys/module/nvidia")
    with pytest.raises(Ended, match=f"^{ended}"):
        secure_boot.main()
