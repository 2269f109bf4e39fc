"""Which commands Terraform is given and what its answers mean: a script in its place writes down what it is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import LockedError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ERRORED
from provisioner.machines.terraform import workspace as terraform
from provisioner.machines.terraform.binary import Binary
from provisioner.machines.terraform.json_log import Changes
from provisioner.machines.terraform.workspace import Resource, Workspace

SCRIPT = """\
here=$(dirname "$0")
name=$1
[ "$1" = state ] && name="state-$2"
printf '%s\\n' "$*" >> "$here/calls"
env > "$here/environment"
[ -e "$here/$name.sh" ] && . "$here/$name.sh"
[ -e "$here/$name.err" ] && cat "$here/$name.err" >&2
[ -e "$here/$name.out" ] && cat "$here/$name.out"
[ -e "$here/$name.status" ] && exit "$(cat "$here/$name.status")"
exit 0
"""
MAIN = 'terraform {\n  required_providers {\n    aws = { source = "hashicorp/aws", version = "~> 6" }\n  }\n}\n'
S3 = MAIN + 'terraform {\n  backend "s3" {\n  }\n}\n'
LOCAL = MAIN + 'terraform {\n  backend "local" {\n  }\n}\n'


class Fake:
    """A workspace in `folder`, and the script's answers beside it. `events_seen`: the events."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.answers = root / "workspace", root / "answers"
        self.folder.mkdir()
        self.answers.mkdir()
        script = self.answers / "terraform"
        script.write_text(SCRIPT)
        self.events_seen: list[Event] = []
        self.log = root / "log"
        self.space = Workspace(
            self.folder, Binary(("sh", str(script)), ""), Events(self.events_seen.append), log=self.log,
            environment=lambda: environment,
        )  # fmt: skip
        self.main(LOCAL)

    def main(self, text: str) -> None:
        (self.folder / "main.tf").write_text(text)

    def answer(self, name: str, out: str = "", *, err: str = "", status: int = 0, run: str = "") -> None:
        for kind, text in (("out", out), ("err", err), ("status", str(status)), ("sh", run)):
            (self.answers / f"{name}.{kind}").write_text(text)

    def calls(self) -> list[str]:
        file = self.answers / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def messages(self) -> list[tuple[str, str]]:
        return [(event.kind, event.message) for event in self.events_seen]

    def environment(self) -> dict[str, str]:
        rows = (line.split("=", 1) for line in (self.answers / "environment").read_text().splitlines() if "=" in line)
        return {row[0]: row[1] for row in rows}


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path, {"AWS_PROFILE": "fleet"})


def summary(**counts: int) -> str:
    return json.dumps({"type": "change_summary", "changes": counts}) + "\n"


# commands


def test_a_plan_is_written_to_a_file_that_an_apply_does_and_removes(fake: Fake) -> None:
    fake.answer("plan", summary(add=2, change=1, remove=3))
    assert fake.space.plan(replace=["a", 'b["c"]']) == Changes(2, 1, 3)
    (command_line,) = fake.calls()
    assert command_line.split()[0] == "plan"
    assert {"-json", "-input=false", "-lock-timeout=60s", "-out=plan.bin", "-replace=a"} <= set(command_line.split())
    (fake.folder / "plan.bin").touch()
    fake.answer("apply", summary(add=2))
    assert fake.space.apply() == Changes(add=2)
    (command_line,) = fake.calls()
    assert {"-json", "-input=false", "-lock-timeout=60s", "plan.bin"} <= set(command_line.split())
    assert not (fake.folder / "plan.bin").exists()


def test_a_plan_replaces_nothing_that_is_not_named(fake: Fake) -> None:
    fake.answer("plan", summary())
    fake.space.plan()
    assert "-replace" not in fake.calls()[0]


def test_a_plan_that_failed_to_be_applied_is_not_applied_again(fake: Fake) -> None:
    (fake.folder / "plan.bin").touch()
    fake.answer("apply", err="Error: no capacity\n", status=1)
    with pytest.raises(ProviderError, match=r"terraform apply failed: .*no capacity") as caught:
        fake.space.apply()
    assert caught.value.where == str(fake.folder)
    assert str(fake.log) in caught.value.hint
    assert not (fake.folder / "plan.bin").exists()


def test_a_plan_that_terraform_has_removed_itself_is_no_error(fake: Fake) -> None:
    fake.answer("apply", summary(), run="rm -f plan.bin")
    assert fake.space.apply() == Changes()


def test_everything_is_destroyed_or_what_is_named(fake: Fake) -> None:
    fake.answer("destroy", summary(remove=4))
    assert fake.space.destroy() == Changes(destroy=4)
    assert fake.space.destroy(only=["a"]) == Changes(destroy=4)
    full_command, part = (set(command_line.split()) for command_line in fake.calls())
    flags = {"destroy", "-json", "-input=false", "-auto-approve", "-lock-timeout=60s"}
    assert flags <= full_command and not [flag for flag in full_command if flag.startswith("-target")]
    assert flags | {"-target=a"} <= part


def test_a_machine_is_taken_into_the_state_and_out_of_it(fake: Fake) -> None:
    fake.space.adopt("node.a", "i-1")
    fake.space.forget("node.b")
    adopt, forget = fake.calls()
    assert adopt.split()[0] == "import" and adopt.split()[-2:] == ["node.a", "i-1"]
    assert {"-input=false", "-no-color", "-lock-timeout=60s"} <= set(adopt.split())
    assert forget == "state rm -lock-timeout=60s node.b"


def test_terraform_asks_nobody_and_has_the_credentials_of_the_provider(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(tmp_path / "missing"))
    fake.space.addresses()
    names = ("TF_IN_AUTOMATION", "TF_INPUT", "CHECKPOINT_DISABLE", "AWS_PROFILE", terraform.keeper.MAY_FINISH)
    assert [fake.environment().get(name) for name in names] == ["1", "0", "1", "fleet", "60.0"]
    assert "TF_CLI_CONFIG_FILE" not in fake.environment()
    (tmp_path / "missing").touch()
    fake.space.addresses()
    assert fake.environment()["TF_CLI_CONFIG_FILE"] == str(tmp_path / "missing")
    monkeypatch.delenv("TF_CLI_CONFIG_FILE")
    fake.space.plan()
    assert [fake.environment().get(name) for name in ("TF_INPUT", "AWS_PROFILE")] == ["0", "fleet"]
    assert "TF_CLI_CONFIG_FILE" not in fake.environment()


def test_the_log_has_what_terraform_printed_on_both_streams(fake: Fake) -> None:
    fake.answer("plan", summary() + "no end of line", err="complaint\n")
    fake.space.plan()
    assert fake.log.read_text().splitlines() == [summary().strip(), "no end of line", "complaint"]


# the state


def state(*resources: dict[str, Any]) -> str:
    return json.dumps({"version": 4, "resources": list(resources)})


NODE = {"mode": "managed", "module": "module.machines", "type": "node", "name": "this"}


def test_resources_have_the_addresses_that_terraform_writes(fake: Fake) -> None:
    instances = [
        {"index_key": "a-0", "attributes": {"id": "i-0"}},
        {"index_key": "a-1", "attributes": {"id": "i-1"}, "status": "tainted"},
    ]
    single = {"mode": "managed", "type": "vpc", "name": "this", "instances": [{"attributes": None}]}
    numbered = {"mode": "managed", "type": "disk", "name": "d", "instances": [{"index_key": 0, "attributes": {}}]}
    data = {"mode": "data", "type": "image", "name": "i", "instances": [{"attributes": {"id": "ami-1"}}]}
    fake.answer("state-pull", state({**NODE, "instances": instances}, single, numbered, data))
    assert fake.space.resources() == {
        'module.machines.node.this["a-0"]': Resource({"id": "i-0"}, False),
        'module.machines.node.this["a-1"]': Resource({"id": "i-1"}, True),
        "vpc.this": Resource({}, False),
        "disk.d[0]": Resource({}, False),
    }
    assert fake.space.recorded() == {"i-0", "i-1"}
    assert fake.calls() == ["state pull", "state pull"]


def test_where_there_is_no_state_nothing_is_known(fake: Fake) -> None:
    assert (fake.space.resources(), fake.space.recorded(), fake.space.outputs()) == ({}, set(), {})
    fake.answer("state-list", err="No state file was found!\n", status=1)
    assert fake.space.addresses() == []
    fake.answer("state-list", err="Error: access denied\n", status=1)
    with pytest.raises(ProviderError, match="access denied"):
        fake.space.addresses()


def test_addresses_are_lines(fake: Fake) -> None:
    fake.answer("state-list", "node.a\n\n  node.b \n")
    assert fake.space.addresses() == ["node.a", "node.b"]


def test_outputs_are_read(fake: Fake) -> None:
    fake.answer("output", '{"nodes": {"value": {}}}')
    assert fake.space.outputs() == {"nodes": {"value": {}}}
    assert fake.calls() == ["output -json"]


def test_a_question_that_fails_is_an_error_with_terraforms_words(fake: Fake) -> None:
    fake.answer("state-pull", err="Error: Failed to load state\n\nAccessDenied\n", status=1)
    with pytest.raises(ProviderError, match=r"terraform state pull failed: .*Failed to load state") as caught:
        fake.space.resources()
    assert caught.value.diagnostics[0].summary == "Failed to load state"
    assert "Error:" not in caught.value.message
    assert caught.value.where == str(fake.folder)
    fake.answer("state-pull", err="x" * 600 + "end\n", status=1)
    with pytest.raises(ProviderError) as caught:
        fake.space.resources()
    assert caught.value.message == "terraform state pull failed: " + "x" * 497 + "end"


def test_a_state_that_another_terraform_holds_is_locked(fake: Fake) -> None:
    lines = "Error: Error acquiring the state lock\n\nLock Info:\n  ID:        7f\n  Who: ben\n"
    fake.answer("state-rm", err=lines, status=1)
    with pytest.raises(LockedError, match="terraform state rm"):
        fake.space.forget("node.a")


def test_a_question_that_is_not_answered_ends(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terraform, "ASK_TIMEOUT_S", 0.2)
    fake.answer("output", run="exec sleep 30")
    with pytest.raises(ProviderError, match="terraform output -json did not end within 0 s"):
        fake.space.outputs()


def errored(fake: Fake) -> Path:
    file = fake.folder / ERRORED
    file.write_text("{}")
    return file


def test_a_state_that_could_not_be_saved_is_written_back_before_anything_else(fake: Fake) -> None:
    fake.space.save_errored(repair=True)
    assert fake.calls() == [], "there is none"
    file = errored(fake)
    fake.space.save_errored(repair=True)
    assert fake.calls() == [f"state push {ERRORED}"]
    assert not file.exists()
    assert [path.name for path in fake.folder.glob(f"{ERRORED}.saved-*")]
    assert [kind for kind, _ in fake.messages()] == ["warning"]


def test_a_plan_does_not_write_a_state_back(fake: Fake) -> None:
    file = errored(fake)
    with pytest.raises(ProviderError, match="could not save Terraform's state"):
        fake.space.save_errored(repair=False)
    assert (fake.calls(), file.exists()) == ([], True)


def test_a_state_that_cannot_be_written_back_is_kept(fake: Fake) -> None:
    file = errored(fake)
    fake.answer("state-push", err="Error: the bucket is not reachable\n", status=1)
    with pytest.raises(ProviderError, match=r"could not be written back: .*the bucket is not reachable") as caught:
        fake.space.save_errored(repair=True)
    assert file.exists()
    assert [item.summary for item in caught.value.diagnostics] == ["the bucket is not reachable"]


def test_a_state_that_was_never_written_is_not_damaged(fake: Fake) -> None:
    (fake.folder / "terraform.tfstate.backup").write_text("{}")
    assert fake.space.damage() is None
    assert not (fake.folder / "terraform.tfstate").exists()


@pytest.mark.parametrize("text", ["", " \n", "{}"])
def test_a_state_that_terraform_can_read_is_not_damaged(fake: Fake, text: str) -> None:
    (fake.folder / "terraform.tfstate").write_text(text)
    assert fake.space.damage() is None
    assert (fake.folder / "terraform.tfstate").read_text() == text
    assert fake.events_seen == []


def test_a_backup_is_put_back_only_where_that_is_allowed(fake: Fake) -> None:
    file, backup = fake.folder / "terraform.tfstate", fake.folder / "terraform.tfstate.backup"
    file.write_text('{"half')
    assert "there is no backup" in (fake.space.damage() or "")
    backup.write_text('{"half')
    assert "there is no backup" in (fake.space.damage() or "")
    backup.write_text('{"whole": 1}')
    assert "`gpuprov up` puts its backup in its place" in (fake.space.damage(repair=False) or "")
    assert (file.read_text(), fake.events_seen) == ('{"half', [])
    assert fake.space.damage() is None
    assert file.read_text() == '{"whole": 1}'
    assert [kind for kind, _ in fake.messages()] == ["warning"]


# init


def test_a_module_is_initialised_once_and_again_when_it_or_its_checksums_change(fake: Fake) -> None:
    fake.space.init()
    fake.space.init()
    (command_line,) = fake.calls()
    assert command_line.split()[0] == "init" and {"-input=false", "-no-color"} <= set(command_line.split())
    assert "-reconfigure" not in command_line and "-force-copy" not in command_line
    assert (fake.folder / ".terraform").stat().st_mode & 0o777 == 0o700
    fake.main(LOCAL + "\n")
    fake.space.init()
    assert len(fake.calls()) == 1
    lock = 'provider "registry.terraform.io/hashicorp/aws" {\n  hashes = ["h1:a"]\n}\n'
    (fake.folder / ".terraform.lock.hcl").write_text(lock)
    fake.space.init()
    fake.space.init()
    assert len(fake.calls()) == 1


def test_another_terraform_initialises_again(fake: Fake) -> None:
    fake.space.init()
    other = Workspace(fake.folder, Binary(("sh", str(fake.answers / "terraform"), "-x"), ""), Events())
    other.init()
    assert len(fake.calls()) == 2


def test_an_init_that_failed_is_done_again(fake: Fake) -> None:
    fake.answer("init", err="Error: Failed to install provider\n", status=1)
    for _ in range(2):
        with pytest.raises(ProviderError, match="terraform init failed"):
            fake.space.init()
    assert len(fake.calls()) == 2


def test_a_state_moves_to_the_backend_that_cluster_yaml_names(fake: Fake) -> None:
    (fake.folder / "terraform.tfstate").write_text("{}")
    fake.main(S3)
    with pytest.raises(ProviderError, match=r"cluster\.yaml names another place"):
        fake.space.init(repair=False)
    assert fake.calls() == []
    fake.space.init()
    assert "-force-copy" in fake.calls()[0]
    assert (fake.folder / "terraform.tfstate.moved").exists() and not (fake.folder / "terraform.tfstate").exists()
    assert fake.messages() == [("log", "the state has moved to the backend that cluster.yaml names")]


def test_no_state_moves_where_there_is_none(fake: Fake) -> None:
    fake.main(S3)
    fake.space.init(repair=False)
    assert "-force-copy" not in fake.calls()[0]
    assert fake.events_seen == []


def test_a_state_of_a_local_backend_stays(fake: Fake) -> None:
    (fake.folder / "terraform.tfstate").write_text("{}")
    fake.space.init(repair=False)
    assert "-force-copy" not in fake.calls()[0]
    assert (fake.folder / "terraform.tfstate").exists()


@pytest.mark.parametrize(
    ("note", "state", "reconfigured"),
    [
        ('{"backend": {"type": "local"}}', False, True),
        ('{"backend": {"type": "local"}}', True, False),
        ('{"backend": {"type": "s3"}}', False, False),
        ('{"backend": null}', False, False),
        ("[]", False, False),
        ("{}", False, False),
        ('{"backend": {}}', False, False),
        (None, False, False),
    ],
)
def test_a_folder_where_only_a_plan_was_made_takes_another_backend(
    fake: Fake, note: str | None, state: bool, reconfigured: bool
) -> None:
    (fake.folder / ".terraform").mkdir()
    if note is not None:
        (fake.folder / ".terraform" / "terraform.tfstate").write_text(note)
    if state:
        (fake.folder / "terraform.tfstate").write_text("{}")
    fake.space.init()
    assert ("-reconfigure" in fake.calls()[0]) == reconfigured


def test_a_backend_that_moved_elsewhere_is_explained(fake: Fake) -> None:
    text = "Error: Backend configuration changed\n\nuse terraform init -migrate-state\nError: another\n"
    fake.answer("init", err=text, status=1)
    with pytest.raises(ProviderError, match=r"`state` of cluster\.yaml names another place than the one"):
        fake.space.init()


def lock_file(fake: Fake, *names: str) -> None:
    (fake.folder / ".terraform.lock.hcl").write_text("".join(f'provider "{name}" {{\n}}\n' for name in names))


@pytest.mark.parametrize("registry", ["registry.terraform.io", "registry.opentofu.org"])
def test_the_providers_of_the_root_module_are_run(fake: Fake, registry: str) -> None:
    lock_file(fake, f"{registry}/hashicorp/aws")
    fake.space.init()
    assert len(fake.calls()) == 1


@pytest.mark.parametrize("name", ["registry.terraform.io/evil/aws", "evil.example/hashicorp/aws", "hashicorp/aws"])
def test_a_provider_that_the_root_module_does_not_name_is_not_run(fake: Fake, name: str) -> None:
    lock_file(fake, "registry.terraform.io/hashicorp/aws", name)
    with pytest.raises(ProviderError, match=f"asks for the provider {name}"):
        fake.space.init()
    assert fake.calls() == []


def test_a_lock_file_that_is_no_text_hides_no_provider(fake: Fake) -> None:
    (fake.folder / ".terraform.lock.hcl").write_bytes(b'\xff\nprovider "registry.terraform.io/evil/aws" {\n}\n')
    with pytest.raises(ProviderError, match="which this cluster has no use for"):
        fake.space.init()


def test_a_provider_that_the_state_brings_is_not_run(fake: Fake) -> None:
    """`init` fetches it and notes it in the lock file."""
    fake.answer("init", run="printf 'provider \"registry.terraform.io/evil/aws\" {\\n}\\n' > .terraform.lock.hcl")
    with pytest.raises(ProviderError, match=r"asks for the provider registry\.terraform\.io/evil/aws"):
        fake.space.init()
    assert not (fake.folder / ".terraform" / "gpuprov").exists()


@pytest.mark.parametrize("text", ["", '{"version": 3', "[" * 50_000])
def test_half_a_note_of_the_backend_is_removed_and_terraform_is_initialised_again(fake: Fake, text: str) -> None:
    fake.space.init()
    note = fake.folder / ".terraform" / "terraform.tfstate"
    note.write_text(text)
    fake.space.init()
    assert len(fake.calls()) == 2
    assert not note.exists()
    assert [kind for kind, _ in fake.messages()] == ["warning"]


def test_half_a_note_of_a_folder_that_was_never_initialised_is_removed(fake: Fake) -> None:
    (fake.folder / ".terraform").mkdir()
    (fake.folder / ".terraform" / "terraform.tfstate").write_text("{")
    fake.space.init()
    assert len(fake.calls()) == 1


def test_a_whole_note_of_the_backend_is_kept(fake: Fake) -> None:
    fake.space.init()
    note = fake.folder / ".terraform" / "terraform.tfstate"
    note.write_text("{}")
    fake.space.init()
    assert (len(fake.calls()), note.exists(), fake.events_seen) == (1, True, [])


def test_terraform_is_asked_in_its_folder_and_what_it_prints_need_be_no_text(fake: Fake) -> None:
    fake.answer("output", run='pwd > where; printf \'\\377\' >&2; printf \'{"name": {"value": "\\303\\244\\377"}}\'')
    assert fake.space.outputs() == {"name": {"value": "ä�"}}
    assert (fake.folder / "where").read_text().strip() == str(fake.folder)


def test_without_a_state_a_backup_is_nothing_to_put_back(fake: Fake) -> None:
    file = fake.folder / "terraform.tfstate"
    file.write_text("{}")
    assert fake.space.damage(repair=False) is None
