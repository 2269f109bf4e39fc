"""cluster.lock on disk: YAML in a stable order, made to be read and to live in git."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from provisioner.common import regular_file, yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole
from provisioner.spec.source_map import Loc, dotted
from provisioner.stack.components import component_of
from provisioner.stack.models import LOCAL, LOCK_VERSION, Lock, Stack

_HEAD = """\
# cluster.lock: the exact versions that gpuprov installs. Made by `gpuprov lock`; keep it in git, do not edit it.
"""
LIMIT = 32 << 20
"""Characters of a lock; one of a hundred groups has some 5 MiB."""
EVENTS = 500_000
"""Keys, values and ends of blocks in a lock. One stands for 13 characters, so that the lock of a hundred groups has
some 400,000; each takes a kilobyte of memory until the lock is read."""
DEPTH = 16
"""Blocks in each other; a lock has six."""
AWAY = "move it away, then `gpuprov lock` makes another one"


def write(path: Path, lock: Lock) -> None:
    """Write the lock, whole or not at all, readable by all (it holds no secret)."""
    body = yaml_text.dump(lock.model_dump(mode="json", exclude_defaults=True) | {"version": LOCK_VERSION})
    write_whole(path, _HEAD + body, mode=0o644)


def read(path: Path) -> Lock | None:
    """The lock at `path`, or None where there is none. Raises GpuprovError on one that can't be read."""
    try:
        text = regular_file.read_text(path, LIMIT)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GpuprovError(f"cannot be read: {reason}", where=str(path), hint=AWAY) from error
    return parse(text, str(path))


def parse(text: str, path: str) -> Lock:
    """The text of a lock. Raises GpuprovError with the place in `path` for one that is none."""
    try:
        _refuse_size(text)
        loaded = yaml_text.load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        message = f"is not YAML ({error.problem or error.context})"
        raise GpuprovError(message, where=f"{path}{at}", hint=AWAY) from None
    except (yaml.YAMLError, ValueError) as error:  # a control character; a number of 5000 digits
        message = f"is not YAML ({str(error).splitlines()[0]})"
        raise GpuprovError(message, where=path, hint=AWAY) from None
    if isinstance(loaded, dict) and loaded.get("version") not in (LOCK_VERSION, None):
        raise GpuprovError(
            f"has format {loaded['version']}, this gpuprov reads {LOCK_VERSION}",
            where=path,
            hint="upgrade gpuprov, or recreate the lock with `gpuprov lock`",
        )
    lock: Lock | None = None
    try:
        lock = Lock.model_validate(loaded)
        problem = next(_unsound(lock), None)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        problem = (tuple(part for part in first["loc"] if part != "[key]"), first["msg"])
    if problem is not None:
        loc, message = problem
        raise GpuprovError(
            f"is not a lock that gpuprov wrote ({dotted(loc) or 'the file'}: {message})",
            where=f"{path}{_position(text, loc)}",
            hint="if you did not change it, find out who did: somebody, or a gpuprov that knows more than this one. "
            "`gpuprov lock` makes another one once this one is moved away",
        )
    assert lock is not None
    return lock


def _unsound(lock: Lock) -> Iterator[tuple[Loc, str]]:
    """What would have a node install what nobody has verified: where in the lock, and a sentence. No node of a cluster
    that is real is given a simulated lock."""
    for group, stack in lock.groups.items():
        from_archives = {repository.name: bool(repository.archives) for repository in stack.repositories}
        for number, package in enumerate(stack.packages):
            at: Loc = ("groups", group, "packages", number)
            if lock.simulated:
                continue
            if package.repository is not None and package.repository not in from_archives:
                yield (*at, "repository"), f"the lock has no repository {package.repository}"
            elif from_archives.get(package.repository or "") and not package.sha256:
                yield at, f"package {package.name} has no SHA-256, which each package out of an archive needs"
        for number, repository in enumerate(stack.repositories):
            at = ("groups", group, "repositories", number)
            if not repository.archives and not repository.fingerprint:
                yield at, f"repository {repository.name} has no fingerprint of its signing key"
            if repository.archives and repository.uri != LOCAL.format(name=repository.name):
                message = f"a repository of archives is {LOCAL.format(name=repository.name)}, not {repository.uri}"
                yield (*at, "uri"), message
            for archive_number, archive in enumerate(() if lock.simulated else repository.archives):
                for key, value in (("url", archive.url), ("sha256", archive.sha256), ("size", archive.size)):
                    if not value:
                        yield (*at, "archives", archive_number), f"the archive has no {key}"


def _refuse_size(text: str) -> None:
    """Raise ValueError for a lock that is too long, MarkedYAMLError for one that has too many values or is too deep:
    libyaml's own reader then takes gigabytes, or ends the process."""
    if len(text) > LIMIT:
        raise ValueError(f"larger than {LIMIT >> 20} MiB")
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml_text.LOADER)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        wrong = "aliases are not allowed" if isinstance(event, yaml.AliasEvent) else ""
        wrong = f"{depth} nested blocks" if depth > DEPTH else wrong
        wrong = f"more than {EVENTS} keys and values" if number > EVENTS else wrong
        if wrong:
            raise yaml.MarkedYAMLError(problem=wrong, problem_mark=event.start_mark)  # type: ignore[arg-type] # libyaml's


def _position(text: str, loc: Sequence[str | int]) -> str:
    """Where a value stands in the file, or what is nearest around it: ":line:column"."""
    node = yaml.compose(text, Loader=yaml_text.LOADER)
    for part in loc:
        inner = None
        if isinstance(node, yaml.MappingNode):
            inner = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            inner = node.value[part]
        if inner is None:
            break
        node = inner
    return f":{node.start_mark.line + 1}:{node.start_mark.column + 1}" if node is not None else ""


def versions(lock: Lock | None) -> dict[str, dict[str, str]]:
    """Group → component → version, of a lock that may not be there."""
    groups = lock.groups if lock else {}
    return {name: {key: c.version for key, c in stack.components.items()} for name, stack in groups.items()}


def changes(previous: Lock | None, current: Lock) -> list[str]:
    """What a new lock has that the old one had not, one line each, groups in order; empty where nothing moves."""
    old, new = versions(previous), versions(current)
    lines = [f"group {name} is gone" for name in old if name not in new]
    for group, components in new.items():
        if group not in old:
            lines.append(
                f"group {group} is new: {', '.join(f'{k} {v}' for k, v in components.items() if ' ' not in k)}"
            )
            continue
        previous_components = old[group]
        for key in (*components, *(key for key in previous_components if key not in components)):
            if components.get(key) != previous_components.get(key):
                lines.append(f"{group}: {key} {previous_components.get(key, 'none')} → {components.get(key, 'none')}")
        lines += _moved(group, previous.groups[group], current.groups[group]) if previous else []
    return lines


def _moved(group: str, old: Stack, new: Stack) -> list[str]:
    """What moved although its component did not: a package's own version, an image under the same tag, a key."""
    lines = []
    same = {
        key for key, c in new.components.items() if key in old.components and old.components[key].version == c.version
    }
    had = {p.name: p for p in old.packages}
    for package in new.packages:
        was = had.get(package.name)
        if component_of(package.part) in same and (was is None or was.version != package.version):
            lines.append(f"{group}: package {package.name} {was.version if was else 'none'} → {package.version}")
    digests = {i.reference: i.digest for i in old.images}
    lines += [
        f"{group}: {i.reference} {digests[i.reference][:19]} → {i.digest[:19]}"
        for i in new.images
        if digests.get(i.reference, i.digest) != i.digest
    ]
    keys = {r.name: r.fingerprint for r in old.repositories}
    lines += [
        f"{group}: key of {r.name} {keys[r.name]} → {r.fingerprint}"
        for r in new.repositories
        if keys.get(r.name, r.fingerprint) != r.fingerprint
    ]
    return lines


def differences(lock: Lock, request: dict[str, str]) -> list[str]:
    """What has changed in cluster.yaml since the lock was made, one sentence each; empty where the lock still fits."""
    lines = []
    for key in sorted({*lock.request, *request}):
        locked, requested = lock.request.get(key), request.get(key)
        if locked != requested:
            lines.append(f"{key}: {locked or 'not there'} when locked, {requested or 'not there'} now")
    return lines
