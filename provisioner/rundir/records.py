"""The files of the run directory that decide something: read by their model, which refuses what it does not know."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from provisioner.common import regular_file, stored
from provisioner.common.errors import DamagedFileError
from provisioner.common.paths import ClusterPaths, write_whole

STRICT = ConfigDict(strict=True, extra="forbid")
"""Of every model: a value of another type, and a key that is not known, are refused."""


class Record(Protocol):
    """A model of a file: a dataclass of pydantic's with `config=STRICT`. `FILE`: its name in the run directory;
    `REPAIR`: what a person does about a damaged one."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    FILE: ClassVar[str]
    REPAIR: ClassVar[str]


RecordT = TypeVar("RecordT", bound=Record)


def load(paths: ClusterPaths, kind: type[RecordT]) -> RecordT | None:
    """The file of that model; None where there is none. Raises DamagedFileError."""
    file = paths.root / kind.FILE
    try:
        content = regular_file.read(file, stored.LIMIT)
        document = stored.loads(content)  # refuses what could not be written again
        missing = [row.name for row in fields(kind) if isinstance(document, dict) and row.name not in document]
        if missing:  # every file is written whole: a default stands for nothing here
            raise ValueError(f"{', '.join(missing)} missing")
        record: RecordT = _adapter(kind).validate_json(content)
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


@cache
def _adapter(kind: type[RecordT]) -> TypeAdapter[RecordT]:
    return TypeAdapter(kind)


def _first(error: ValidationError) -> str:
    """The first of its errors, with its place in the file."""
    row = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part)[:60] for part in row["loc"])
    return f"{path}: {row['msg']}" if path else str(row["msg"])
