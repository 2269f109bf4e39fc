"""What a cluster.yaml may turn out to be instead of one: bytes, encodings, kinds of files, bombs. Never a traceback."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.errors import Exit, InputError

GOOD = b"name: vision\nsites: {v: {provider: aws, region: us-east-1}}\ngroups: {t: {machine: p4d.24xlarge}}\n"

BYTES = {
    "empty": (b"", "1:1", "the file is empty"),
    "comments only": (b"# nothing\n", "1:1", "the file is empty"),
    "null": (b"---\n", "2:1", "does not hold keys"),
    "a word": (b"vision\n", "1:1", "does not hold keys"),
    "UTF-8 BOM": (b"\xef\xbb\xbf" + GOOD, "1:1", "byte order mark"),
    "UTF-16 LE": (GOOD.decode().encode("utf-16"), "1:1", "UTF-16"),
    "UTF-16 BE": (b"\xfe\xff" + GOOD.decode().encode("utf-16-be"), "1:1", "UTF-16"),
    "UTF-32 BE": (b"\x00\x00\xfe\xff" + GOOD.decode().encode("utf-32-be"), "1:1", "UTF-32"),
    "UTF-16 without BOM": (GOOD.decode().encode("utf-16-le"), "1:2", "NUL"),
    "Latin-1": (GOOD + b"# caf\xe9\n", "4:6", "not UTF-8"),
    "half a character": (b"name: vi\xc3", "1:9", "not UTF-8"),
    "a surrogate in UTF-8": (b"name: \xed\xa0\x80\n", "1:7", "not UTF-8"),
    "NUL": (b"name: vi\x00sion\n", "1:9", "NUL"),
    "control character": (b"name: vision\nx: \x1b[31m\n", "2:4", "U+001B"),
    "line separator": ("name: a\u2028b\n".encode(), "1:8", "U+2028"),
    "BOM in the middle": ("name: vision\nx: \ufeff1\n".encode(), "2:4", "U+FEFF"),
    "escaped surrogate": (b'name: "\\ud800"\n', "1:10", "escape"),
    "1 MiB and a byte": (b"#" * (1 << 20) + b"\n", "1:1", "larger than 1 MiB"),
    "10 MB": (b"a: b\n" * 2_000_000, "1:1", "larger than 1 MiB"),
    "too many keys": (b"".join(b"k%d: 1\n" % i for i in range(60_000)), "5000:8", "too many values"),
    "deep lists": (b"a: " + b"[" * 500_000, "1:54", "too many levels"),
    "deep blocks": (b"{a: " * 100_000, "1:202", "too many levels"),
    "deep dashes": (b"- " * 100_000, "1:103", "too many levels"),
    "deep under a dropped key": (b"a: 1\na: " + b"[" * 1000, "2:54", "too many levels"),
    "directive": (b"%FOO bar\n" + GOOD, "1:5", "directive"),
    "old YAML": (b"%YAML 2.0\n---\n" + GOOD, "1:1", "YAML"),
    "alias without anchor": (b"*a : b\n", "1:1", "key must be a word"),
    "only a quote": (b'"', "1:1", "never closed"),
    "carriage returns": (GOOD.replace(b"\n", b"\r") + b"x: 1\r", "4:1", 'unknown key "x"'),
    "CRLF": (GOOD.replace(b"\n", b"\r\n") + b"x: 1\r\n", "4:1", 'unknown key "x"'),
}


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("case", BYTES)
def test_bytes(case: str, tmp_path: Path) -> None:
    data, position, message = BYTES[case]
    path = write(tmp_path, data)
    problems = [p for p in spec.check(path) if message in p.message]
    assert problems, spec.check(path)[:5]
    assert (problems[0].file, f"{problems[0].line}:{problems[0].column}") == (str(path), position)
    with pytest.raises(InputError) as caught:
        spec.load(path)
    assert caught.value.exit_code == Exit.BAD_INPUT


@pytest.mark.parametrize("data", [GOOD, b"---\n" + GOOD, b"%YAML 1.2\n---\n" + GOOD, GOOD + b"...\n"])
def test_what_is_allowed(data: bytes, tmp_path: Path) -> None:
    assert spec.load(write(tmp_path, data)).name == "vision"


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_line_endings_of_others(ending: bytes, tmp_path: Path) -> None:
    assert spec.load(write(tmp_path, GOOD.replace(b"\n", ending))).groups["t"].machine == "p4d.24xlarge"


def test_alias_bomb_is_refused_at_each_anchor(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    problems = spec.check(write(tmp_path, "\n".join(rows).encode()))
    assert sum("anchor (&a" in p.message for p in problems) >= 8
    assert len(problems) == 101
    assert problems[-1].message == "more problems follow"


def test_a_directory(tmp_path: Path) -> None:
    assert [p.message for p in spec.check(tmp_path)] == ["this is a directory, not a file"]


def test_a_pipe_without_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert [p.message for p in spec.check(tmp_path / "fifo")] == ["this is a pipe, not a file"]


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes at most
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket")
        assert [p.message for p in spec.check("socket")] == ["this is a socket, not a file"]


def test_a_device() -> None:
    assert [p.message for p in spec.check("/dev/zero")] == ["this is a device, not a file"]


def test_a_missing_file(tmp_path: Path) -> None:
    (problem,) = spec.check(tmp_path / "none.yaml")
    assert problem.message == "cannot be read: no such file or directory"


def test_a_file_as_a_folder(tmp_path: Path) -> None:
    (problem,) = spec.check(write(tmp_path, GOOD) / "x.yaml")
    assert problem.message == "cannot be read: not a directory"


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (problem,) = spec.check(tmp_path / "loop")
    assert "too many levels of symbolic links" in problem.message


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    (problem,) = spec.check(write(tmp_path, GOOD))
    assert problem.message == "cannot be read: permission denied"


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "caf\udce9.yaml"])
def test_names_that_are_none(name: str) -> None:
    (problem,) = spec.check(name)
    assert problem.message.startswith("cannot be read: ")
