"""The archive that nodes run Ansible from: the same each time, without compiled parts, and refused where it changed."""

from __future__ import annotations

import io
import json
import re
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from provisioner.common import paths, yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.configure import node_archive, streams
from provisioner.lifecycle.images import generalise_node
from provisioner.machines import on_node


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return node_archive.members()


def test_the_same_input_gives_the_same_bytes(files: dict[str, bytes]) -> None:
    content, manifest = node_archive.pack(files)
    assert node_archive.pack(dict(reversed(files.items()))) == (content, manifest)
    assert node_archive.members() == files, "packed modules have a time of their own"
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert {(m.uid, m.gid, m.mtime) for m in tar} == {(0, 0, 0)}
    assert len(content) < 4 << 20


def test_no_compiled_part_and_no_link_is_in_it(files: dict[str, bytes]) -> None:
    assert not [path for path in files if Path(path).suffix in (".so", ".pyc")]
    assert {"bin/ansible-playbook", "node_worker.py", "health.pyz", "ansible/playbooks/site.yml"} <= files.keys()


def test_roles_mean_the_same_as_json(files: dict[str, bytes]) -> None:
    root, count = paths.data("ansible"), 0
    for file in [*root.glob("roles/*/*/*.yml"), *root.glob("playbooks/*.yml")]:
        packed = files.get(f"ansible/{file.relative_to(root).as_posix()}")
        if packed is not None:
            assert yaml_text.load(packed) == yaml_text.load(file.read_text(encoding="utf-8")), file
            count += packed.startswith((b"{", b"["))
    assert count > 50


def test_each_module_that_a_role_names_is_in_it(files: dict[str, bytes]) -> None:
    text = b"".join(content for path, content in files.items() if path.startswith("ansible/")).decode()
    module_names = set(re.findall(r'"ansible\.builtin\.([a-z_]+)":', text))
    assert {"shell", "reboot"} <= module_names
    assert {f"lib/ansible/modules/{name}.py" for name in module_names} <= files.keys()


def test_the_modules_of_the_roles_are_packed(files: dict[str, bytes]) -> None:
    module_files = [
        *paths.data("ansible").glob("plugins/modules/*.py"),
        *paths.data("ansible").glob("roles/*/library/*.py"),
    ]
    assert {f"modules/ansible.legacy.{file.stem}-ZIP_DEFLATED-none" for file in module_files} <= files.keys()


def test_a_golden_image_keeps_it() -> None:
    """Ansible's own files have passwords in examples: they are no finding. Each use compares them with the manifest."""
    assert streams.FOLDER in generalise_node.NOT_SCANNED
    assert not [pattern for _, pattern in generalise_node.REMOVED if streams.FOLDER.startswith(pattern.rstrip("*"))]


def test_what_a_machine_of_ones_own_got_is_taken_away_again() -> None:
    assert streams.FOLDER in on_node.OWN_FOLDERS


def test_the_python_that_nodes_need_is_the_one_of_ansible_core() -> None:
    requires = SpecifierSet(metadata.metadata("ansible-core")["Requires-Python"])
    major, minor = node_archive.PYTHON_MIN
    assert requires.contains(f"{major}.{minor}.0")
    assert not requires.contains(f"{major}.{minor - 1}.0")


def test_it_is_built_once_and_a_changed_file_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(node_archive, "members", lambda: {"a": b"1"})
    built = node_archive.build()
    monkeypatch.setattr(node_archive, "members", dict)
    assert node_archive.build() == built, "from the cache"
    built.file.write_bytes(b"tampered")
    with pytest.raises(GpuprovError, match="has another sha256 than"):
        built.content()
    monkeypatch.setattr(node_archive, "members", lambda: {"a": b"1"})
    assert node_archive.build() == built
    assert built.content()


def test_old_builds_leave_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(node_archive, "members", lambda: {"a": b"1"})
    for number in range(node_archive.KEPT_BUILDS + 2):
        monkeypatch.setattr(node_archive, "fingerprint", lambda number=number: f"{number:016d}")
        node_archive.build()
    assert len(list(tmp_path.glob("node-*.tar.xz"))) == len(list(tmp_path.glob("node-*.json"))) == 4


def test_ansibles_own_settings_mean_the_same_as_json(files: dict[str, bytes]) -> None:
    for path, loader in node_archive.SETTINGS.items():
        file = Path(str(metadata.distribution("ansible-core").locate_file(path.removeprefix("lib/"))))
        assert json.loads(files[path]) == yaml.load(file.read_text(), loader)
