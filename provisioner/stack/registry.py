"""An image's name → its digest, asked of its registry (OCI distribution API, /v2/) and computed again from what came.

Anonymous, or with the account that `docker login` left in ~/.docker/config.json; what is secret goes to the registry's
own token service over TLS and nowhere else, and never into an error.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from urllib3.util import parse_url

from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import HUB, Name
from provisioner.common.paths import cache, private_dir, write_whole
from provisioner.stack import image_facts
from provisioner.stack.fetch import Answer, Fetch, FetchError, loopback
from provisioner.stack.image_facts import ImageFacts

MANIFEST_LIMIT = 4 << 20
"""Bytes; the OCI specification lets registries refuse more."""
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
PLATFORM = ("linux", "amd64")
HOSTS = {HUB: "registry-1.docker.io"}
"""Registries whose API is at another host than their name."""

_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(slots=True)
class Registries:
    """All registries of one lock: tokens are asked for once."""

    fetch: Fetch
    _tokens: dict[tuple[str, str], str] = field(default_factory=dict)

    def digest(self, name: Name, known: str = "") -> str:
        """The digest of what the registry has under that name now, computed from the manifest itself. Where it says
        that it is still the `known` one, that was computed before, and nothing is fetched.

        Raises GpuprovError where it has none, wants an account, answers with something else than it says, or has it
        not for linux/amd64.
        """
        reference = name.digest or name.tag
        if known and self._ask(name, reference, "HEAD").headers.get("docker-content-digest") == known:
            return known
        answer = self._ask(name, reference, "GET")
        computed = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        announced = answer.headers.get("docker-content-digest", computed)
        if announced != computed:
            raise _refuse(name, f"digest mismatch: the registry announces {announced[:26]}… and sends {computed[:26]}…",
                          "possible tampering, or a broken cache in front of the registry")  # fmt: skip
        if name.digest and computed != name.digest:
            raise _refuse(
                name,
                f"digest mismatch: the registry sends {computed[:26]}…",
                "a cache in front of the registry is broken",
            )
        _check(name, answer)
        write_whole(_cache_file(computed), answer.body)
        return computed

    def facts(self, name: Name, digest: str) -> ImageFacts:
        """What the configuration of the image with that digest says of it, each link to it verified by its digest.
        Documents are kept in the cache under their digest."""
        document = _object(self._content(name, digest, "manifests"))
        listed = document.get("manifests")
        if isinstance(listed, list):
            matching = [m for m in listed if isinstance(m, dict) and _platform(m.get("platform")) == PLATFORM]
            document = _object(self._content(name, _digest_in(name, matching[0] if matching else None), "manifests"))
        config = _digest_in(name, document.get("config"))
        configuration = _object(self._content(name, config, "blobs"))
        if configuration.get("architecture", PLATFORM[1]) != PLATFORM[1]:
            raise _refuse(name, f"not available for {'/'.join(PLATFORM)}; it is for "
                          f"{str(configuration['architecture'])[:40]}", "use another tag")  # fmt: skip
        inner = configuration.get("config")
        env = inner.get("Env") if isinstance(inner, dict) else None
        return image_facts.read(env if isinstance(env, list) else [], config)

    def _content(self, name: Name, digest: str, kind: str) -> bytes:
        """A document of an image by its digest: out of the cache, or fetched, and verified either way."""
        with contextlib.suppress(OSError):
            cached = _cache_file(digest).read_bytes()
            if f"sha256:{hashlib.sha256(cached).hexdigest()}" == digest:
                return cached
        body = self._ask(name, digest, "GET", kind).body
        computed = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if computed != digest:
            raise _refuse(name, f"digest mismatch: {digest[:26]}… is asked for, the registry sends {computed[:26]}…",
                          "possible tampering, or a broken cache in front of the registry")  # fmt: skip
        write_whole(_cache_file(digest), body)
        return body

    def _ask(self, name: Name, reference: str, method: str, kind: str = "manifests") -> Answer:
        key = (name.registry, name.repository)
        headers = {"Accept": ", ".join(KINDS) if kind == "manifests" else "*/*"}
        if key in self._tokens:
            headers["Authorization"] = self._tokens[key]
        answer = self._request(name, reference, method, headers, kind)
        if answer.status == 401 and "Authorization" not in headers:
            self._tokens[key] = headers["Authorization"] = self._authorise(name, answer)
            answer = self._request(name, reference, method, headers, kind)
        if answer.status != 200:
            raise self._refused(name, answer.status)
        return answer

    def _request(self, name: Name, reference: str, method: str, headers: dict[str, str], kind: str) -> Answer:
        subject = f"image {name.written}"
        try:
            return self.fetch.get(
                f"{api(name, kind)}{reference}", who=subject, limit=MANIFEST_LIMIT, headers=headers, method=method
            )
        except FetchError as error:
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                hint = f"wait (anonymous pulls are rate-limited), or run `docker login {name.registry}`"
                raise GpuprovError(error.message, where=error.where, hint=hint) from None
            raise

    def _authorise(self, name: Name, challenge: Answer) -> str:
        """The Authorization header that the registry's challenge asks for."""
        kind, _, challenge_text = challenge.headers.get("www-authenticate", "").partition(" ")
        account = account_of(name.registry)
        if kind.lower() == "basic" and account:
            return f"Basic {account}"
        parameters = dict(_CHALLENGE.findall(challenge_text))
        realm = parse_url(parameters.get("realm", ""))
        if kind.lower() != "bearer" or not realm.host:
            raise self._refused(name, 401)
        local = loopback(realm.host) and loopback(str(parse_url(f"//{name.registry}").host or ""))
        if realm.scheme != "https" and not local:  # a registry elsewhere has no token service on this computer
            raise _refuse(
                name, f"the registry requests a token from {realm.host} without TLS", "ask the registry's operator"
            )
        query = {"service": parameters.get("service", ""), "scope": f"repository:{name.repository}:pull"}
        answer = self.fetch.get(
            f"{realm.url}{'&' if realm.query else '?'}{urlencode(query)}", who=f"image {name.written}", limit=1 << 20,
            headers={"Authorization": f"Basic {account}"} if account else {}, redirect=False,
        )  # fmt: skip
        if answer.status != 200:
            raise self._refused(name, answer.status)
        document = _object(answer.body)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise _refuse(name, f"{realm.host} did not send a token", "ask the registry's operator")
        return f"Bearer {token}"

    @staticmethod
    def _refused(name: Name, status: int) -> GpuprovError:
        known = account_of(name.registry) is not None
        login = f"`docker login {name.registry}`"
        if status == 401:
            reason = "the credentials of `docker login` are rejected" if known else "no such image, or it is not public"
            return _refuse(name, f"{name.registry}: HTTP 401: {reason}", f"check its name, or {login}")
        if status == 403:
            account = "this account" if known else "anonymous access"
            return _refuse(name, f"{name.registry}: HTTP 403: {account} is denied",
                           f"ask its owner, or {login} with another account")  # fmt: skip
        if status == 404:
            return _refuse(name, f"{name.registry} has no {name.repository} with {name.digest or f'tag {name.tag}'}",
                           "check its name and tag")  # fmt: skip
        return _refuse(
            name, f"{name.registry}: HTTP {status}", "check the registry's status, then run `gpuprov lock` again"
        )


def api(name: Name, kind: str = "manifests") -> str:
    """Where the registry is asked for the manifests of an image, or its blobs."""
    host = HOSTS.get(name.registry, name.registry)
    scheme = "http" if loopback(str(parse_url(f"//{host}").host or "")) else "https"
    return f"{scheme}://{host}/v2/{name.repository}/{kind}/"


def account_of(registry: str) -> str | None:
    """What `docker login` keeps for a registry (Base64 of user:password); None where there is nothing, or where a
    credential helper keeps it, which is not asked."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        known = _object((folder / "config.json").read_bytes()).get("auths")
    except OSError:
        return None
    names = ("https://index.docker.io/v1/", "index.docker.io", HUB) if registry == HUB else (
        registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/")  # fmt: skip
    for name in names:
        entry = known.get(name) if isinstance(known, dict) else None
        credentials = entry.get("auth") if isinstance(entry, dict) else None
        try:
            if isinstance(credentials, str) and b":" in base64.b64decode(credentials, validate=True):
                return credentials
        except binascii.Error:
            continue
    return None


def _cache_file(digest: str) -> Path:
    return private_dir(cache() / "images") / digest.removeprefix("sha256:")


def _platform(descriptor: object) -> tuple[object, object]:
    return (descriptor.get("os"), descriptor.get("architecture")) if isinstance(descriptor, dict) else ("", "")


def _digest_in(name: Name, descriptor: object) -> str:
    """The digest that a descriptor names."""
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise _refuse(name, "not a container image: it names no configuration", "check its name")
    return digest


def _check(name: Name, answer: Answer) -> None:
    """Refuse what is no image that the nodes run: another kind of thing, another platform."""
    manifest = _object(answer.body)
    kind = str(manifest.get("mediaType") or answer.headers.get("content-type", "").partition(";")[0])
    if kind not in KINDS or manifest.get("schemaVersion") != 2:
        raise _refuse(name, f"not a container image: media type {kind[:80] or 'missing'}", "check its name")
    listed = manifest.get("manifests")
    if isinstance(listed, list):
        platforms = [m.get("platform") for m in listed if isinstance(m, dict)]
        available = {(p.get("os"), p.get("architecture")) for p in platforms if isinstance(p, dict)}
        if PLATFORM not in available:
            platform_names = ", ".join(
                sorted(f"{system}/{machine}" for system, machine in available if system and machine)
            )
            raise _refuse(
                name,
                f"not available for {'/'.join(PLATFORM)}; platforms: {platform_names or 'none'}",
                "use another tag",
            )


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one of anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _refuse(name: Name, message: str, hint: str) -> GpuprovError:
    return GpuprovError(f"image {name.written}: {message}", hint=hint)
