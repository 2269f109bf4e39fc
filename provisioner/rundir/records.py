"""The files of the run directory by their models. `load` refuses a file that its model does not fit: files that decide
something. `fit` leaves out what does not fit: files that decide nothing by themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from provisioner.common import regular_file, stored
from provisioner.common.errors import DamagedFileError
from provisioner.common.paths import ClusterPaths, write_whole

STRICT = ConfigDict(strict=True, extra="forbid")
"""Of every model: a value of another type, and a key that is not known, are refused."""


DEEPEST = 10
"""Levels of JSON that a model can have; the deepest has 4."""


class FileModel(Protocol):
    """A model of a file: a dataclass of pydantic's with `config=STRICT`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Repairable(FileModel, Protocol):
    """A model of a file that decides something. `REPAIR`: what a person does about a damaged one."""

    REPAIR: ClassVar[str]


class Record(Repairable, Protocol):
    """Of one file. `FILE`: its name in the run directory."""

    FILE: ClassVar[str]


ModelT = TypeVar("ModelT", bound=FileModel)
RepairableT = TypeVar("RepairableT", bound=Repairable)
RecordT = TypeVar("RecordT", bound=Record)


def load(paths: ClusterPaths, kind: type[RecordT]) -> RecordT | None:
    """The file of that model; None where there is none. Raises DamagedFileError."""
    return load_file(paths.root / kind.FILE, kind)


def load_file(file: Path, kind: type[RepairableT]) -> RepairableT | None:
    """As `load`, of a model that has several files."""
    try:
        content = regular_file.read(file, stored.LIMIT)
        document = stored.loads(content)  # refuses what could not be written again
        missing = [row.name for row in fields(kind) if isinstance(document, dict) and row.name not in document]
        if missing:  # every file is written whole: a default stands for nothing here
            raise ValueError(f"{', '.join(missing)} missing")
        record: RepairableT = _adapter(kind).validate_json(content)
        return record
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DamagedFileError(_first(error), str(file), hint=kind.REPAIR) from error
    except (ValueError, regular_file.UnfitFileError) as error:
        reason = error.strerror if isinstance(error, regular_file.UnfitFileError) else str(error)
        raise DamagedFileError(reason or "", str(file), hint=kind.REPAIR) from error


def save(paths: ClusterPaths, record: Record) -> None:
    """Write the file whole."""
    write_whole(paths.root / record.FILE, json.dumps(asdict(record), indent=1) + "\n")


def fit(kind: type[ModelT], document: dict[str, Any]) -> ModelT:
    """The model of a document, where all fields of the model have a default. A value that does not fit is removed from
    the document, and so is a row without a value that it needs. Other keys of the document stay, and are not read."""
    names = [row.name for row in fields(kind) if row.name in document]
    while True:
        try:
            known = json.dumps({name: _cut(document[name]) for name in names if name in document})
            model: ModelT = _adapter(kind).validate_json(known)
            return model
        except ValidationError as error:
            rows = error.errors(include_url=False, include_input=False, include_context=False)
            misfits = {row["loc"][:-1] if row["type"] == "missing" else row["loc"] for row in rows}
            for path in sorted(misfits, reverse=True):  # of a list the last first, of a row the values before the row
                _remove(document, path, names)


def _cut(value: Any, depth: int = DEEPEST) -> Any:
    """A value without what is nested more deeply than any model, which a parser would refuse as a whole. What is cut
    fits no model either."""
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return {}
    if isinstance(value, list):
        return [_cut(item, depth - 1) for item in value]
    return {key: _cut(item, depth - 1) for key, item in value.items()}


def _remove(document: dict[str, Any], path: tuple[int | str, ...], names: Sequence[str]) -> None:
    """Remove the value at a path; of the document itself (it is nested too deeply) all names of its model."""
    if not path:
        for name in names:
            document.pop(name, None)
        return
    parent: Any = document
    for part in path[:-1]:
        parent = parent[part]
    del parent[path[-1]]


@cache
def _adapter(kind: type[ModelT]) -> TypeAdapter[ModelT]:
    return TypeAdapter(kind)


def _first(error: ValidationError) -> str:
    """The first of its errors, with its place in the file."""
    row = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part)[:60] for part in row["loc"])
    return f"{path}: {row['msg']}" if path else str(row["msg"])
