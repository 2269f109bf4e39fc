"""The resources of one Redfish service, live or saved, as plain JSON objects.

A service leaves out what it likes: a link that leads nowhere, a member that can't be read and a field of a wrong type
are all `not known` here, never an error; only a service that gives nothing at all is one.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provisioner.common import regular_file
from provisioner.machines.redfish.errors import BmcError

Resource = Mapping[str, Any]
Health = Literal["OK", "Warning", "Critical"]
HEALTH: tuple[Health, ...] = ("OK", "Warning", "Critical")
"""The worst one last."""

ROOT = "/redfish/v1"
MOST_RESOURCES = 4000
"""Resources read of one service: a DGX H100 has some 1500, a service that links in circles has no end."""
MOST_PAGES = 40
LARGEST_SAVED = 32 * 1024 * 1024
"""Bytes of a saved tree, unpacked, all its files together: ten times a DGX H100's, and less than 1 GiB as objects."""
MOST_FILES = 50_000

_NOTHING = re.compile(
    r"(n/?a|none|null|unknown|not (available|present|specified)|to be filled by o\.?e\.?m\.?|default string|-|0+)?",
    re.I,
)


def text(value: object) -> str | None:
    """A text that says something, without blanks around it; None for "", "N/A", "To be filled by O.E.M." and any value
    that is no text."""
    stripped = value.strip() if isinstance(value, str) else ""
    return None if _NOTHING.fullmatch(stripped) else stripped


def number(value: object) -> float | None:
    """A number as number; None for anything else, and for one that a float can't hold (1e400, 400 digits)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        float_value = float(value)
    except OverflowError:
        return None
    return float_value if math.isfinite(float_value) else None


def texts(value: object) -> tuple[str, ...] | None:
    """A list of texts; None where there is no list. "None" is a value here: it is one of AllowableValues."""
    if not isinstance(value, list):
        return None
    return tuple(item for item in value if isinstance(item, str) and item)


def inner(resource: Resource, *keys: str) -> Resource:
    """An object inside another, by its keys; empty where there is none."""
    for key in keys:
        child = resource.get(key)
        if not isinstance(child, Mapping):
            return {}
        resource = child
    return resource


def rows(value: object) -> list[Resource]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def link(value: object) -> str:
    """Where a link leads: `{"@odata.id": "/redfish/…"}`, or the bare path that AMI gives; empty for none."""
    if isinstance(value, Mapping):
        value = value.get("@odata.id")
    return address(value) if isinstance(value, str) and value.startswith("/") else ""


def address(uri: str) -> str:
    """An address in one spelling: without fragment, double slashes and a slash at the end."""
    return re.sub(r"/{2,}", "/", uri.partition("#")[0]).rstrip("/") or "/"


def kind(resource: Resource) -> str:
    """The type's name without its version: ComputerSystem, VirtualMediaCollection."""
    type_name = resource.get("@odata.type")
    return type_name.removeprefix("#").split(".")[0] if isinstance(type_name, str) else ""


@dataclass(frozen=True, slots=True)
class Members:
    """What a collection gave. `complete`: the collection was there, each of its members could be read, and it does not
    speak of more."""

    read: tuple[Resource, ...] = ()
    complete: bool = False

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.read)


class Tree:
    """One service. `fetch` gives the object at an address, None where the service has none, and raises BmcError where
    it can't be asked."""

    def __init__(self, fetch: Callable[[str], Resource | None]) -> None:
        self._fetch = fetch
        self._known: dict[str, Resource | None] = {}
        self.unread: dict[str, str] = {}
        """Address → why it could not be read, of what another resource links to."""

    def get(self, reference: object) -> Resource:
        """The resource at an address or a link; empty where it can't be had, and `unread` says why."""
        uri = link(reference) if not isinstance(reference, str) else address(reference)
        if not uri or not uri.startswith("/"):
            return {}
        if uri not in self._known:
            if len(self._known) >= MOST_RESOURCES:
                self.unread[uri] = f"more than {MOST_RESOURCES} resources"
                return {}
            try:
                resource = self._fetch(uri)
            except BmcError as error:
                if error.kind not in _LOCAL or uri == ROOT:
                    raise
                self.unread[uri], resource = error.message, None
            else:
                if resource is None:
                    self.unread[uri] = MISSING
            self._known[uri] = resource
        return self._known[uri] or {}

    def members(self, reference: object) -> Members:
        """The members of a collection, by its address or a link to it; those that the collection shows whole are not
        asked for again."""
        page, members, complete = self.get(reference), list[Resource](), True
        if not isinstance(page.get("Members"), list):
            return Members()
        for _ in range(MOST_PAGES):
            for row in rows(page.get("Members")):
                member = row if len([key for key in row if not key.startswith("@")]) > 1 else self.get(row)
                complete = complete and bool(member)
                if member:
                    members.append(member)
            following = page.get("Members@odata.nextLink") or page.get("@odata.nextLink")
            if not isinstance(following, str):
                stated_count = page.get("Members@odata.count")
                return Members(
                    tuple(members), complete and not (isinstance(stated_count, int) and stated_count > len(members))
                )
            page = self.get(following)
            if not page:
                break
        return Members(tuple(members), False)

    def forget(self, *uris: str) -> None:
        """Ask again for these, or for everything."""
        for uri in uris or list(self._known):
            self._known.pop(address(uri), None)
            self.unread.pop(address(uri), None)

    @property
    def root(self) -> Resource:
        return self.get(ROOT)

    def saved(self) -> dict[str, Resource]:
        """Everything that was read, by address: what `Saved` reads."""
        return {uri: resource for uri, resource in sorted(self._known.items()) if resource is not None}


MISSING = "the service does not have it"
"""What `unread` says of an address that there is nothing at."""
_LOCAL = ("", "denied", "internal", "unsupported", "not-found")
"""Kinds of errors that concern one resource; any other one concerns the service."""


def saved(path: Path) -> Tree:
    """A saved tree: one JSON object of address → resource (also gzipped), or a folder with a file a resource, named
    after its path (redfish_v1_Systems.json) or lying at it (redfish/v1/Systems/index.json). Raises BmcError for
    anything else, and for a symbolic link."""
    try:
        known = _folder(path) if stat.S_ISDIR(path.lstat().st_mode) else _document(path)
    except FileNotFoundError as error:
        raise BmcError(
            "no Redfish tree was saved of this machine: there is no such file", where=str(path),
            hint="`gpuprov bmc FILE status --save DIR` saves HOST.redfish.json of every machine",
        ) from error  # fmt: skip
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BmcError(
            f"is not a saved Redfish tree: {reason or type(error).__name__}", where=str(path),
            hint="one JSON object of address → resource (also gzipped), or a folder with a JSON file a resource",
        ) from error  # fmt: skip
    if not known:
        raise BmcError(
            "has no Redfish resource", where=str(path),
            hint="give a folder with one JSON file a resource, or the file that `gpuprov bmc … --save` wrote",
        )  # fmt: skip
    return Tree(_with_collections(known).get)


def is_saved(path: Path) -> bool:
    """Whether a path looks like a saved tree; reads little."""
    if path.is_dir():
        return (
            (path / "redfish_v1.json").exists()
            or (path / "redfish" / "v1").is_dir()
            or any(path.glob("redfish_v1_*.json"))
        )
    return path.name.endswith((".redfish.json", ".redfish.json.gz"))


def _document(path: Path) -> dict[str, Resource]:
    content = regular_file.read(path, LARGEST_SAVED, follow_links=False)
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            content = stream.read(LARGEST_SAVED + 1)
        if len(content) > LARGEST_SAVED:
            raise ValueError(f"it unpacks to more than {LARGEST_SAVED >> 20} MiB")
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("its JSON is not an object")
    return {
        address(uri): resource
        for uri, resource in document.items()
        if uri.startswith("/") and isinstance(resource, dict)
    }


def _folder(path: Path) -> dict[str, Resource]:
    known: dict[str, Resource] = {}
    bytes_left = LARGEST_SAVED
    for file in _json_files(path):
        if file.is_symlink():
            continue
        content = regular_file.read(file, LARGEST_SAVED, follow_links=False)
        bytes_left -= len(content)
        if bytes_left < 0:
            raise ValueError(f"its files have more than {LARGEST_SAVED >> 20} MiB together")
        resource = json.loads(content)
        if not isinstance(resource, dict):
            continue
        inside = file.relative_to(path).as_posix()
        if "redfish/v1" in inside:
            uri = "/" + inside[inside.index("redfish/v1") :].rpartition("/")[0]
            uri = uri if file.stem in ("index", "custom") else f"{uri}/{file.stem}"
        else:
            uri = link(resource) or ("/" + file.stem.replace("_", "/") if file.stem.startswith("redfish_v1") else "")
        if uri.startswith(ROOT):
            known.setdefault(address(uri), resource)
            if file.stem.startswith("redfish_v1"):  # by its name as well: a body may name another path than its own
                known.setdefault("name:" + file.stem, resource)
    return _by_link(known)


def _json_files(path: Path) -> list[Path]:
    files, entries = list[Path](), 0
    for folder, folders, names in os.walk(path, followlinks=False):
        entries += len(folders) + len(names)
        if entries > MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files")
        files += [Path(folder, name) for name in names if name.endswith(".json")]
    return sorted(files)


def _by_link(known: dict[str, Resource]) -> dict[str, Resource]:
    """With every address that something links to and that a file is named after."""
    by_file_name = {
        name.removeprefix("name:"): resource for name, resource in known.items() if name.startswith("name:")
    }
    by_uri = {uri: resource for uri, resource in known.items() if not uri.startswith("name:")}
    for uri in {uri for resource in list(by_uri.values()) for uri in links(resource)}:
        if uri not in by_uri and (linked := by_file_name.get(uri.strip("/").replace("/", "_"))) is not None:
            by_uri[uri] = linked
    return by_uri


def links(value: object) -> Iterator[str]:
    """Every address that a resource names, however deep."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key == "@odata.id" and isinstance(child, str) and child.startswith("/"):
                yield address(child)
            else:
                yield from links(child)
    elif isinstance(value, list):
        for child in value:
            yield from links(child)


def _with_collections(known: dict[str, Resource]) -> dict[str, Resource]:
    """With root and collections where the tree is a part that lacks them: as far as they can be told."""
    for name in ("Systems", "Managers", "Chassis"):
        top = f"{ROOT}/{name}"
        member_uris = sorted(uri for uri in known if re.fullmatch(re.escape(top) + "/[^/]+", uri))
        if top not in known and member_uris:
            known[top] = {"@odata.id": top, "Members": [{"@odata.id": uri} for uri in member_uris]}
    if ROOT not in known:
        known[ROOT] = {
            n: {"@odata.id": f"{ROOT}/{n}"} for n in ("Systems", "Managers", "Chassis") if f"{ROOT}/{n}" in known
        }
    return known
