"""Attacks that never got through, and must not begin to: an id for each. Six groups: what a node answers, cluster.yaml,
a bundle, the network of a lock, the bucket of a shared state, this machine.

Where another file proves one already, ELSEWHERE names the test, and a test here sees that it is still there. Those
that did get through once are beside this file (test_hostile_*.py, test_quoting.py, test_nothing_is_left.py).
"""

from __future__ import annotations

import ast
import base64
import json
import os
import stat
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common.errors import GpuprovError, InputError
from provisioner.common.image_reference import parse
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.machines.terraform.hcl import hcl
from provisioner.sandbox.keys import keys
from provisioner.stack import registry
from provisioner.stack.fetch import Fetch
from provisioner.transport import ssh_keys
from provisioner.verify.bundle import Bundle
from provisioner.verify.collect import collect
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.probe.runner import MARK
from provisioner.verify.request import ProbeRequest
from tests.support.vendors import Reply, serve

UNIT = Path(__file__).parents[1]
FACTS = "security/test_hostile_facts.py"
CONNECTION = (FACTS, "test_no_variable_of_the_connection_is_what_the_node_says")
INJECTION = ("spec/test_injection.py", "test_payload_in_a_value")
NAMES = ("security/test_hostile_names.py", "test_a_path_in_cluster_yaml_is_refused_at_its_line")
CONFIGURATION = ("transport/test_ssh.py", "test_what_is_no_node_or_key_never_becomes_configuration")
ELSEWHERE = {
    "node: escapes and bidi in a terminal": (
        "verify/test_control_characters.py",
        "test_no_control_of_a_bundle_comes_out",
    ),
    "node: html": ("verify/test_verify_report.py", "test_what_tools_print_cannot_break_a_report"),
    "node: html from outside (CSP)": (
        "verify/test_verify_report.py",
        "test_the_page_needs_nothing_from_outside_and_its_tables_are_named",
    ),
    "node: junit": ("verify/test_verify_report.py", "test_junit_counts_what_it_holds"),
    "node: what exec prints": ("verify/test_control_characters.py", "test_what_prints_is_given_nothing_else"),
    "node: what collect keeps": ("verify/test_bundle.py", "test_what_is_written_is_what_is_read"),
    "node: templates in facts": (FACTS, "test_no_variable_of_a_role_is_what_the_node_says"),
    "node: TrustedAsTemplate": (FACTS, "test_no_text_of_the_inventory_is_a_template"),
    "node: a reason in a hook's environment": (
        "lifecycle/test_hooks.py",
        "test_a_reason_is_one_printable_line_that_no_shell_reads",
    ),
    "cluster.yaml: {{ }} in a text": INJECTION,
    "cluster.yaml: components": NAMES,
    "cluster.yaml: images": NAMES,
    "cluster.yaml: suite": ("sandbox/test_sandbox_assets.py", "test_a_suite_can_not_lead_out_of_its_repository"),
    "cluster.yaml: user": INJECTION,
    "cluster.yaml: ssh_key": INJECTION,
    "cluster.yaml: anchors": ("spec/test_yaml.py", "test_alias_bomb_is_refused_at_each_anchor"),
    "cluster.yaml: lists in lists": ("spec/test_yaml.py", "test_bytes"),
    "cluster.yaml: blocks in blocks": ("spec/test_yaml.py", "test_bytes"),
    "cluster.yaml: a pipe": ("spec/test_yaml.py", "test_a_pipe_without_a_writer"),
    "bundle: a probe.json that is a link": ("verify/test_bundle.py", "test_a_status_file_that_is_a_link_is_refused"),
    "network: an endless body": ("stack/test_registry.py", "test_a_manifest_that_is_too_long"),
    "network: Retry-After": ("stack/test_index.py", "test_a_wait_that_is_longer_than_the_deadline_is_not_begun"),
    "network: arm64": ("stack/test_registry.py", "test_what_is_no_image_for_the_nodes"),
    "network: another digest": ("stack/test_registry.py", "test_a_digest_that_is_not_the_content_s"),
    "network: a realm of the cloud's metadata": (
        "stack/test_registry.py",
        "test_a_token_service_without_tls_gets_nothing",
    ),
    "network: a signature that was taken away": ("stack/test_index.py", "test_what_is_not_trusted"),
    "s3: foreign paths": ("lifecycle/sharing/test_shared_files.py", "test_nothing_is_written_that_is_never_shared"),
    "s3: an id that is a command (ssm)": (
        "machines/providers/test_aws_provider.py",
        "test_ssh_that_is_carried_opens_no_port_and_asks_nobody_where_it_runs",
    ),
    "s3: an id that is an option (ssm)": (
        "security/test_hostile_lock.py",
        "test_no_field_of_a_node_is_a_template_a_path_or_an_option",
    ),
    "s3: an address": CONFIGURATION,
    "s3: a pin": CONFIGURATION,
    "s3: a node's name": CONFIGURATION,
    "s3: a key in what is shared": ("lifecycle/sharing/test_shared_files.py", "test_no_key_is_ever_shared"),
    "local: folders below /tmp": ("transport/test_ssh.py", "test_a_socket_folder_that_others_have_made_is_not_used"),
    "local: open ports": ("../sandbox/test_up.py", "test_no_port_of_a_node_is_open_beyond_this_machine"),
}
ELSEWHERE |= {
    f"node: {name} as a fact": CONNECTION for name in ("ansible_connection", "host", "become_exe", "shell", "ssh args")
}
ELSEWHERE |= {
    "local: a link in the place of a temporary file": (
        "security/test_foreign_folders.py", "test_a_file_that_is_swapped_for_a_link_while_it_is_written",
    ),
    "bundle: a size that is only claimed": (
        "security/test_hostile_archives.py", "test_a_size_that_an_archive_only_claims_is_not_read",
    ),
    "bundle: compressed members": (
        "security/test_hostile_archives.py", "test_compressed_members_are_paid_from_the_budget_of_all",
    ),
    "bundle: a Redfish tree without an end": ("security/test_hostile_redfish_trees.py", "test_one_file"),
    "PR: a path without an end": (
        "security/test_hostile_paths.py", "test_validate_reads_regular_files_within_bounds",
    ),
    "PR: a file of secrets as inventory": ("security/test_hostile_paths.py", "test_no_text_of_an_inventory_is_shown"),
    "netboot: the first claim of a machine": (
        "machines/netboot/test_netboot_answers.py",
        "test_who_claims_a_machine_without_a_serial_gets_nothing_and_locks_nobody_out",
    ),
    "local: the name of the folder of sockets": (
        "transport/test_ssh.py", "test_nobody_can_tell_the_name_of_the_folder_of_sockets",
    ),
    "bucket: a page": ("security/test_hostile_bucket.py", "test_no_page_comes_from_a_store"),
    "bucket: mounts elsewhere": ("security/test_hostile_output.py", "test_a_mount_leads_nowhere_else"),
    "bundle: a line of its own": ("security/test_hostile_output.py", "test_a_name_in_a_bundle_is_one_line"),
    "scanner: a nested report": ("security/test_hostile_output.py", "test_a_scanners_report_without_an_end_is_none"),
    "node: output without an end": (
        "security/test_hostile_output.py", "test_output_without_an_end_is_cut_and_the_command_goes_on",
    ),
    "MAAS: a redirect": ("security/test_hostile_cloud_answers.py", "test_no_redirect_is_followed"),
    "console: megabytes": ("security/test_hostile_console.py", "test_a_console_of_four_megabytes_is_read_in_one_pass"),
    "repository: another suite": ("stack/test_substitution.py", "test_a_release_of_another_suite_is_not_this_one"),
}  # fmt: skip
"""Attack → the file below tests/unit that proves it, and its test."""


@pytest.mark.parametrize("attack", ELSEWHERE)
def test_what_another_file_proves_is_still_there(attack: str) -> None:
    file, name = ELSEWHERE[attack]
    tree = ast.parse((UNIT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# What a node answers. The node is a program on this machine; `collect` is what reaches every real one.


def answer(document: Any) -> str:
    """A node's program that gives this as the probe's answer."""
    text = document if isinstance(document, str) else json.dumps(document)
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    return f"import sys; sys.stdout.write({MARK!r} + {packed!r} + chr(10))"


def file(name: str, text: str, **status: Any) -> str:
    return answer({"files": {name: {"text": text, "rc": 0, **status}}, "collected": 1e9, "seconds": 1.0})


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    + "]><nvidia_smi_log><gpu>&a11;</gpu></nvidia_smi_log>"
)
OUTSIDE = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log>&x;</nvidia_smi_log>'
)
DEEP_XML = "<nvidia_smi_log>" + "<a>" * 100_000
ANSWERS = {
    "a zip bomb": "import base64, sys, zlib; z = zlib.compressobj(); "
    "b = b''.join(z.compress(bytes(1 << 20)) for _ in range(256)) + z.flush(); "
    f"print({MARK!r} + base64.b64encode(b).decode())",
    "a path out of the bundle": file("../../out", "x"),
    "an absolute path": file("/tmp/gpuprov-held-out", "x"),
    "a path through the bundle": file("nvidia-smi.xml/../../out", "x"),
    "nesting": answer("[" * 100_000),
    "an integer of 5000 digits": answer('{"collected": ' + "9" * 5000 + "}"),
    "numbers and texts that are missing": answer(
        '{"files": {"topo.txt": {"text": 5, "rc": "x", "seconds": "y"}, "x": 1}}'
    ),
    "laughs": file("nvidia-smi.xml", LAUGHS),
    "deep XML": file("nvidia-smi.xml", DEEP_XML),
    "a file of this machine (XXE)": file("nvidia-smi.xml", OUTSIDE),
    "an endless answer": "import sys\nwhile True: sys.stdout.buffer.write(b'0' * (1 << 20))",
    "a dripping answer": "import time\nwhile True: print('x', end='', flush=True); time.sleep(0.05)",
}


@pytest.mark.parametrize("attack", ANSWERS)
def test_a_node_costs_itself_alone(attack: str, tmp_path: Path) -> None:
    programs = {"bad": ANSWERS[attack], "good": file("kernel.txt", "6.8.0-1")}
    targets = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    bundles = collect(targets, ProbeRequest({"kernel.txt": 5}), deadline_s=3 if "dripping" in attack else 30)
    assert bundles["good"].files["kernel.txt"].text == "6.8.0-1"
    assert not bundles["bad"].files.keys() - {"nvidia-smi.xml", "topo.txt"}
    facts = read(bundles["bad"])
    assert not facts.gpus
    assert "root:" not in json.dumps(facts_document(facts))
    bundles["bad"].write(tmp_path / "kept")
    assert {path.name for path in tmp_path.rglob("*")} <= {"kept", "probe.json", "nvidia-smi.xml", "topo.txt"}
    assert not Path("/tmp/gpuprov-held-out").exists()


# cluster.yaml, as a pull request brings it.

YAML = """\
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge}}
access: {allow: [203.0.113.0/24]}
"""
OWN = "stack: {repositories: {cuda: {fingerprint: " + "A" * 40 + ", "
LINES = {
    "file:// in uri": OWN + "uri: 'file:///etc/'}}}",
    "{{ }} in uri": OWN + "uri: 'https://h/{{ x }}'}}}",
    "{os.x} in uri": OWN + "uri: 'https://h/{os.__class__}'}}}",
    "file:// in key": OWN + "key: 'file:///etc/shadow'}}}",
    "{os.x} in suite": OWN + "suite: '{os.x}'}}}",
    "a tag": "stack: {driver: !!python/object/apply:os.system [id]}",
    "another tag": "stack: !include /etc/shadow",
    "an anchor": "stack: &a {driver: '580'}",
    "scratch ..": "storage: {scratch: /scratch/../../etc}",
    "a user that is an option": "access: {user: -oProxyCommand=id}",
    "a name that is a path": "groups: {../x: {machine: p4d.24xlarge}}",
    "a textfile that is a command": "monitoring: {health_check: {textfile: '/x.prom; id'}}",
    "a timer that is a command": "monitoring: {health_check: {every: '1m\\nExecStart=/bin/id'}}",
}


@pytest.mark.parametrize("attack", LINES)
def test_a_line_of_cluster_yaml_is_refused_where_it_stands(attack: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(YAML + LINES[attack] + "\n")
    with pytest.raises(InputError) as caught:
        spec.load(tmp_path / "cluster.yaml")
    assert 5 in {problem.line for problem in caught.value.problems}


def test_a_cluster_yaml_that_is_a_link_to_a_secret_shows_nothing_of_it(tmp_path: Path) -> None:
    for text in (
        "root:$6$secret:19000:0:99999:7:::\n", "root:*:1::::::\nx:$y$secret:19000:0:99999:7:::\n",
        "secret\n", "A=secret\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n", "[default]\nx = secret\n",
        "machine h login l password secret\n",
        '{"auths": {"h": {"auth": "secret"}}}',
    ):  # fmt: skip
        (tmp_path / "shadow").write_text(text)
        (tmp_path / "cluster.yaml").unlink(missing_ok=True)
        (tmp_path / "cluster.yaml").symlink_to(tmp_path / "shadow")
        with pytest.raises(InputError) as caught:
            spec.load(tmp_path / "cluster.yaml")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ['${file("/etc/shadow")}', '"}\nresource "x" "y" {', "%{ for x in y }", "\\", "\0"])
def test_hcl_in_an_image_is_a_text(text: str) -> None:
    written = hcl(text)
    assert written.startswith('"')
    assert written.endswith('"')
    assert "\n" not in written
    bare = written.replace("$${", "").replace("%%{", "").replace('\\"', "").replace("\\\\", "")
    assert "${" not in bare
    assert "%{" not in bare
    assert '"' not in bare[1:-1]


@pytest.mark.parametrize("command", ["validate FILE", "plan FILE --no-sandbox", "lock FILE --explain driver"])
@pytest.mark.parametrize("attack", ["hooks and checks", "modules beside the file"])
def test_what_only_looks_runs_nothing_of_a_pull_request(command: str, attack: str, tmp_path: Path) -> None:
    ran, code = tmp_path / "ran", "open({!r}, 'w').write('x')\n".format(str(tmp_path / "ran"))
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_x.py").write_text(code)
    text = YAML
    if attack == "hooks and checks":
        text += f"hooks: {{drain: 'touch {ran}', resume: 'touch {ran}'}}\nverify: {{checks: [checks]}}\n"
    else:
        for name in ("json", "yaml", "provisioner", "typer", "sitecustomize", "conftest", "pytest"):
            (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "cluster.yaml").write_text(text)
    (tmp_path / "cluster.lock").write_text("version: 3\nrequest: {}\nsimulated: false\ngroups: {}\n")
    arguments = [str(tmp_path / "cluster.yaml") if argument == "FILE" else argument for argument in command.split()]
    done = subprocess.run(
        [Path(sys.executable).parent / "gpuprov", *arguments], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert not ran.exists()


# A bundle, as somebody sends it.


def sparse(folder: Path) -> None:
    with (folder / "dmesg.txt").open("wb") as stream:
        stream.truncate(50 << 30)


BUNDLES: Mapping[str, Callable[[Path], object]] = {
    "a link to a file": lambda folder: (folder / "dmesg.txt").symlink_to("/etc/passwd"),
    "a link to a folder": lambda folder: (folder / "topo.txt").symlink_to("/etc"),
    "a pipe": lambda folder: os.mkfifo(folder / "dmesg.txt"),
    "a device": lambda folder: (folder / "dmesg.txt").symlink_to("/dev/zero"),
    "a directory": lambda folder: (folder / "dmesg.txt").mkdir(),
    "50 GB that are missing": sparse,
    "XXE": lambda folder: (folder / "nvidia-smi.xml").write_text(OUTSIDE),
    "laughs": lambda folder: (folder / "nvidia-smi.xml").write_text(LAUGHS),
    "programs": lambda folder: (folder / "conftest.py").write_text(f"open({str(folder / 'ran')!r}, 'w')"),
}


@pytest.mark.parametrize("attack", BUNDLES)
def test_a_bundle_shows_nothing_of_this_machine_and_runs_nothing(attack: str, tmp_path: Path) -> None:
    BUNDLES[attack](tmp_path)
    facts = read(Bundle.read(tmp_path))
    assert not facts.gpus
    assert "root:" not in json.dumps(facts_document(facts))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("attack", ["a tar", "a nested probe.json", "a probe.json that is a pipe"])
def test_what_is_no_bundle_is_an_error(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    if attack == "a tar":
        with tarfile.open(path, "w") as archive:
            archive.add(__file__, "../../x")
    else:
        path.mkdir()
        (path / "probe.json").write_text("[" * 100_000) if "nested" in attack else os.mkfifo(path / "probe.json")
    with pytest.raises(GpuprovError):
        Bundle.read(path)


# What answers while a lock is made.

REPLIES = {
    "a redirect to a file": [Reply(302, {"Location": "file:///etc/passwd"})],
    "a redirect in circles": [Reply(302, {"Location": "/x"})] * 50,
    "a redirect to nothing": [Reply(302, {"Location": "gopher://127.0.0.1:1/"})],
    "a length that is none": [Reply(200, {"Content-Length": "-5"}, b"x")],
    "less than it says": [Reply(200, {"Content-Length": "50000"}, b"x")] * 50,
}


@pytest.mark.parametrize("attack", REPLIES)
def test_an_answer_that_leads_astray_is_an_error_or_what_it_is(attack: str, tmp_path: Path) -> None:
    with serve(tmp_path) as vendors:
        vendors.replies["/x"] += REPLIES[attack]
        try:
            response = Fetch(deadline_s=3, pause_s=0.01).get(f"{vendors.url}/x", who="x", limit=1000)
        except GpuprovError as error:
            assert error.message.startswith("x: ")
        else:
            assert b"root:" not in response.body
            assert len(response.body) <= 1


def test_an_account_is_shown_to_no_other_host(tmp_path: Path) -> None:
    with serve(tmp_path) as vendors, serve(tmp_path) as other:
        vendors.replies["/x"].append(Reply(307, {"Location": f"{other.url}/x".replace("127.0.0.1", "localhost")}))
        Fetch(deadline_s=5, pause_s=0.01).get(
            f"{vendors.url}/x", who="x", limit=1000, headers={"Authorization": "Basic secret"}
        )
        assert [request[2] for request in vendors.seen] == ["Basic secret"]
        assert [request[2] for request in other.seen] == [""]


@pytest.mark.parametrize("realm", ["http://169.254.169.254/x", "file:///etc/passwd", "http://evil.example/x", ""])
def test_a_realm_that_is_no_token_service_is_not_asked(realm: str, tmp_path: Path) -> None:
    with serve(tmp_path) as vendors:
        name = parse(f"127.0.0.1:{vendors.port}/acme/train:1")
        challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
        vendors.replies["/v2/acme/train/manifests/1"] += [Reply(401, challenge)] * 3
        with pytest.raises(GpuprovError):
            registry.Registries(Fetch(deadline_s=5, pause_s=0.01)).digest(name)
        assert [request[1] for request in vendors.seen] == ["/v2/acme/train/manifests/1"]


# This machine, and who else is on it.


def test_no_secret_is_in_the_arguments_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    real_init = subprocess.Popen.__init__

    def noted(self: Any, argv: Any, *arguments: Any, **more: Any) -> None:
        started.append(" ".join(map(str, argv)))
        real_init(self, argv, *arguments, **more)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    private_dir(paths.root)
    ssh_keys.ensure_key(paths, None)
    generated = keys(tmp_path / "keys")
    secrets = [(paths.ssh / "id_ed25519").read_text(), generated.secret, generated.registry_key]
    lines = [line for secret in secrets for line in secret.splitlines() if len(line) > 40 and "-----" not in line]
    assert len(started) > 5
    assert len(lines) > 5
    assert not [line for line in lines if any(line in argv for argv in started)]


def test_every_private_key_is_its_owner_s_alone(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    private_dir(paths.root)
    ssh_keys.ensure_key(paths, None)
    keys(private_dir(tmp_path / "cache" / "keys"))
    private = [p for p in tmp_path.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert len(private) == 3
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}
    assert {stat.S_IMODE(p.parent.stat().st_mode) for p in private} == {0o700}
