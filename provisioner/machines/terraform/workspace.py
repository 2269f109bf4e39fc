"""Drives Terraform in one workspace: python-terraform builds the command lines, its JSON log becomes our events."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from python_terraform import IsFlagged, Terraform

from provisioner.common import directories
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import ERRORED, naming, private_dir, write_whole
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes, JsonLog, from_text, refused
from provisioner.transport import keeper, process

STOP_GRACE_S = 60.0
"""How long an interrupted Terraform may take to finish the resource in hand and write its state."""

LOCK_TIMEOUT = "60s"
"""A killed run's Terraform is finishing its resource: wait for it instead of failing at once."""

ASK_TIMEOUT_S = 120.0
"""How long a command that only reads the state may take."""

PLAN_FILE = "plan.bin"

OVERTAKEN = ("over newer state with serial", "over unrelated state with lineage")
"""What `state push` says of a state that the one in the backend does not come from."""

_REGISTRIES = ("registry.terraform.io/", "registry.opentofu.org/")
_REQUIRED = re.compile(r'source = "([a-z0-9-]+/[a-z0-9-]+)", version')
"""Of the root module (templates/root.tf.j2)."""
_LOCKED = re.compile(r'^[ \t]*provider[ \t]+"([^"]*)"', re.MULTILINE)
"""Of .terraform.lock.hcl: https://developer.hashicorp.com/terraform/language/files/dependency-lock"""


class Resource(NamedTuple):
    """A resource of the state. `tainted`: its making failed, and it is made anew by the next apply."""

    attributes: Mapping[str, Any]
    tainted: bool


class _CommandLines(Terraform):  # type: ignore[misc]  # it has no types
    """python-terraform for its command lines alone. Its constructor would read the state, and fail where a run that was
    killed left half of one; what becomes of that is `damage`'s to say."""

    def read_state_file(self, file_path: str | None = None) -> None:
        """Read nothing."""


class Workspace:
    """Terraform in one folder.

    >>> Workspace(path, binary, events).apply()  # doctest: +SKIP
    Changes(add=4, change=0, destroy=0)
    """

    def __init__(
        self, path: Path, binary: Binary, events: Events, *, log: Path | None = None,
        environment: Callable[[], Mapping[str, str]] = dict,
    ) -> None:  # fmt: skip
        self.path = path
        self._of_provider = environment
        self._events = events
        self._log = log
        self._argv = binary.argv
        self._terraform = _CommandLines()

    def init(self, *, repair: bool = True) -> None:
        """Initialise, unless this Terraform has already done so for exactly this module. A state that cluster.yaml
        names another place for moves there; without `repair` that raises ProviderError."""
        stamp = self.path / ".terraform" / "gpuprov"  # gone with the folder that it vouches for
        seal_input = "\n".join([*self._argv, (self.path / "main.tf").read_text(encoding="utf-8")])
        self._refuse_foreign_providers(seal_input)
        self._drop_half_a_cache(stamp)
        if stamp.exists() and stamp.read_text(encoding="utf-8") == self._seal(seal_input):
            return
        state = self.path / "terraform.tfstate"
        moves = 'backend "local"' not in seal_input and state.exists()
        if moves and not repair:
            raise ProviderError(
                "the state is still beside its workspace, and cluster.yaml names another place for it",
                where=str(self.path),
                hint="`gpuprov up` moves it there; a plan changes nothing",
            )
        private_dir(self.path / ".terraform")  # Terraform makes it, and what is in it, for everybody to read
        flags = {"force_copy": IsFlagged} if moves else {"reconfigure": IsFlagged} if self._only_looked() else {}
        try:
            self._run("init", input=False, no_color=IsFlagged, **flags)
        except ProviderError as error:
            if not any("-migrate-state" in diagnostic.text for diagnostic in error.diagnostics):
                raise
            raise ProviderError(
                "`state` of cluster.yaml names another place than the one where this cluster's state is",
                where=str(self.path),
                hint="put `state` back as it was; to move, `gpuprov down`, change it, `gpuprov up`, or move the state "
                f"yourself: `terraform init -migrate-state` in {self.path}",
            ) from None
        self._refuse_foreign_providers(seal_input)
        if moves:
            self._events("terraform", "log", "the state has moved to the backend that cluster.yaml names")
            state.replace(state.with_name("terraform.tfstate.moved"))
        write_whole(stamp, self._seal(seal_input))

    def _drop_half_a_cache(self, stamp: Path) -> None:
        """Remove Terraform's note of its backend where a run that was killed, or a full disk, left half of it: `init`
        writes it again."""
        note = self.path / ".terraform" / "terraform.tfstate"
        try:
            json.loads(note.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (ValueError, RecursionError):
            self._events("terraform", "warning", f"{note} was cut off half way; Terraform is initialised again")
            stamp.unlink(missing_ok=True)
            note.unlink()

    def _refuse_foreign_providers(self, main: str) -> None:
        """Raise ProviderError where Terraform would run a provider that the root module does not name: a state can name
        one too, and whoever writes to the bucket writes the state. `init` fetches it, and notes it in its lock file;
        what is fetched is run from the first plan on."""
        lock = self.path / ".terraform.lock.hcl"
        if not lock.exists():
            return
        required = set(_REQUIRED.findall(main))
        noted = _LOCKED.findall(lock.read_text(encoding="utf-8", errors="replace"))
        foreign = [name for name in noted if not (name.startswith(_REGISTRIES) and name.split("/", 1)[1] in required)]
        if foreign:
            raise ProviderError(
                f"Terraform's state or lock file asks for the provider {', '.join(foreign)[:300]}, which this cluster "
                "has no use for: it was not run",
                where=str(lock),
                hint="check who wrote the state (`terraform state pull`); to go on, remove its resources from the "
                "state, and the lock file",
            )

    def _only_looked(self) -> bool:
        """Whether all that was ever done here was to plan, beside which no state is: a plan made before the state's
        place was there."""
        try:
            noted = json.loads((self.path / ".terraform" / "terraform.tfstate").read_text(encoding="utf-8"))
            local = noted["backend"]["type"] == "local"
        except (FileNotFoundError, ValueError, RecursionError, LookupError, TypeError):
            return False
        return local and not (self.path / "terraform.tfstate").exists()

    def _seal(self, seal_input: str) -> str:
        """What `init` has been done for; another operator's checksums of providers are a reason to do it again."""
        lock = self.path / ".terraform.lock.hcl"
        checksums = lock.read_text(encoding="utf-8") if lock.exists() else ""
        return hashlib.sha256(f"{seal_input}\n{checksums}".encode()).hexdigest()

    def plan(self, *, replace: Sequence[str] = ()) -> Changes:
        """Work out what has to be done; `apply` then does exactly that. `replace`: addresses to make anew."""
        return self._run(
            "plan",
            json=IsFlagged,
            input=False,
            lock_timeout=LOCK_TIMEOUT,
            out=PLAN_FILE,
            replace=list(replace),
        ).changes

    def forcing(self, addresses: Collection[str]) -> dict[str, list[str]]:
        """Address → the attributes whose change makes Terraform replace it, by the plan that was just made. Raises
        ProviderError. https://developer.hashicorp.com/terraform/internals/json-format#change-representation"""
        rows = json.loads(self._ask("show", "-json", PLAN_FILE) or "{}").get("resource_changes", [])
        return {row["address"]: _forcing(row["change"]) for row in rows if row["address"] in addresses}

    def apply(self) -> Changes:
        """Do what was planned. Raises ProviderError naming the resource that failed and why."""
        try:
            return self._run("apply", PLAN_FILE, json=IsFlagged, input=False, lock_timeout=LOCK_TIMEOUT).changes
        finally:
            (self.path / PLAN_FILE).unlink(missing_ok=True)

    def destroy(self, *, only: Sequence[str] = ()) -> Changes:
        """Remove everything that the state knows, or `only` these addresses."""
        return self._run(
            "destroy",
            json=IsFlagged,
            input=False,
            auto_approve=IsFlagged,
            lock_timeout=LOCK_TIMEOUT,
            target=list(only),
        ).changes

    def addresses(self) -> list[str]:
        """Every resource that the state knows; none where there is no state yet."""
        listed = self._ask("state", "list", fine="No state file")
        return [line.strip() for line in listed.splitlines() if line.strip()]

    def resources(self) -> dict[str, Resource]:
        """Every resource that the state knows by its address; empty where there is none yet. Raises ProviderError."""
        listed = json.loads(self._ask("state", "pull") or "{}").get("resources", [])
        return {
            _address(resource, instance): Resource(
                instance.get("attributes") or {}, instance.get("status") == "tainted"
            )
            for resource in listed
            if resource.get("mode") == "managed"
            for instance in resource.get("instances", [])
        }

    def recorded(self) -> set[str]:
        """The id of every resource that the state knows, whatever its condition. Raises ProviderError."""
        resources = json.loads(self._ask("state", "pull") or "{}").get("resources", [])
        managed = (instance for r in resources if r.get("mode") == "managed" for instance in r.get("instances", []))
        return {
            str(instance["attributes"]["id"]) for instance in managed if (instance.get("attributes") or {}).get("id")
        }

    def save_errored(self, *, repair: bool) -> None:
        """Write the state that an apply before could not save, before anything else is done. Raises ProviderError where
        that fails, and without `repair`: whatever is planned on the older state would make everything again. Where
        another operator has written the state since, it is put aside: that run took machines in by their tags, or this
        one does. https://developer.hashicorp.com/terraform/cli/commands/state/push"""
        errored = self.path / ERRORED
        if not errored.exists():
            return
        message_of_loss = f"the last run could not save Terraform's state: what it made is in {errored} alone"
        if not repair:
            hint = "`gpuprov up` or `gpuprov down` writes it back first; nothing was done"
            raise ProviderError(message_of_loss, where=str(self.path), hint=hint)
        self._events("terraform", "warning", f"{message_of_loss}; it is written back first")
        try:
            self._ask("state", "push", ERRORED)
        except GpuprovError as error:
            if any(refusal in error.message for refusal in OVERTAKEN):
                kept_file = self._put_aside(errored, "outdated")
                message = (
                    f"the state was written by another run since: {kept_file} is kept, and what it alone has is looked "
                    "for by its tags"
                )
                self._events("terraform", "warning", message)
                return
            raise ProviderError(
                f"{message_of_loss}, and it could not be written back: {error.message}", where=str(self.path),
                hint=f"nothing was done; when the state can be reached again, run it again, or `terraform state push "
                f"{ERRORED}` in {self.path}. Keep the file: without it {self.path.name}'s machines and network are "
                "known by their tags alone (`gpuprov gc`)",
                diagnostics=getattr(error, "diagnostics", ()),
            ) from None  # fmt: skip
        self._put_aside(errored, "saved")

    @staticmethod
    def _put_aside(errored: Path, suffix: str) -> Path:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        return errored.replace(errored.with_name(f"{ERRORED}.{suffix}-{stamp}"))

    def adopt(self, address: str, number: str) -> None:
        """Write a resource that stands into the state, as if it had been made by it. Raises ProviderError."""
        self._run("import", address, number, input=False, no_color=IsFlagged, lock_timeout=LOCK_TIMEOUT)

    def forget(self, address: str) -> None:
        """Take a resource that is gone out of the state. Raises ProviderError."""
        self._ask("state", "rm", f"-lock-timeout={LOCK_TIMEOUT}", address)

    def damage(self, *, repair: bool = True) -> str | None:
        """What is wrong with a local state, or None. A run that was killed while it wrote can leave half a file;
        the copy that Terraform made before is then put back, where `repair` allows it."""
        state = self.path / "terraform.tfstate"
        for candidate in (state, state.with_name("terraform.tfstate.backup")):
            try:
                text = candidate.read_text(encoding="utf-8")
                if text.strip():
                    json.loads(text)
            except FileNotFoundError:
                if candidate == state:
                    return None
                continue
            except (ValueError, RecursionError):  # half a file, or nested deeper than Terraform writes
                continue
            if candidate != state and not repair:
                return f"{state} is cut off; `gpuprov up` puts its backup in its place"
            if candidate != state:
                self._events("terraform", "warning", "the state was cut off half way; its backup is used")
                write_whole(state, text)
            return None
        return f"{state} is cut off, and there is no backup of it"

    def outputs(self) -> dict[str, Any]:
        """The outputs of the state, as `terraform output -json` gives them; empty where nothing was applied."""
        loaded: dict[str, Any] = json.loads(self._ask("output", "-json") or "{}")
        return loaded

    def _ask(self, *arguments: str, fine: str | None = None) -> str:
        """What a command that changes nothing prints. Raises ProviderError where it fails, unless it says `fine`, or
        does not end: a state that is far away may never answer."""
        command_line = f"terraform {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [*self._argv, *arguments], cwd=self.path, env=self._environment(), capture_output=True, text=True,
                encoding="utf-8", errors="replace", timeout=ASK_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            message = f"{command_line} did not end within {ASK_TIMEOUT_S:.0f} s"
            raise ProviderError(
                message, where=str(self.path), hint="the state is not reachable; run it again"
            ) from None
        if done.returncode and not (fine and fine in done.stderr):
            diagnostics = from_text([done.stderr])
            cause = "; ".join(map(str, diagnostics)) or done.stderr.strip()[-500:]
            raise refused(" ".join(arguments), cause, diagnostics, where=str(self.path))
        return done.stdout

    def _command(self, command: str, *arguments: str, **options: Any) -> list[str]:
        built: list[str] = self._terraform.generate_cmd_string(command, *arguments, **options)
        return [*self._argv, *built[1:]]

    def _environment(self) -> dict[str, str]:
        """The caller's environment and what the provider adds; no prompts, no colour, no phoning home."""
        env = {
            **os.environ,
            **self._of_provider(),
            keeper.MAY_FINISH: str(STOP_GRACE_S),
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
        }
        config = env.get("TF_CLI_CONFIG_FILE")
        if config and not Path(config).exists():  # Terraform would warn about it on every call
            del env["TF_CLI_CONFIG_FILE"]
        return env

    def _run(self, command: str, *arguments: str, **options: Any) -> JsonLog:
        run = JsonLog(command, self._events)

        def read(line: str) -> None:
            self._remember(line)
            run.read(line)

        ended = process.follow(
            self._command(command, *arguments, **options),
            read,
            cwd=self.path,
            env=self._environment(),
            grace_s=STOP_GRACE_S,
            stopping=lambda: self._events(
                "terraform",
                "warning",
                "stopping Terraform: it finishes what it has begun and writes its state",
                data={"here": process.AGAIN},
            ),
        )
        run.plain += ended.complaints
        for line in ended.complaints:
            self._remember(line)
        if ended.status:
            raise run.failure(ended.status, str(self.path), str(self._log or ""))
        return run

    def _remember(self, line: str) -> None:
        if self._log is not None:
            with naming(self._log), directories.append(self._log) as stream:
                stream.write((line if line.endswith("\n") else line + "\n").encode())


def _address(resource: Mapping[str, Any], instance: Mapping[str, Any]) -> str:
    """The address of an instance as Terraform writes it."""
    module = f"{resource['module']}." if resource.get("module") else ""
    key = instance.get("index_key")
    return f"{module}{resource['type']}.{resource['name']}" + ("" if key is None else f"[{json.dumps(key)}]")


def _forcing(change: Mapping[str, Any]) -> list[str]:
    """Names of attributes: of one that is a group of values, those values that differ."""
    names = []
    for path in change.get("replace_paths", []):
        old, new = (_at(change.get(side), path) for side in ("before", "after"))
        groups = isinstance(old, dict) and isinstance(new, dict)
        inner = [key for key in old if old[key] != new.get(key)] if groups else []
        names += inner or [".".join(str(step) for step in path)]
    return list(dict.fromkeys(names))


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value
