"""A GPU node under test: what is expected of it, and what its tools print."""

from __future__ import annotations

import json
import re
import shlex
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/amazon/efa/bin:/opt/rocm/bin"
CONNECTION_S = 30
"""Seconds beyond a command's own deadline, for the connection: a command in the kernel's hands cannot be killed."""
ROCM_SMI = "rocm-smi --showproductname --showmeminfo vram --showbus --json"


class Node:
    """`expected` is the node's entry in expected.json. Each command runs once, as root (by `sudo -n` where the account
    is another one), and has a deadline."""

    def __init__(self, host: Any, name: str, expected: dict[str, Any]) -> None:
        self.host, self.name, self.expected = host, name, expected
        self._answers: dict[str, tuple[int, str, str] | str] = {}
        self._unreachable = ""
        self._smi: ElementTree.Element | None = None
        self._gpus: list[dict[str, Any]] | None = None

    def require(self, condition: bool, reason: str, *facts: str) -> None:
        """Fail for this reason unless the condition holds. `facts` are the expected values that it rests on: where one
        of them is unverified, the test is an expected failure, which warns."""
        __tracebackhide__ = True
        guesses = [fact for fact in facts if fact in self.expected["unverified"]]
        if not condition and guesses:
            pytest.xfail(f"{self.name}: {reason} (unverified: {', '.join(guesses)})")
        elif not condition:
            pytest.fail(f"{self.name}: {reason}", pytrace=False)

    def run(self, command: str, seconds: int = 60) -> tuple[int, str, str]:
        """Exit status, standard output and standard error. Fails where the command gives none of them."""
        __tracebackhide__ = True
        if command not in self._answers:
            self._answers[command] = self._unreachable or self._ask(command, seconds)
        answer = self._answers[command]
        if isinstance(answer, str):
            pytest.fail(f"{self.name}: {answer}", pytrace=False)
        return answer

    def output(self, command: str, seconds: int = 60) -> str:
        """Standard output. Fails where the command fails."""
        __tracebackhide__ = True
        status, stdout, stderr = self.run(command, seconds)
        reason = (stderr.strip() or stdout.strip() or "no output")[-300:]
        self.require(status == 0, f"`{_short(command)}` ended with status {status}: {reason}")
        return stdout

    def _ask(self, command: str, seconds: int) -> tuple[int, str, str] | str:
        """The answer, or the reason why there is none."""
        script = (
            'sudo=; [ "$(id -u)" = 0 ] || sudo="sudo -n"; '
            f"exec $sudo env PATH={PATH} LC_ALL=C timeout --kill-after=5 {seconds} {command}"
        )
        results: list[Any] = []

        def ask() -> None:
            try:
                results.append(self.host.run(f"sh -c {shlex.quote(script)}"))
            except Exception as error:  # testinfra raises RuntimeError where ssh fails
                results.append(error)

        thread = Thread(target=ask, daemon=True)
        thread.start()
        thread.join(seconds + CONNECTION_S)
        if not results or isinstance(results[0], Exception):
            silence = f"no answer in {seconds + CONNECTION_S} s to `{_short(command)}`"
            self._unreachable = f"no connection: {_error_text(results[0])}" if results else silence
            return self._unreachable
        result = results[0]
        stdout, stderr = (text.decode("utf-8", "replace") for text in (result.stdout_bytes, result.stderr_bytes))
        if result.rc in (124, 137):
            return f"`{_short(command)}` did not end in {seconds} s, or was killed"
        if result.rc in (126, 127):
            return f"`{_short(command)}` does not run: {stderr.strip()[-300:]}"
        return result.rc, stdout, stderr

    def nvidia_smi(self) -> ElementTree.Element:
        """`nvidia-smi -q -x`. Its exit status is not 0 where it only warns (of an InfoROM)."""
        __tracebackhide__ = True
        if self._smi is None:
            status, stdout, stderr = self.run("nvidia-smi -q -x")
            document = re.search(r"<nvidia_smi_log.*</nvidia_smi_log>", stdout, re.S)  # without its warnings
            try:
                # expat >= 2.4.1 bounds entities
                self._smi = ElementTree.fromstring(document[0] if document else stdout)  # noqa: S314
            except ElementTree.ParseError:
                reason = (stderr.strip() or stdout.strip())[-300:]
                pytest.fail(f"{self.name}: nvidia-smi ended with status {status}: {reason}", pytrace=False)
        return self._smi

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that answer: name, memory_mib, and for NVIDIA its modes and the state of its fabric. Fails
        where no GPU answers; skips the test of a node that has none."""
        __tracebackhide__ = True
        if not self.expected["gpu_count"]:
            pytest.skip("this machine has no GPU")
        if self._gpus is None:
            self._gpus = self._amd_gpus() if self.expected["vendor"] == "amd" else self._nvidia_gpus()
        self.require(bool(self._gpus), "no GPU answers")
        return self._gpus

    def _nvidia_gpus(self) -> list[dict[str, Any]]:
        gpus = []
        for element in self.nvidia_smi().findall("gpu"):
            texts = {(text or "").strip("[] \n").lower() for text in element.itertext()}
            name = (element.findtext("product_name") or "").strip()
            if "gpu is lost" in texts or name.lower().strip("[]") in ("", "err!", "unknown error"):
                continue
            gpus.append({
                "name": name,
                "memory_mib": _number(element.findtext("fb_memory_usage/total")),
                "ecc": element.findtext("ecc_mode/current_ecc"),
                "mig": element.findtext("mig_mode/current_mig"),
                "fabric_state": element.findtext("fabric/state"),
                "fabric_status": element.findtext("fabric/status"),
            })  # fmt: skip
        return gpus

    def _amd_gpus(self) -> list[dict[str, Any]]:
        text = self.output(ROCM_SMI)
        cards = json.loads(text[text.find("{") :])
        gpus: dict[str, dict[str, Any]] = {}  # by address: partitions of one GPU are cards of their own
        for key, card in cards.items():
            if key.startswith("card"):
                fields = {str(name).lower(): str(value) for name, value in card.items()}
                memory = _number(fields.get("vram total memory (b)"))
                gpus.setdefault(fields.get("pci bus", key), {
                    "name": fields.get("card series") or fields.get("device name") or "",
                    "memory_mib": None if memory is None else memory // 1024**2,
                })  # fmt: skip
        return list(gpus.values())

    def packages(self) -> dict[str, str]:
        """Installed packages and their versions."""
        __tracebackhide__ = True
        fields = shlex.quote("${Package}\t${Version}\t${db:Status-Abbrev}\n")
        rows = [line.split("\t") for line in self.output(f"dpkg-query -W -f {fields}").splitlines()]
        return {row[0]: row[1] for row in rows if len(row) == 3 and row[2][1:2] == "i"}


def _number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def _error_text(error: Exception) -> str:
    """What ssh said; testinfra puts the whole result of the command, which has the script too, into its error."""
    result = error.args[0] if error.args else error
    return str(getattr(result, "stderr", "") or error).strip()[-300:]


def _short(command: str) -> str:
    """A command without its program text."""
    return command.split("'", maxsplit=1)[0].strip()[:60]
