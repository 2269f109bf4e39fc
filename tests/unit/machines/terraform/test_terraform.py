"""The driver against a real Terraform and terraform_data: events, errors, damage, interruption."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, LockedError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ERRORED
from provisioner.machines.terraform import binary
from provisioner.machines.terraform import workspace as terraform
from provisioner.machines.terraform.json_log import Changes, JsonLog, from_text
from provisioner.machines.terraform.workspace import Workspace

pytestmark = pytest.mark.heavy

GOOD = """
resource "terraform_data" "node" {
  for_each = toset(["a-0", "a-1"])
  input    = each.key
}
output "nodes" {
  value = { for k, v in terraform_data.node : k => v.output }
}
"""
BROKEN = """
resource "terraform_data" "node" {
  for_each = toset(["a-0"])
  provisioner "local-exec" {
    command = "echo no such disk >&2; exit 3"
  }
}
"""


def workspace(folder: Path, text: str) -> tuple[Workspace, list[Event]]:
    events: list[Event] = []
    (folder / "main.tf").write_text(text)
    initialised = Workspace(folder, binary.find(), Events(events.append), log=folder / "log")
    initialised.init()
    return initialised, events


def opened(folder: Path) -> tuple[Workspace, list[Event]]:
    """The folder as another command finds it: the Workspace is made after what has happened to its files."""
    events: list[Event] = []
    return Workspace(folder, binary.find(), Events(events.append), log=folder / "log"), events


def test_apply_streams_and_a_second_plan_is_empty(tmp_path: Path) -> None:
    space, events = workspace(tmp_path, GOOD)
    first = space.plan()
    assert first == Changes(add=2)
    assert set(first.actions) == {(f'terraform_data.node["a-{i}"]', "create") for i in range(2)}
    assert space.apply() == Changes(add=2)
    assert {e.node for e in events if e.stage == "terraform" and e.unit == "resource"} == {"a-0", "a-1"}
    assert space.outputs()["nodes"]["value"] == {"a-0": "a-0", "a-1": "a-1"}
    assert space.plan() == Changes()
    second = space.plan(replace=['terraform_data.node["a-1"]'])
    assert second == Changes(add=1, destroy=1)
    assert second.actions == (('terraform_data.node["a-1"]', "replace"),)
    assert space.destroy() == Changes(destroy=2)


FORCED = """
resource "terraform_data" "node" {
  for_each         = toset(["a-0", "a-1"])
  triggers_replace = { image = IMAGE, key = "same" }
}
resource "terraform_data" "plain" {
  triggers_replace = IMAGE
}
"""


def test_a_replacement_is_explained_by_what_forces_it(tmp_path: Path) -> None:
    space, _ = workspace(tmp_path, FORCED.replace("IMAGE", '"jammy"'))
    space.plan()
    space.apply()
    (tmp_path / "main.tf").write_text(FORCED.replace("IMAGE", '"noble"'))
    changes = space.plan()
    node, plain = 'terraform_data.node["a-0"]', "terraform_data.plain"
    assert changes.reasons[node] == changes.reasons[plain] == "cannot_update"
    assert space.forcing([node, plain]) == {node: ["image"], plain: ["triggers_replace"]}
    changes = space.plan(replace=[node])
    assert space.forcing([node]) == {node: ["image"]}


def test_an_error_names_the_resource_and_the_cause(tmp_path: Path) -> None:
    space, _ = workspace(tmp_path, BROKEN)
    space.plan()
    with pytest.raises(ProviderError) as caught:
        space.apply()
    assert 'terraform_data.node["a-0"]' in str(caught.value)
    assert "no such disk" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_text_that_is_not_hcl_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"init failed"):
        workspace(tmp_path, 'resource "x" {')


def test_init_is_done_once(tmp_path: Path) -> None:
    space, _ = workspace(tmp_path, GOOD)
    previous_time = (tmp_path / ".terraform" / "gpuprov").stat().st_mtime_ns
    space.init()
    assert (tmp_path / ".terraform" / "gpuprov").stat().st_mtime_ns == previous_time
    (tmp_path / "main.tf").write_text(GOOD + "\n")
    space.init()
    assert (tmp_path / ".terraform" / "gpuprov").stat().st_mtime_ns != previous_time


def test_half_a_state_is_replaced_by_its_backup(tmp_path: Path) -> None:
    space, events = workspace(tmp_path, GOOD)
    space.plan()
    space.apply()
    state = tmp_path / "terraform.tfstate"
    full_text = state.read_text()
    (tmp_path / "terraform.tfstate.backup").write_text(full_text)
    state.write_text(full_text[: len(full_text) // 2])
    assert space.damage() is None
    assert state.read_text() == full_text
    reopened, later_events = opened(tmp_path)  # as the next command does
    state.write_text(full_text[: len(full_text) // 2])
    assert reopened.damage() is None
    assert state.read_text() == full_text
    assert any("backup is used" in e.message for e in (*events, *later_events))


@pytest.mark.parametrize("text", ['{"version": 4, "ser', "[" * 50_000])
def test_half_a_state_without_backup_is_said(tmp_path: Path, text: str) -> None:
    workspace(tmp_path, GOOD)
    (tmp_path / "terraform.tfstate").write_text(text)
    space, _ = opened(tmp_path)
    assert "cut off" in (space.damage() or "")


@pytest.mark.parametrize("text", ["", '{"version": 3, "backend": {"ty', "\xff\xfe"])
def test_half_a_note_of_the_backend_is_made_again(tmp_path: Path, text: str) -> None:
    workspace(tmp_path, GOOD)[0].plan()
    (tmp_path / ".terraform" / "terraform.tfstate").write_bytes(text.encode("latin-1"))
    space, events = opened(tmp_path)
    space.init()
    assert space.plan().total == 2
    assert any("initialised again" in e.message for e in events)


def test_resources_have_their_addresses_and_attributes(tmp_path: Path) -> None:
    space, _ = workspace(tmp_path, GOOD + 'resource "terraform_data" "one" {}\n')
    assert space.resources() == {}
    space.plan()
    space.apply()
    resources = space.resources()
    assert sorted(resources) == sorted(space.addresses())
    assert resources['terraform_data.node["a-1"]'].attributes["output"]["value"] == "a-1"
    assert not any(resource.tainted for resource in resources.values())


def test_what_could_not_be_made_whole_is_told_apart(tmp_path: Path) -> None:
    space, _ = workspace(tmp_path, BROKEN)
    space.plan()
    with pytest.raises(ProviderError):
        space.apply()
    assert {address: resource.tainted for address, resource in space.resources().items()} == {
        'terraform_data.node["a-0"]': True
    }


def errored(folder: Path) -> Path:
    """A state that could not be saved: what was made stands there and nowhere else."""
    space, _ = workspace(folder, GOOD)
    space.plan()
    space.apply()
    (folder / "terraform.tfstate.backup").unlink(missing_ok=True)
    return (folder / "terraform.tfstate").rename(folder / ERRORED)


def test_a_state_that_could_not_be_saved_is_written_back_first(tmp_path: Path) -> None:
    file = errored(tmp_path)
    space, events = opened(tmp_path)
    with pytest.raises(ProviderError, match="could not save") as caught:
        space.save_errored(repair=False)
    assert "`gpuprov up`" in caught.value.hint and file.exists() and space.addresses() == []
    space.save_errored(repair=True)
    assert not file.exists() and list(tmp_path.glob("errored.tfstate.saved-*"))
    assert space.plan().total == 0  # nothing is made again
    assert any("written back first" in event.message for event in events)
    space.save_errored(repair=True)  # there is nothing any more


@pytest.mark.parametrize("lineage", [None, "another"])
def test_a_state_that_another_run_has_overtaken_is_put_aside(tmp_path: Path, lineage: str | None) -> None:
    space, events = workspace(tmp_path, GOOD)
    space.plan()
    space.apply()
    state = json.loads((tmp_path / "terraform.tfstate").read_text())
    previous_text = json.dumps(state | ({"lineage": lineage} if lineage else {}))
    space.plan(replace=['terraform_data.node["a-1"]'])
    space.apply()
    (tmp_path / ERRORED).write_text(previous_text)
    space.save_errored(repair=True)
    assert not (tmp_path / ERRORED).exists()
    assert [file.read_text() for file in tmp_path.glob(f"{ERRORED}.outdated-*")] == [previous_text]
    assert "is looked for by its tags" in events[-1].message
    assert space.plan() == Changes()


def test_a_state_that_still_cannot_be_saved_stops_the_run_and_stays(tmp_path: Path) -> None:
    file = errored(tmp_path)
    file.write_text(file.read_text()[:-20])
    space, _ = opened(tmp_path)
    with pytest.raises(ProviderError, match="could not be written back") as caught:
        space.save_errored(repair=True)
    assert "Keep the file" in caught.value.hint
    assert file.exists()


HELD = "Error message: resource temporarily unavailable\nLock Info:\n  ID:        ef318d28\n  Path: terraform.tfstate"
REFUSED = (
    "Error message: operation error S3: PutObject, https response error StatusCode: 400, api error ExpiredToken: x"
)


@pytest.mark.parametrize(("detail", "kind"), [(HELD, LockedError), (REFUSED, ProviderError)])
def test_a_lock_that_could_not_be_asked_for_is_held_by_nobody(detail: str, kind: type[GpuprovError]) -> None:
    log = JsonLog("plan", Events())
    diagnostic = {"severity": "error", "summary": "Error acquiring the state lock", "detail": detail}
    log.read(json.dumps({"type": "diagnostic", "diagnostic": diagnostic}))
    error = log.failure(1, "here", "")
    assert type(error) is kind
    assert ("unlock" in error.hint) == (kind is LockedError)


@pytest.mark.parametrize(("action", "changes"), [("update", True), ("create", True), ("noop", False)])
def test_a_plan_that_changes_an_output_alone_says_so(action: str, changes: bool) -> None:
    """An address that changed by itself: no resource is to be touched, and nodes.json has to follow."""
    log = JsonLog("plan", Events())
    log.read('{"type": "change_summary", "changes": {"add": 0, "change": 0, "remove": 0}}')
    log.read(json.dumps({"type": "outputs", "outputs": {"nodes": {"sensitive": False, "action": action}}}))
    assert (log.changes.total, log.changes.outputs) == (0, changes)


def test_a_log_without_json_is_read_as_diagnostics() -> None:
    """As Terraform 1.11 prints them for people: init and state have no JSON log."""
    text = (
        '╷\n│ Error: Failed to save state\n│ \n│   with module.site.aws_instance.node["a-0"],\n'
        "│   on main.tf line 4:\n│    4: x\n│ \n│ api error ExpiredToken: expired\n╵\n\n"
        "Error: second one\n\nits detail\n"
    )
    first, second = from_text(text.splitlines(keepends=True))
    assert (first.summary, first.address) == ("Failed to save state", 'module.site.aws_instance.node["a-0"]')
    assert first.detail == "api error ExpiredToken: expired"
    assert str(second) == "second one: its detail"


def test_a_state_that_never_answers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = binary.Binary((sys.executable, "-c", "import time; time.sleep(60)"), "a Terraform that waits")
    silent = Workspace(tmp_path, waits, Events())
    monkeypatch.setattr(terraform, "ASK_TIMEOUT_S", 0.2)
    for ask in (silent.addresses, silent.recorded, silent.outputs):
        with pytest.raises(ProviderError, match=r"did not end within"):
            ask()


def test_interrupt_ends_terraform_and_keeps_what_was_made(tmp_path: Path) -> None:
    space, _ = workspace(
        tmp_path,
        GOOD
        + 'resource "terraform_data" "slow" {\n depends_on = [terraform_data.node]\n'
        + ' provisioner "local-exec" {\n  command = "touch started; exec sleep 30"\n }\n}\n',
    )
    space.plan()

    def interrupt() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        space.apply()
    assert space.outputs() == {} or "nodes" in space.outputs()
    second = space.plan()
    assert second.add >= 1  # the slow one is still wanted, the fast ones are known
    assert second.add < 3


def test_the_binary_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("terraform", "tofu", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(binary.ENVIRONMENT, str(tmp_path / "mine"))
    assert binary.find(str(tmp_path / "tofu")).origin == "--terraform"
    assert binary.find().origin == binary.ENVIRONMENT
    monkeypatch.delenv(binary.ENVIRONMENT)
    assert binary.find().argv == (str(tmp_path / "terraform"),)
    (tmp_path / "terraform").unlink()
    assert binary.find().argv == (str(tmp_path / "tofu"),)
    with pytest.raises(GpuprovError, match="not a program"):
        binary.find("/no/such/terraform")


def test_without_any_terraform_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(binary.ENVIRONMENT, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GpuprovError, match="no Terraform") as caught:
        binary.find()
    assert ".[terraform]" in caught.value.hint


def test_a_place_for_state_that_came_after_a_plan_is_taken(tmp_path: Path) -> None:
    local = 'terraform {{\n  backend "local" {{\n    path = "{path}"\n  }}\n}}\n'
    space, _ = workspace(tmp_path, local.format(path="terraform.tfstate") + GOOD)
    assert space.plan() == Changes(add=2)
    (tmp_path / "main.tf").write_text(local.format(path="elsewhere/terraform.tfstate") + GOOD)
    space.init()
    assert space.plan() == Changes(add=2)


def test_another_place_for_a_state_that_is_there_is_an_error_with_a_step(tmp_path: Path) -> None:
    shared = 'terraform {{\n  backend "http" {{\n    address = "http://127.0.0.1:9/{name}"\n  }}\n}}\n'
    (tmp_path / ".terraform").mkdir()
    noted = {"version": 3, "serial": 1, "lineage": "x"}
    noted["backend"] = {"type": "http", "config": {"address": "http://127.0.0.1:9/old"}, "hash": 1}
    (tmp_path / ".terraform" / "terraform.tfstate").write_text(json.dumps(noted))
    with pytest.raises(ProviderError) as caught:
        workspace(tmp_path, shared.format(name="new") + GOOD)
    assert "names another place" in caught.value.message
    assert "put `state` back as it was" in caught.value.hint


def test_a_provider_adds_to_the_environment_of_every_process(tmp_path: Path) -> None:
    """As credentials go to Terraform: in no file and in no argument."""
    (tmp_path / "main.tf").write_text('variable "key" { type = string }\noutput "seen" { value = var.key }\n')
    calls: list[int] = []

    def environment() -> dict[str, str]:
        calls.append(1)
        return {"TF_VAR_key": "of the provider"}

    space = Workspace(tmp_path, binary.find(), Events(), environment=environment)
    space.init()
    call_count = len(calls)
    space.plan()
    space.apply()
    assert space.outputs()["seen"]["value"] == "of the provider"
    assert 0 < call_count < len(calls)
