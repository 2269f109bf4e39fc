"""Text that other languages would read as code is refused, or is exactly that text in the ClusterSpec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common.errors import InputError

PAYLOADS = [
    '${file("/etc/passwd")}',
    "${path.root}",
    "$${x}",
    '"}',
    '"\n}\nresource "x" "y" {',
    "a\nb",
    "a\r\nb",
    "%{ if true }x%{ endif }",
    "{{ lookup('env', 'HOME') }}",
    "{% raw %}",
    "$(id)",
    "`id`",
    "; rm -rf /",
    "../../etc/passwd",
    "a\tb",
    "a\x00b",
    "\x1b[31mred",
    "<script>alert(1)</script>",
    "'; DROP TABLE nodes; --",
    "a\u202eb",
    " leading",
    "trailing ",
    "--option",
    "-oProxyCommand=id",
    "\\",
    "x" * 10_000,
]
BASE: dict[str, Any] = {
    "name": "vision",
    "sites": {"v": {"provider": "aws", "region": "us-east-1", "zones": ["us-east-1a"]}},
    "groups": {
        "t": {
            "machine": "p4d.24xlarge",
            "site": "v",
            "count": 1,
            "capacity": {"kind": "reservation", "id": "cr-1", "fallback": ["on-demand"]},
            "placement": "cluster",
            "storage": {"scratch": "/scratch"},
            "gpu": {"mig": "1g.5gb"},
        }
    },
    "stack": {"pytorch": "2.9", "driver": "580", "cuda": "13.0", "nccl": "2.27.7", "containers": ["a/b:c"]},
    "access": {"user": "ubuntu", "ssh_key": "~/.ssh/id", "allow": ["203.0.113.0/24"]},
    "verify": {"level": "quick", "min_healthy": "100%", "checks": ["checks"]},
    "state": {"backend": "local"},
}
VERBATIM = {("groups", "t", "capacity", "id"), ("access", "ssh_key"), ("verify", "checks", 0)}
"""Keys whose text is free; every other key has a shape that none of the payloads has."""


def strings(value: Any, loc: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [path for key in value for path in strings(value[key], (*loc, key))]
    if isinstance(value, list):
        return [path for index, item in enumerate(value) for path in strings(item, (*loc, index))]
    return [loc] if isinstance(value, str) else []


def put(value: Any, loc: tuple[Any, ...], text: str) -> Any:
    head, *inner_path = loc
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[head] = put(value[head], tuple(inner_path), text) if inner_path else text
    return copy


def at(value: Any, loc: tuple[Any, ...]) -> Any:
    for part in loc:
        value = value[part] if isinstance(value, dict | tuple) else getattr(value, part)
    return value


def test_the_base_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps(BASE))
    (tmp_path / "checks").mkdir()
    assert spec.load(path).groups["t"].placement == "cluster"


def test_every_string_key_is_tried() -> None:
    assert len(strings(BASE)) >= 20
    assert set(strings(BASE)) >= VERBATIM


@pytest.mark.parametrize("loc", strings(BASE), ids=lambda loc: ".".join(map(str, loc)))
def test_payload_in_a_value(loc: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for payload in PAYLOADS:
        path.write_text(json.dumps(put(BASE, loc, payload)))
        try:
            loaded = spec.load(path)
        except InputError as error:
            assert all("\n" not in str(p) and "\x1b" not in str(p) for p in error.problems)
            assert all(len(str(p)) < 1000 for p in error.problems)
            continue
        assert loc in VERBATIM, payload
        assert at(loaded, loc) == payload


@pytest.mark.parametrize("loc", [("sites", "v"), ("groups", "t")], ids=".".join)
def test_payload_as_a_name(loc: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for payload in PAYLOADS:
        section = {**BASE[loc[0]], payload: BASE[loc[0]][loc[1]]}
        path.write_text(json.dumps({**BASE, loc[0]: section}))
        with pytest.raises(InputError):
            spec.load(path)


def test_free_text_holds_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for loc in VERBATIM:
        for payload in ("a\nb", "a\rb", "a\u2028b", "a\x00b", "a\x85b"):
            path.write_text(json.dumps(put(BASE, loc, payload)))
            with pytest.raises(InputError):
                spec.load(path)
