"""An image's digest: names as people write them, tokens and accounts, and what a registry may do wrong."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import parse
from provisioner.stack import registry
from provisioner.stack.fetch import Fetch
from tests.support.vendors import INDEX, Reply, Vendors

DIGEST = "sha256:" + "a" * 64
NAMES = [
    ("nvcr.io/nvidia/pytorch:25.10-py3", "nvcr.io", "nvidia/pytorch", "25.10-py3", "https://nvcr.io/v2/nvidia/pytorch"),
    ("ubuntu", "docker.io", "library/ubuntu", "latest", "https://registry-1.docker.io/v2/library/ubuntu"),
    ("rocm/pytorch:1", "docker.io", "rocm/pytorch", "1", "https://registry-1.docker.io/v2/rocm/pytorch"),
    (
        "docker.io/ubuntu:24.04",
        "docker.io",
        "library/ubuntu",
        "24.04",
        "https://registry-1.docker.io/v2/library/ubuntu",
    ),
    ("index.docker.io/a/b:1", "docker.io", "a/b", "1", "https://registry-1.docker.io/v2/a/b"),
    ("localhost/a:1", "localhost", "a", "1", "http://localhost/v2/a"),
    ("127.0.0.1:5000/a/b/c:1", "127.0.0.1:5000", "a/b/c", "1", "http://127.0.0.1:5000/v2/a/b/c"),
    ("registry.example.com:5000/a:1", "registry.example.com:5000", "a", "1", "https://registry.example.com:5000/v2/a"),
    (f"ghcr.io/a/b:1@{DIGEST}", "ghcr.io", "a/b", "1", "https://ghcr.io/v2/a/b"),
]


@pytest.mark.parametrize(("reference", "host", "repository", "tag", "api"), NAMES, ids=[n[0][:40] for n in NAMES])
def test_names_are_read_as_docker_reads_them(reference: str, host: str, repository: str, tag: str, api: str) -> None:
    name = parse(reference)
    assert (name.registry, name.repository, name.tag) == (host, repository, tag)
    assert registry.api(name) == f"{api}/manifests/"
    assert name.pull(DIGEST) == f"{host}/{repository}@{DIGEST}"
    assert name.digest == (DIGEST if "@" in reference else "")


@pytest.mark.parametrize("reference", ["nvcr.io/", "a@sha256:1", "a//b", "ghcr.io/a/../b", "ghcr.io/-a:1", "a@md5:1"])
def test_names_that_no_registry_has(reference: str) -> None:
    with pytest.raises(GpuprovError, match="not a valid image reference"):
        parse(reference)


def ask(vendors: Vendors, tag: str = "1", *, seconds: float = 10, name: str = "acme/train") -> str:
    reference = parse(f"127.0.0.1:{vendors.port}/{name}{tag if tag.startswith('@') else f':{tag}'}")
    return registry.Registries(Fetch(deadline_s=seconds, pause_s=0.01)).digest(reference)


def refused(vendors: Vendors, tag: str = "1", *, seconds: float = 10) -> str:
    with pytest.raises(GpuprovError) as caught:
        ask(vendors, tag, seconds=seconds)
    assert f"image 127.0.0.1:{vendors.port}/acme/train" in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def log_in(folder: Path, vendors: Vendors, secret: str = "me:secret") -> str:
    account = base64.b64encode(secret.encode()).decode()
    (folder / "docker").mkdir()
    config = {"auths": {f"127.0.0.1:{vendors.port}": {"auth": account}}, "credsStore": "desktop"}
    (folder / "docker" / "config.json").write_text(json.dumps(config))
    return account


def test_a_digest(vendors: Vendors) -> None:
    digest = vendors.image("acme/train", "1")
    assert ask(vendors) == digest


def test_a_digest_by_digest(vendors: Vendors) -> None:
    digest = vendors.image("acme/train", "1")
    assert ask(vendors, f"@{digest}") == digest


def test_a_token_is_asked_for_once(vendors: Vendors) -> None:
    first, second = vendors.image("acme/train", "1"), vendors.image("acme/train", "2")
    vendors.token = "open-sesame"
    registries = registry.Registries(Fetch(deadline_s=10, pause_s=0.01))
    names = [parse(f"127.0.0.1:{vendors.port}/acme/train:{tag}") for tag in "12"]
    assert [registries.digest(n) for n in names] == [first, second]
    assert len(vendors.asked("/token")) == 1
    assert "scope=repository%3Aacme%2Ftrain%3Apull" in vendors.asked("/token")[0]
    assert "service=loopback" in vendors.asked("/token")[0]


def test_an_account_of_docker_s_is_shown_to_the_token_service_alone(vendors: Vendors, tmp_path: Path) -> None:
    digest = vendors.image("acme/train", "1")
    vendors.token, vendors.account = "open-sesame", log_in(tmp_path, vendors)
    assert ask(vendors) == digest
    assert [path.partition("?")[0] for _, path, secret in vendors.seen if "Basic" in secret] == ["/token"]


def test_basic_authentication(vendors: Vendors, tmp_path: Path) -> None:
    digest, account = vendors.image("acme/train", "1"), log_in(tmp_path, vendors)
    vendors.replies["/v2/acme/train/manifests/1"].append(Reply(401, {"WWW-Authenticate": 'Basic realm="acme"'}))
    assert ask(vendors) == digest
    assert vendors.seen[-1][2] == f"Basic {account}"


def test_secrets_are_in_no_error(vendors: Vendors, tmp_path: Path) -> None:
    account = log_in(tmp_path, vendors)
    vendors.token, vendors.account = "open-sesame", "somebody-else"
    message = refused(vendors)
    assert "credentials of `docker login` are rejected" in message
    for secret in (account, "me:secret", "open-sesame"):
        assert secret not in message


@pytest.mark.parametrize(
    "config",
    ["", "[]", '{"auths": 1}', '{"auths": {"X": 1}}', '{"auths": {"X": {"auth": "?"}}}', '{"auths": {"X": {}}}'],
)
def test_a_damaged_docker_configuration_is_none(config: str, vendors: Vendors, tmp_path: Path) -> None:
    digest = vendors.image("acme/train", "1")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(config.replace("X", f"127.0.0.1:{vendors.port}"))
    vendors.token = "open-sesame"
    assert ask(vendors) == digest


STATUS = [
    (401, "HTTP 401: no such image, or it is not public", "docker login"),
    (403, "HTTP 403: anonymous access is denied", "docker login"),
    (404, "has no acme/train with tag 1", "name and tag"),
    (400, "HTTP 400", "registry's status"),
]


@pytest.mark.parametrize(("status", "cause", "right"), STATUS)
def test_what_a_registry_refuses(status: int, cause: str, right: str, vendors: Vendors) -> None:
    vendors.replies["/v2/acme/train/manifests/1"] += [Reply(status)] * 2
    message = refused(vendors)
    assert cause in message
    assert right in message


def test_a_token_that_opens_nothing(vendors: Vendors) -> None:
    vendors.image("acme/train", "1")
    vendors.token = "open-sesame"
    vendors.replies["/token"].append(Reply(200, body=b'{"token": "wrong"}'))
    assert "HTTP 401" in refused(vendors)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\nb"}', b"\xff", b"[" * 100_000])
def test_what_is_no_token(body: bytes, vendors: Vendors) -> None:
    vendors.image("acme/train", "1")
    vendors.token = "open-sesame"
    vendors.replies["/token"].append(Reply(200, body=body))
    assert "did not send a token" in refused(vendors)


def test_a_token_service_without_tls_gets_nothing(vendors: Vendors, tmp_path: Path) -> None:
    log_in(tmp_path, vendors)
    challenge = 'Bearer realm="http://token.example.com/token",service="x"'
    vendors.replies["/v2/acme/train/manifests/1"].append(Reply(401, {"WWW-Authenticate": challenge}))
    assert "requests a token from token.example.com without TLS" in refused(vendors)


def test_too_many_requests_then_one_that_is_answered(vendors: Vendors) -> None:
    digest = vendors.image("acme/train", "1")
    vendors.replies["/v2/acme/train/manifests/1"] += [Reply(429, {"Retry-After": "0"}), Reply(503)]
    assert ask(vendors) == digest


def test_too_many_requests_for_good(vendors: Vendors) -> None:
    vendors.replies["/v2/acme/train/manifests/1"].append(Reply(429, {"Retry-After": "21600"}))
    message = refused(vendors)
    assert "HTTP 429, Retry-After 21600 s" in message
    assert "docker login" in message


def test_a_digest_that_is_not_the_content_s(vendors: Vendors) -> None:
    vendors.image("acme/train", "1")
    vendors.said_digest = DIGEST
    assert f"the registry announces {DIGEST[:26]}… and sends" in refused(vendors)


def test_other_content_under_a_digest(vendors: Vendors) -> None:
    vendors.image("acme/train", "1")
    vendors.manifests["acme/train", DIGEST] = vendors.manifests["acme/train", "1"]
    assert "digest mismatch" in refused(vendors, f"@{DIGEST}")


def manifest(**changes: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [], **changes}).encode()


ARM = [{"platform": {"os": "linux", "architecture": "arm64"}}, {"platform": None}, 1]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"<html>", "not a container image"),
        (manifest(schemaVersion=1), "not a container image"),
        (manifest(mediaType="application/vnd.oci.image.config.v1+json"), "not a container image"),
        (manifest(), "not available for linux/amd64; platforms: none"),
        (manifest(manifests=ARM), "not available for linux/amd64; platforms: linux/arm64"),
    ],
)
def test_what_is_no_image_for_the_nodes(body: bytes, cause: str, vendors: Vendors) -> None:
    vendors.manifests["acme/train", "1"] = body
    assert cause in refused(vendors)


def test_a_manifest_that_is_too_long(vendors: Vendors) -> None:
    vendors.manifests["acme/train", "1"] = b" " * (registry.MANIFEST_LIMIT + 1)
    assert "larger than the limit" in refused(vendors)


def test_a_computer_without_a_network_is_told_so_at_once(vendors: Vendors) -> None:
    """Patience is for vendors that are busy: where nobody has answered yet, three tries are enough."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    messages: list[str] = []
    fetch = Fetch(messages.append, deadline_s=20, pause_s=0.01)
    with pytest.raises(GpuprovError, match="gave up after 3 tries"):
        fetch.get(nobody, who="them", limit=10)
    assert len(messages) == 2
    assert fetch.get(f"http://127.0.0.1:{vendors.port}/none", who="us", limit=1000).status == 404
    with pytest.raises(GpuprovError, match="gave up after 7 tries"):
        fetch.get(nobody, who="them", limit=10)
