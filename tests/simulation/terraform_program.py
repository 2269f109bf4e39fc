"""Terraform as gpuprov calls it, over the simulated cloud: plans and states as the real one writes them.

Commands: init, plan, apply, destroy, import, output, state list|pull|push. What it prints is Terraform's JSON log
(https://developer.hashicorp.com/terraform/internals/machine-readable-ui), what it keeps is a state of format 4;
test_terraform_program.py holds both to the real Terraform. Its one provider makes `aws_vpc.site` and
`aws_instance.node[…]`, as gpuprov's module terraform/aws is seen from outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.cloud import Cloud, Machine
from tests.simulation.processes import Processes

VERSION = "1.12.2"
NETWORK = "module.site.aws_vpc.site"
PROVIDER = 'provider["registry.terraform.io/hashicorp/aws"]'
STATE, ERRORED = "terraform.tfstate", "errored.tfstate"
Record = dict[str, Any]
PRESENT = {"create": "Creating", "delete": "Destroying", "update": "Modifying"}


def address_of(node: str) -> str:
    return f'module.site.aws_instance.node["{node}"]'


def node_of(address: str) -> str:
    return address.partition('["')[2].removesuffix('"]')


class Failed(Exception):
    """The command ends with 1, and says this, as diagnostics: summary, address."""

    def __init__(self, *messages: tuple[str, str]) -> None:
        super().__init__(str(messages))
        self.messages = messages


class StateStore:
    """Where states lie that are not beside their workspace. All methods may raise Failed."""

    def read(self, key: str) -> str | None:
        raise NotImplementedError

    def write(self, key: str, text: str) -> None:
        raise NotImplementedError


@dataclass
class Root:
    """What main.tf says."""

    region: str
    cluster: str
    site: str
    identity: str
    desired: dict[str, tuple[str, str, str]]
    """Node → its group, machine type and zone."""
    key: str | None
    """Of the remote state; None: beside main.tf."""
    accounts: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Root:
        text = (folder / "main.tf").read_text(encoding="utf-8")

        def value(name: str) -> Any:
            match = re.search(rf"^  {name} += (.*)$", text, re.M)
            assert match is not None, f"main.tf has no {name}"
            return json.loads(match[1].replace('" = ', '": '))

        groups, inputs, tags = value("groups"), value("aws"), value("tags")
        desired = {}
        for name, group in groups.items():
            group_inputs = inputs["groups"][name]
            for number in range(group["count"]):
                node = f"{name}-{number}"
                if node not in group_inputs.get("without", []):
                    desired[node] = (name, group["machine"], group_inputs["zone"])
        remote = re.search(r'^    key = "(.*)"$', text, re.M)
        accounts = re.search(r"^  allowed_account_ids = (.*)$", text, re.M)
        return cls(
            value("region"), tags["gpuprov-cluster"], tags["gpuprov-site"], tags["gpuprov-id"], desired,
            remote[1] if remote else None, tuple(json.loads(accounts[1])) if accounts else (),
        )  # fmt: skip


@dataclass
class State:
    """A state, of format 4. `resources`: address → what it has of it, and whether it is tainted."""

    serial: int = 0
    lineage: str = ""
    resources: dict[str, tuple[dict[str, Any], bool]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> State:
        document = json.loads(text)
        resources = {}
        for resource in document["resources"]:
            for instance in resource["instances"]:
                key = instance.get("index_key")
                address = f"{resource['module']}.{resource['type']}.{resource['name']}" + (f'["{key}"]' if key else "")
                resources[address] = (instance["attributes"], instance.get("status") == "tainted")
        return cls(document["serial"], document["lineage"], resources)

    def outputs(self) -> Record:
        """The module's outputs."""
        nodes = {node_of(a): described(v) for a, (v, tainted) in self.resources.items() if a != NETWORK and not tainted}
        return {"nodes": {"value": nodes, "type": ["map", "dynamic"]}} if self.resources else {}

    def text(self) -> str:
        resources: list[Record] = []
        if NETWORK in self.resources:
            attributes, tainted = self.resources[NETWORK]
            resources.append(_resource("aws_vpc", "site", [_instance(None, attributes, tainted=tainted)]))
        if len(self.resources) > len(resources):
            rows = [_instance(node_of(a), v, tainted=t) for a, (v, t) in self.resources.items() if a != NETWORK]
            resources.append(_resource("aws_instance", "node", rows))
        document = {
            "version": 4, "terraform_version": VERSION, "serial": self.serial, "lineage": self.lineage,
            "outputs": self.outputs(), "resources": resources, "check_results": None,
        }  # fmt: skip
        return json.dumps(document, indent=2) + "\n"


def _resource(kind: str, name: str, instances: list[Record]) -> Record:
    return {
        "module": "module.site", "mode": "managed", "type": kind, "name": name, "provider": PROVIDER,
        "instances": instances,
    }  # fmt: skip


def _instance(key: str | None, attributes: Record, *, tainted: bool) -> Record:
    index = {"index_key": key} if key else {}
    return {**index, **({"status": "tainted"} if tainted else {}), "schema_version": 1, "attributes": attributes,
            "sensitive_attributes": []}  # fmt: skip


def described(attributes: Mapping[str, Any]) -> Record:
    """As the module's output `nodes` has it."""
    tags = attributes["tags"]
    return {
        "id": attributes["id"], "group": tags["gpuprov-group"], "machine": attributes["instance_type"],
        "zone": attributes["availability_zone"], "private_ip": attributes["private_ip"],
        "public_ip": attributes["public_ip"], "mounts": [],
    }  # fmt: skip


def attributes_of(machine: Machine, group: str) -> Record:
    tags = {
        "gpuprov-cluster": machine.cluster, "gpuprov-site": machine.site, "gpuprov-id": machine.identity,
        "gpuprov-node": machine.node, "gpuprov-group": group,
    }  # fmt: skip
    return {
        "id": machine.id, "instance_type": machine.type, "availability_zone": machine.zone,
        "private_ip": machine.address.replace("203.0.113", "10.0.0"), "public_ip": machine.address, "tags": tags,
    }  # fmt: skip


@dataclass
class Terraform:
    """One call in one folder, by the credentials of one account."""

    folder: Path
    cloud: Cloud
    processes: Processes
    store: StateStore
    account: str
    write_file: Callable[[Path, str], None]
    removing: Callable[[Machine], None]
    """Called before a machine is removed."""

    def run(self, arguments: Sequence[str]) -> Iterator[str]:
        """What it prints, line by line. Raises Failed."""
        flags = [argument for argument in arguments if argument.startswith("-")]
        plain = [argument for argument in arguments if not argument.startswith("-")]
        match plain:
            case ["init"]:
                yield from self._init(flags)
            case ["plan"]:
                yield from self._plan(flags)
            case ["apply", file]:
                yield from self._apply(file)
            case ["destroy"]:
                yield from self._destroy(flags)
            case ["import", address, number]:
                yield from self._import(address, number)
            case ["output"]:
                nodes = json.loads(self._state().text())["outputs"]
                yield json.dumps({"nodes": {**nodes["nodes"], "sensitive": False}} if nodes else {})
            case ["show", "plan.bin"]:
                yield json.dumps(_plan_document(json.loads((self.folder / "plan.bin").read_text(encoding="utf-8"))))
            case ["state", "list"]:
                state = self._state()
                yield from sorted(state.resources)
            case ["state", "pull"]:
                state = self._state()
                yield state.text() if state.lineage else ""
            case ["state", "rm", address]:
                state = self._state()
                del state.resources[address]
                self._save(state)
            case ["state", "push", file]:
                pushed, current = State.parse((self.folder / file).read_text(encoding="utf-8")), self._state()
                if current.lineage not in ("", pushed.lineage):
                    ids = f'"{pushed.lineage}" over unrelated state with lineage "{current.lineage}"'
                    raise Failed((f"Failed to write state: cannot import state with lineage {ids}", ""))
                if current.serial > pushed.serial:
                    serials = f"{pushed.serial} over newer state with serial {current.serial}"
                    raise Failed((f"Failed to write state: cannot import state with serial {serials}", ""))
                self._save(pushed, fresh=False)
            case _:
                raise Failed((f"unknown command {arguments}", ""))

    def _init(self, flags: Sequence[str]) -> Iterator[str]:
        note = self.folder / ".terraform" / STATE
        root, previous_key = Root.read(self.folder), None
        if note.exists():
            previous_key = json.loads(note.read_text(encoding="utf-8"))["backend"]["key"]
            if previous_key != root.key and not {"-force-copy", "-reconfigure"} & {
                flag.partition("=")[0] for flag in flags
            }:
                raise Failed(("Backend configuration changed: use -migrate-state or -reconfigure", ""))
        if any(flag.startswith("-force-copy") for flag in flags) and root.key and (self.folder / STATE).exists():
            self.store.write(root.key, (self.folder / STATE).read_text(encoding="utf-8"))
        (self.folder / ".terraform").mkdir(exist_ok=True)
        self.write_file(
            note, json.dumps({"version": 3, "backend": {"type": "s3" if root.key else "local", "key": root.key}})
        )
        yield "Terraform has been successfully initialized!"

    def _state(self) -> State:
        root = Root.read(self.folder)
        if root.key:
            text = self.store.read(root.key)
        else:
            file = self.folder / STATE
            text = file.read_text(encoding="utf-8") if file.exists() else None
        return State.parse(text) if text and text.strip() else State()

    def _save(self, state: State, *, fresh: bool = True) -> None:
        """Raises Failed where it can't be written: what was made is then in errored.tfstate alone, or nowhere."""
        root = Root.read(self.folder)
        if fresh:
            state.serial += 1
        state.lineage = state.lineage or f"lineage-{root.identity}-{root.site}"
        try:
            if root.key:
                self.store.write(root.key, state.text())
            else:
                self.write_file(self.folder / STATE, state.text())
        except (OSError, Failed):
            if not fresh:
                raise Failed(("Failed to write state", "")) from None
            message = "Failed to save state"
            try:
                self.write_file(self.folder / ERRORED, state.text())
            except OSError:
                message = "Failed to save state, and could not write it to a file either"
            raise Failed((message, "")) from None

    def _refresh(self, state: State, root: Root) -> None:
        """Forget what is not there any more, as a plan's refresh does: it looks in one account and region alone."""
        if root.accounts and self.account not in root.accounts:
            raise Failed((f"AWS account ID not allowed: {self.account}", ""))
        for address, (attributes, _) in list(state.resources.items()):
            machine = self.cloud.there(attributes["id"], self.account, root.region)
            if machine is None:
                del state.resources[address]
            elif address != NETWORK:
                group = attributes["tags"]["gpuprov-group"]
                state.resources[address] = (attributes_of(machine, group), state.resources[address][1])

    def _plan(self, flags: Sequence[str]) -> Iterator[str]:
        root, state = Root.read(self.folder), self._state()
        serial, previous_outputs = state.serial, state.outputs()
        self._refresh(state, root)
        replace = {flag.partition("=")[2] for flag in flags if flag.startswith("-replace=")}
        actions: dict[str, str] = {} if NETWORK in state.resources else {NETWORK: "create"}
        reasons: dict[str, str] = {}
        for node, (_, kind, _zone) in root.desired.items():
            address = address_of(node)
            if address not in state.resources:
                actions[address] = "create"
                continue
            attributes, tainted = state.resources[address]
            if tainted or address in replace or attributes["instance_type"] != kind:
                actions[address] = "replace"
                reasons[address] = "tainted" if tainted else "requested" if address in replace else "cannot_update"
            elif attributes["tags"]["gpuprov-id"] != root.identity:
                actions[address] = "update"
        unwanted = [a for a in state.resources if a != NETWORK and node_of(a) not in root.desired]
        actions |= dict.fromkeys(unwanted, "delete")
        for address, action in actions.items():
            yield json.dumps(_planned(address, action, reasons.get(address)))
        changed = actions or state.outputs() != previous_outputs
        yield json.dumps(_outputs(("update" if previous_outputs else "create") if changed else "noop"))
        yield json.dumps(_summary(actions, "plan"))
        saved = {"serial": serial, "actions": actions, "reasons": reasons, "known": sorted(state.resources)}
        self.write_file(self.folder / "plan.bin", json.dumps(saved))

    def _apply(self, file: str) -> Iterator[str]:
        saved, root, state = (
            json.loads((self.folder / file).read_text(encoding="utf-8")),
            Root.read(self.folder),
            self._state(),
        )
        if state.serial != saved["serial"]:
            raise Failed(("Saved plan is stale", ""))
        self._refresh(state, root)
        for address, action in saved["actions"].items():
            yield json.dumps(_planned(address, action))
        yield from self._do(saved["actions"], state, root, "apply")

    def _destroy(self, flags: Sequence[str]) -> Iterator[str]:
        root, state = Root.read(self.folder), self._state()
        self._refresh(state, root)
        only = [flag.partition("=")[2] for flag in flags if flag.startswith("-target=")]
        order = [a for a in state.resources if a != NETWORK] + [a for a in state.resources if a == NETWORK]
        actions = {a: "delete" for a in order if not only or a in only}
        for address, action in actions.items():
            yield json.dumps(_planned(address, action))
        if not only:
            yield json.dumps(_outputs("delete"))
        yield json.dumps(_summary(actions, "plan"))
        yield from self._do(actions, state, root, "destroy")

    def _do(self, actions: Mapping[str, str], state: State, root: Root, command: str) -> Iterator[str]:
        """One resource after the other, the state written after each, as the local backend does; a remote one is
        written at the end. Terraform that is asked to stop ends the resource in hand and writes what it knows."""
        errors: list[tuple[str, str]] = []
        done = dict.fromkeys(("create", "update", "delete"), 0)
        for address, action in actions.items():
            try:
                yield json.dumps(_hook("apply_start", address, action))
                self._resource(address, action, state, root, done)
                yield json.dumps(_hook("apply_complete", address, action))
            except Failed as failure:
                errors += failure.messages
            if not root.key:
                self._save(state)
            if self.processes.current.stopping or self.processes.current.lost_lease:
                errors.append(("execution halted", ""))
                break
        if root.key or not actions:
            self._save(state)
        yield json.dumps(_summary(actions, command, done))
        if errors:
            raise Failed(*errors)

    def _resource(self, address: str, action: str, state: State, root: Root, done: dict[str, int]) -> None:
        """Raises Failed where the cloud refuses it, or the answer is lost; KeyboardInterrupt after what was in hand."""
        if action in ("delete", "replace"):
            number = state.resources[address][0]["id"]
            self._answered(address, f"remove {node_of(address) or 'network'}", lambda: self._remove(number))
            state.resources.pop(address, None)
            done["delete"] += 1
        if action in ("create", "replace"):
            node = node_of(address)
            group, kind, zone = root.desired.get(node, ("", "", "")) if address != NETWORK else ("", "", "")
            if zone in self.cloud.short:
                raise Failed(
                    (_ec2("InsufficientInstanceCapacity", "We currently do not have sufficient capacity"), address)
                )

            def make() -> Machine:
                return self.cloud.make(
                    "network" if address == NETWORK else "machine", node, cluster=root.cluster, site=root.site,
                    identity=root.identity, account=self.account, region=root.region, zone=zone, type=kind,
                )  # fmt: skip

            created = self._answered(address, f"create {node or 'network'}", make)
            state.resources[address] = (attributes_of(created, group), False)
            done["create"] += 1

        if action == "update":
            machine = self.cloud.machines[state.resources[address][0]["id"]]
            self._answered(address, f"tag {node_of(address)}", lambda: setattr(machine, "identity", root.identity))
            group = state.resources[address][0]["tags"]["gpuprov-group"]
            state.resources[address] = (attributes_of(machine, group), False)
            done["update"] += 1

    def _answered(self, address: str, name: str, call: Callable[[], Any]) -> Any:
        lost = Failed((_ec2("RequestTimeout", "connection reset by peer"), address))
        refused = Failed((_ec2("RequestLimitExceeded", "Request limit exceeded."), address))
        return self.processes.effect(
            "cloud", name, call, refusal=lambda: refused, lost=lambda: lost, finishes=True
        )  # fmt: skip

    def _remove(self, number: str) -> None:
        self.removing(self.cloud.machines[number])
        self.cloud.machines[number].running = False

    def _import(self, address: str, number: str) -> Iterator[str]:
        root, state = Root.read(self.folder), self._state()
        machine = self.cloud.there(number, self.account, root.region)
        if machine is None:
            raise Failed(("Cannot import non-existent remote object", address))
        state.resources[address] = (attributes_of(machine, root.desired[machine.node][0]), False)
        self._save(state)
        yield "Import successful!"


def _ec2(code: str, text: str) -> str:
    """As the AWS provider words it: github.com/hashicorp/terraform-provider-aws, internal/service/ec2/ec2_instance.go,
    and the SDK's smithy.OperationError."""
    return (
        f"creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, "
        f"RequestID: 7a62c49f, api error {code}: {text}"
    )


def _split(address: str) -> Record:
    key = node_of(address) or None
    module, _, resource = address.rpartition(".aws_")
    kind, _, name = f"aws_{resource}".partition(".")
    return {
        "addr": address, "module": module, "resource": address.removeprefix(f"{module}."), "implied_provider": "aws",
        "resource_type": kind, "resource_name": name.partition("[")[0], "resource_key": key,
    }  # fmt: skip


def _planned(address: str, action: str, reason: str | None = None) -> Record:
    message = f"{address}: Plan to {action}"
    change = {"resource": _split(address), "action": action} | ({"reason": reason} if reason else {})
    return {"@level": "info", "@message": message, "type": "planned_change", "change": change}


def _plan_document(saved: Record) -> Record:
    """The plan as `terraform show -json` has it, as far as gpuprov reads it."""
    paths = {address: [["instance_type"]] for address, reason in saved["reasons"].items() if reason == "cannot_update"}
    rows = [{"address": address, "change": {"actions": [action], "replace_paths": paths.get(address, [])}}
            for address, action in saved["actions"].items()]  # fmt: skip
    return {"format_version": "1.2", "resource_changes": rows}


def _hook(kind: str, address: str, action: str) -> Record:
    verb = PRESENT.get(action, "Creating")
    message = f"{address}: {verb}..." if kind == "apply_start" else f"{address}: {verb.replace('ing', 'ion')} complete"
    return {
        "@level": "info",
        "@message": message,
        "type": kind,
        "hook": {"resource": _split(address), "action": action},
    }


def _outputs(action: str) -> Record:
    return {"@level": "info", "@message": "Outputs: 1", "type": "outputs",
            "outputs": {"nodes": {"sensitive": False, "action": action}}}  # fmt: skip


def _summary(actions: Mapping[str, str], command: str, done: Mapping[str, int] | None = None) -> Record:
    counts = {"add": 0, "change": 0, "import": 0, "remove": 0}
    if done is not None:
        counts |= {"add": done["create"], "change": done["update"], "remove": done["delete"]}
    else:
        for action in actions.values():
            counts["add"] += action in ("create", "replace")
            counts["change"] += action == "update"
            counts["remove"] += action in ("delete", "replace")
    return {"@level": "info", "@message": f"{command}: {counts}", "type": "change_summary",
            "changes": {**counts, "operation": command}}  # fmt: skip


def diagnostic(summary: str, address: str) -> Record:
    """An error as Terraform's JSON log has it."""
    return {"@level": "error", "@message": f"Error: {summary}", "type": "diagnostic",
            "diagnostic": {"severity": "error", "summary": summary, "detail": "", "address": address}}  # fmt: skip
