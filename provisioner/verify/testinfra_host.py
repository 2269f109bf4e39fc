"""pytest-testinfra's `host`, answered by what the probe has collected.

A check of a user's own reads the same on a fleet and on a bundle: what is in the bundle answers at once, without a
connection; what is not is asked over ssh where there is one, and is "not collected" (unknown) where there is none.
Beside testinfra's own words `host` has `gpu`, `nvlink` and `framework`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import testinfra
from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

from provisioner.verify.check import Unknown
from provisioner.verify.facts import Facts

Answer = tuple[int, str]
ANSWERS = (
    ("dpkg-query ", "packages.txt"),
    ("test -d /run/systemd/system", "units.txt"),
    ("systemctl ", "units.txt"),
    ("cat /etc/os-release", "os-release.txt"),
    ("uname ", "kernel.txt"),
    ("sysctl ", "host.json"),
    ("test -e /dev/nvidia", "nvidia-dev.txt"),
)
"""How commands of testinfra's begin, and the file of a bundle that answers them."""
STOPPED = 3
"""systemctl is-active: the unit is not active (LSB: program is not running)."""


class Collected(BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """Runs a command by looking into the facts; by `live` where they do not tell."""

    NAME = "collected"

    def __init__(self, name: str, facts: Facts, live: str | None) -> None:
        super().__init__(name)
        self.facts, self.live = facts, live
        self._encoding = "utf-8"

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        command_line = self.get_command(command, *args)
        answer = self._answer(shlex.split(command_line)) if not set("|;&<>`") & set(command_line) else None
        if answer is not None:
            return self.result(answer[0], command_line.encode(), answer[1], "")
        if self.live is None:
            raise Unknown(self._missing(command_line))
        return testinfra.get_host(self.live).run(command, *args, **kwargs)

    def _missing(self, command: str) -> str:
        """Why nothing answers, by the file that would."""
        message = f"not collected: `{command[:200]}`, and there is no connection to the node"
        file = next((file for start, file in ANSWERS if command.startswith(start)), None)
        source = self.facts.source(file) if file else None
        return f"{message} ({source.reason})" if source is not None and source.reason else message

    def _answer(self, arguments: list[str]) -> Answer | None:
        """Exit status and output; None where nothing of it was collected."""
        facts = self.facts
        match arguments:
            case ["uname", "-s"]:  # asked before each question about a package; the probe runs on Linux alone
                return (0, "Linux\n") if facts.kernel or self.live is None else None
            case ["uname", "-r"]:
                return (0, f"{facts.kernel}\n") if facts.kernel else None
            case ["uname", "-m"]:  # testinfra asks it beside the distribution; without a node nobody knows
                return (0, "unknown\n") if facts.system and self.live is None else None
            case ["cat", "/etc/os-release"] if facts.system is not None:
                rows = {"ID": facts.system.id, "VERSION_ID": facts.system.version,
                        "VERSION_CODENAME": facts.system.codename}  # fmt: skip
                return 0, "".join(f'{key}="{value}"\n' for key, value in rows.items() if value)
            case ["dpkg-query", "-f", output_format, "-W", name]:
                return self._package(output_format, name)
            case ["systemctl", verb, name]:
                return self._unit(verb, name)
            case ["test", "-d", "/run/systemd/system/" | "/run/systemd/system"]:
                return (0, "") if facts.units is not None or facts.failed_units is not None else None
            case ["command", "-v", "command" | "sysctl" as program] if facts.host is not None:
                return 0, f"{program}\n"
            case ["sysctl", "-n", name] if facts.host is not None:
                value = facts.host.settings.get(name.replace(".", "/"))
                return None if value is None else (0, f"{value}\n")
            case ["test", "-e", path] if path.startswith("/dev/nvidia") and facts.device_nodes is not None:
                return (0 if path.removeprefix("/dev/") in {node.name for node in facts.device_nodes} else 1), ""
        return None

    def _package(self, output_format: str, name: str) -> Answer | None:
        if self.facts.packages is None:
            return None
        version = self.facts.packages.get(name)
        if version is None:
            return 1, ""
        selection = "hold" if name in (self.facts.holds or ()) else "install"
        return 0, output_format.replace("${Status}", f"{selection} ok installed").replace("${Version}", version)

    def _unit(self, verb: str, name: str) -> Answer | None:
        full = name if "." in name else f"{name}.service"
        unit = (self.facts.units or {}).get(full)
        if unit is None:
            if verb == "is-active" and full in (self.facts.failed_units or ()):
                return STOPPED, "failed\n"
            return None
        match verb:
            case "is-active":
                return (0 if unit.active == "active" else STOPPED), f"{unit.active}\n"
            case "is-enabled":
                return (0 if unit.enabled.startswith(("enabled", "static", "alias")) else 1), f"{unit.enabled}\n"
            case "show":
                rows = {"Id": full, "LoadState": unit.load, "ActiveState": unit.active, "SubState": unit.sub,
                        "UnitFileState": unit.enabled, "Result": unit.result}  # fmt: skip
                return 0, "".join(f"{key}={value}\n" for key, value in rows.items() if value)
        return None


class Read:
    """An object of the facts whose values are known: what the tool did not report makes the check unknown."""

    def __init__(self, subject: str, value: Any) -> None:
        self._noun, self._value = subject, value

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._value, name)  # AttributeError for a name that facts do not have
        if result is None:
            raise Unknown(f"{self._noun} reports no {name}")
        return result

    def __repr__(self) -> str:
        return f"<{self._noun}>"


class Several:
    """`host.gpu`, `host.nvlink`: as many as answer, by number."""

    def __init__(self, kind: str, items: dict[int, Any] | None, reason: str, of: int | None = None) -> None:
        self._noun, self._items, self._reason, self._of = kind, items, reason, of

    def _known(self) -> dict[int, Any]:
        if self._items is None:
            raise Unknown(self._reason)
        return self._items

    def __call__(self, number: int) -> Read:
        if number not in self._known():
            raise Unknown(f"{self._noun} {number} does not answer")
        return Read(f"{self._noun} {number}", self._known()[number])

    def __iter__(self) -> Iterator[Read]:
        if len(self) < (self._of or 0):  # "all of them" is not said of those that are left
            raise Unknown(f"{self._noun}: {len(self)} of {self._of} are listed")
        return (self(number) for number in sorted(self._known()))

    def __len__(self) -> int:
        return len(self._known())

    @property
    def count(self) -> int:
        return len(self)


class NodeHost(Host):  # type: ignore[misc]
    """testinfra's Host with a node's GPUs, their links, and what is in its locked images."""

    def __init__(self, name: str, facts: Facts, live: str | None) -> None:
        super().__init__(Collected(name, facts, live))
        self.backend.set_host(self)
        self._facts = facts

    @property
    def gpu(self) -> Several:
        """host.gpu.count, host.gpu(3).ecc_uncorrectable; keys of nvidia_smi_facts.Gpu, or rocm_smi.AmdGpu."""
        facts = self._facts
        listed = facts.gpus if facts.gpus is not None else (facts.rocm.gpus if facts.rocm else None)
        by_index = None if listed is None or facts.gpus_present is None else {gpu.index: gpu for gpu in listed}
        file = "rocm-smi.json" if facts.source("nvidia-smi.xml").state == "absent" else "nvidia-smi.xml"
        return Several("GPU", by_index, facts.source(file).reason or "how many GPUs there are is not known")

    @property
    def nvlink(self) -> Several:
        """host.nvlink(3).active: the links of a GPU that are up; keys of nvlink.Links."""
        return Several(
            "NVLinks of GPU", self._facts.nvlinks, self._facts.source("nvlink.txt").reason, self._facts.gpus_present
        )

    def framework(self, image: str = "") -> Read:
        """host.framework("pytorch").torch: what is in the locked image whose name has that in it."""
        if self._facts.frameworks is None:
            raise Unknown(self._facts.source("framework.json").reason)
        frameworks = [framework for framework in self._facts.frameworks if image in (framework.reference or "")]
        if len(frameworks) != 1:
            raise Unknown(f"{len(frameworks)} images were looked into whose name has {image!r} in it")
        return Read(f"image {frameworks[0].reference}", frameworks[0])
