"""locked_images without docker: which image is pulled, what an error means, when the disk is asked."""

from __future__ import annotations

import json
import os
import subprocess
from types import ModuleType
from typing import Any

import pytest

from tests.support.role_script import load

DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
IMAGE = {"reference": "nvcr.io/nvidia/pytorch:25.10-py3", "digest": DIGEST, "pull": f"nvcr.io/nvidia/pytorch@{DIGEST}"}
PARAMS = {"timeout": 60, "attempts": 3, "pause": 0, "unpacked": 2.5}


class Docker:
    """docker with these images (name → (id, digests)); a pull gives `arrives`, or fails with these words in turn."""

    def __init__(self, images: dict[str, tuple[str, list[str]]]) -> None:
        self.images, self.arrives = images, ("id-1", [f"nvcr.io/nvidia/pytorch@{DIGEST}"])
        self.errors: list[str] = []
        self.calls: list[list[str]] = []

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        verb, name = command[1], command[-1]
        status, out, err = 0, "", ""
        if verb == "image":
            if name in self.images:
                identity, digests = self.images[name]
                out = json.dumps({"id": identity, "digests": digests})
            else:
                status, err = 1, f"Error: No such image: {name}"
        elif verb == "pull":
            if self.errors:
                status, err = 1, self.errors.pop(0)
            else:
                self.images[name] = self.arrives
        elif verb == "tag":
            self.images[name] = self.images[command[2]]
        elif verb == "info":
            out = "/"
        return subprocess.CompletedProcess(command, status, out, err)

    def verbs(self) -> list[str]:
        return [call[1] for call in self.calls if call[1] not in ("image", "info")]


@pytest.fixture
def module() -> ModuleType:
    return load("pytorch_images", "library/locked_images.py")


@pytest.fixture
def docker(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Docker:
    test_docker = Docker({})
    monkeypatch.setattr(module.subprocess, "run", test_docker.run)
    monkeypatch.setattr(module, "packed_size", lambda _pull: None)
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    return test_docker


def test_pulled_by_digest_and_named(module: ModuleType, docker: Docker) -> None:
    assert module.bring(IMAGE, PARAMS, False) == "pulled"
    assert docker.verbs() == ["pull", "tag"]
    assert ["docker", "pull", "--quiet", IMAGE["pull"]] in docker.calls
    docker.calls.clear()
    assert module.bring(IMAGE, PARAMS, False) == ""
    assert docker.verbs() == []


def test_a_tag_is_not_trusted(module: ModuleType, docker: Docker) -> None:
    """The name is there and stands on other content; the locked image is there under its digest."""
    docker.images = {IMAGE["reference"]: ("id-9", []), IMAGE["pull"]: docker.arrives}
    assert module.bring(IMAGE, PARAMS, False) == "named"
    assert docker.images[IMAGE["reference"]] == docker.arrives
    docker.images = {IMAGE["reference"]: ("id-9", [f"nvcr.io/nvidia/pytorch@{OTHER}"])}
    assert module.bring(IMAGE, PARAMS, False) == "pulled"


def test_what_arrives_is_looked_at(module: ModuleType, docker: Docker) -> None:
    docker.arrives = ("id-2", [f"nvcr.io/nvidia/pytorch@{OTHER}"])
    with pytest.raises(module.Failed, match=f"it was pulled, and docker has {OTHER}"):
        module.bring(IMAGE, PARAMS, False)
    assert docker.verbs() == ["pull"]


def test_a_lock_that_contradicts_itself_is_refused(module: ModuleType, docker: Docker) -> None:
    with pytest.raises(module.Failed, match="lock again"):
        module.bring({**IMAGE, "digest": OTHER}, PARAMS, False)
    assert docker.calls == []


def test_check_mode_pulls_nothing(module: ModuleType, docker: Docker) -> None:
    assert module.bring(IMAGE, PARAMS, True) == "pulled"
    assert docker.verbs() == []


SAID = [
    ("Error response from daemon: manifest unknown: manifest unknown", "does not have this digest any more", 1),
    ("failed to register layer: write /x: no space left on device", "the disk is full", 1),
    ("Get https://r/v2/: x509: certificate signed by unknown authority", "certificate is not trusted", 1),
    ("unauthorized: authentication required", "wants a login", 1),
    ("dial tcp: lookup r: no such host", "can't be reached from the node, tried 3 times", 3),
    ("Get https://r/v2/: net/http: TLS handshake timeout", "can't be reached", 3),
    ("received unexpected HTTP status: 503 Service Unavailable", "can't be reached", 3),
    ("toomanyrequests: You have reached your pull rate limit", "limits how often it is asked", 3),
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "docker does not run", 1),
    ("something else", "docker could not pull it", 1),
]


@pytest.mark.parametrize(("error_text", "meaning", "tries"), SAID, ids=[meaning for _, meaning, _ in SAID])
def test_what_docker_says_is_told_in_plain_words(
    module: ModuleType, docker: Docker, error_text: str, meaning: str, tries: int
) -> None:
    docker.errors = [error_text] * 9
    with pytest.raises(module.Failed, match=meaning):
        module.bring(IMAGE, PARAMS, False)
    assert docker.verbs() == ["pull"] * tries


def test_what_passes_is_tried_again(module: ModuleType, docker: Docker) -> None:
    docker.errors = ["i/o timeout", "unexpected EOF"]
    assert module.bring(IMAGE, PARAMS, False) == "pulled"
    assert docker.verbs() == ["pull", "pull", "pull", "tag"]


def test_a_pull_that_takes_too_long(module: ModuleType, docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[1] == "pull":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return docker.run(command)

    monkeypatch.setattr(module.subprocess, "run", slow)
    with pytest.raises(module.Failed, match="longer than 60 s"):
        module.bring(IMAGE, PARAMS, False)


def test_a_disk_without_room_is_refused_before_the_pull(
    module: ModuleType, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = os.statvfs("/")
    monkeypatch.setattr(module, "packed_size", lambda _pull: disk.f_bavail * disk.f_frsize)
    with pytest.raises(module.Failed, match=r"too full: .* GB packed want about .*storage\.root_gb"):
        module.bring(IMAGE, PARAMS, False)
    assert docker.verbs() == []
    monkeypatch.setattr(module, "packed_size", lambda _pull: 1000)
    assert module.bring(IMAGE, PARAMS, False) == "pulled"


def test_no_docker(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(module.subprocess, "run", fail)
    with pytest.raises(module.Failed, match="docker is not installed"):
        module.bring(IMAGE, PARAMS, False)


PULLS = [
    (f"nvcr.io/nvidia/pytorch@{DIGEST}", ("nvcr.io", "nvidia/pytorch", DIGEST)),
    (f"localhost:5000/a/b@{DIGEST}", ("localhost:5000", "a/b", DIGEST)),
    (f"rocm/pytorch@{DIGEST}", ("registry-1.docker.io", "rocm/pytorch", DIGEST)),
    (f"busybox@{DIGEST}", ("registry-1.docker.io", "library/busybox", DIGEST)),
    (f"docker.io/rocm/pytorch@{DIGEST}", ("registry-1.docker.io", "rocm/pytorch", DIGEST)),
]


@pytest.mark.parametrize(("pull", "parts"), PULLS)
def test_where_an_image_comes_from(module: ModuleType, pull: str, parts: tuple[str, str, str]) -> None:
    assert module.pull_parts(pull) == parts


def test_the_size_is_that_of_this_machines_layers(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    manifests = {
        DIGEST: {"manifests": [{"platform": {"architecture": "riscv64"}, "digest": "sha256:no"},
                               {"platform": {"architecture": machine}, "digest": OTHER}]},
        OTHER: {"layers": [{"size": 30}, {"size": 12}]},
    }  # fmt: skip
    monkeypatch.setattr(module, "ask", lambda _host, _repository, digest, _token=None: manifests[digest])
    assert module.packed_size(IMAGE["pull"]) == 42


def test_an_unknown_size_is_no_obstacle(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(module, "ask", fails)
    assert module.packed_size(IMAGE["pull"]) is None
