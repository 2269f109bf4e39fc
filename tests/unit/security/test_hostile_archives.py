"""Bundles of a few bytes that mean to be endless work: one budget of bytes, members and time ends all of them."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.verify.support_bundle import budget, read
from provisioner.verify.support_bundle.budget import Budget
from provisioner.verify.support_bundle.pieces import Piece, pieces

MIB = 1 << 20
XID = b"[    1.0] NVRM: Xid (PCI:0000:10:1c): 79, pid=1, GPU has fallen off the bus.\n"


def spent(path: Path, size: int = 8 * MIB) -> list[Piece]:
    return list(pieces(path, Budget(str(path), size=size)))


def header(name: bytes, size: bytes, kind: bytes, extra: bytes = b"") -> bytes:
    """A tar header with fields as they are given."""
    block = bytearray(512)
    block[0:len(name)], block[124:124 + len(size)], block[156:157] = name, size, kind  # fmt: skip
    block[100:108], block[257:265] = b"0000644\0", b"ustar  \0"
    block[386:386 + len(extra)] = extra  # fmt: skip
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def base256(number: int) -> bytes:
    return b"\x80" + number.to_bytes(11, "big")


def old_gnu_sparse(path: Path) -> None:
    """A file of 2^60 bytes, all of them a hole behind one block."""
    entry = b"00000000000\0" + b"00000001000\0"
    extra = entry + bytes(72) + b"\0" + base256(1 << 60)
    path.write_bytes(header(b"dmesg.txt", b"00000001000\0", b"S", extra) + XID.ljust(512, b"\n") + bytes(1024))


def pax_sparse(path: Path) -> None:
    """The same in pax' form 1.0."""
    stored = b"1\n0\n512\n".ljust(512, b"\0") + XID.ljust(512, b"\n")
    info = tarfile.TarInfo("GNUSparseFile.0/dmesg.txt")
    info.size = len(stored)
    info.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "dmesg.txt",
        "GNU.sparse.realsize": str(1 << 60),
    }  # fmt: skip
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(stored))


def pax_size(path: Path) -> None:
    """A member that says it has 2^62 bytes; the archive ends after its first."""
    info = tarfile.TarInfo("dmesg.txt")
    info.pax_headers = {"size": str(1 << 62)}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b""))


def base256_size(path: Path) -> None:
    path.write_bytes(header(b"dmesg.txt", base256(1 << 70), b"0") + XID)


def links_of_a_size(path: Path) -> None:
    """Kinds of members that no program knows have data too."""
    path.write_bytes(header(b"a", base256(1 << 62), b"V") + header(b"b", base256(1 << 62), b"Z") + bytes(1024))


@pytest.mark.parametrize("make", [old_gnu_sparse, pax_sparse, pax_size, base256_size, links_of_a_size])
def test_a_size_that_an_archive_only_claims_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "b.tar")
    assert (tmp_path / "b.tar").stat().st_size <= 10240
    try:
        reasons = [piece.why for piece in spent(tmp_path / "b.tar")]
    except GpuprovError as error:
        reasons = [str(error)]
    refused = ("sparse file", "says that it has", "the archive is cut", "a header of more than 1 MiB")
    assert reasons and all(any(text in reason for text in refused) for reason in reasons)


def test_what_lies_beside_a_sparse_file_is_read(tmp_path: Path) -> None:
    old_gnu_sparse(tmp_path / "b.tar")
    with (tmp_path / "b.tar").open("r+b") as stream:
        stream.seek(1024)
        stream.write(header(b"dmesg", f"{len(XID):011o}\0".encode(), b"0") + XID.ljust(512, b"\0") + bytes(1024))
    supplied = read(tmp_path / "b.tar")
    assert [name for name, _ in supplied.placed] == ["dmesg"]
    assert "sparse" in dict(supplied.unplaced)["dmesg.txt"]


@pytest.mark.parametrize("pack", [bz2.compress, gzip.compress], ids=["bz2", "gzip"])
def test_compressed_members_are_paid_from_the_budget_of_all(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """40 members of some hundred bytes that unpack to 1 MiB each: the 9th is too much."""
    packed = pack(b"\n" * MIB)
    with tarfile.open(tmp_path / "b.tgz", "w:gz") as archive:
        for number in range(40):
            info = tarfile.TarInfo(f"log/{number}.log")
            info.size = len(packed)
            archive.addfile(info, io.BytesIO(packed))
    read_pieces: list[Piece] = []
    with pytest.raises(GpuprovError, match="unpacks to more than 8 MiB"):
        for piece in pieces(tmp_path / "b.tgz", Budget(size=8 * MIB)):
            read_pieces.append(piece)
    assert len(read_pieces) < 9


def test_files_of_a_folder_and_their_members_are_counted_together(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / "b" / f"d{number}").mkdir(parents=True)
        (tmp_path / "b" / f"d{number}" / "f").write_bytes(gzip.compress(b"text"))
    with pytest.raises(GpuprovError, match="more than 50 files"):
        list(pieces(tmp_path / "b", Budget(members=50)))


def test_a_zip_whose_entries_share_their_bytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\n" * MIB)
        entry = archive.infolist()[0]
        archive.filelist += [entry] * 40
    with pytest.raises(GpuprovError, match="unpacks to more than 8 MiB"):
        spent(tmp_path / "b.zip")


def test_what_gives_nothing_ends_by_the_clock(tmp_path: Path) -> None:
    """Empty gzip members, one after the other: no byte comes out, and each takes its time."""
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"") * 20_000)
    ticks: Iterator[int] = iter(range(1_000_000))
    with pytest.raises(GpuprovError, match="reading it takes more than 5 s"):
        list(pieces(tmp_path / "b.gz", Budget(seconds=5, clock=lambda: next(ticks))))


def test_the_clock_is_read_while_texts_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_bytes(b"$ nvidia-smi -L\nx\n" * 100)
    monkeypatch.setattr(budget, "SECONDS", -1.0)
    with pytest.raises(GpuprovError, match="takes more than"):
        read(tmp_path / "b")


def test_a_file_that_becomes_a_pipe_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "dmesg").write_bytes(XID)
    inspect = os.stat

    def swapped(path: Path, **options: bool | int | None) -> os.stat_result:
        status = inspect(path, **options)  # type: ignore[arg-type]
        if Path(path).name == "dmesg":
            Path(path).unlink()
            os.mkfifo(path)
        return status

    monkeypatch.setattr(os, "stat", swapped)
    assert [piece.why for piece in pieces(tmp_path / "b", Budget())] == ["no plain file"]


@pytest.mark.parametrize(
    "content",
    [
        header(b"x", b"00000001000\0", b"S", b"\xff" * 24) + b"x",
        header(b"x", b"00000000000\0", b"S", bytes(96) + b"\1"),  # goes on in a block that is missing
        header(b"x", struct.pack(">B", 0xFF) * 12, b"0"),  # a negative size
        header(b"x", b"zzz", b"0"),
        header(b"x", b"00000000012\0", b"x") + b"999999 a=b\n",
    ],
    ids=["sparse-map", "sparse-ends", "negative", "no-number", "pax-length"],
)
def test_a_damaged_header_is_said_and_no_defect(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(content)
    try:
        assert not any(piece.text for piece in spent(tmp_path / "b.tar"))
    except GpuprovError as error:
        assert "cannot be read" in str(error)
