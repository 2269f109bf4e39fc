"""Suites of a distribution with its security updates, as plain files that apt reads: real packages without content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from provisioner.sandbox.deb import EPOCH, Deb


def write_suite(root: Path, suite: str, debs: Sequence[Deb]) -> None:
    """dists/SUITE and pool/ below `root`; Origin and Label are Ubuntu's."""
    paragraphs = []
    (root / "pool").mkdir(parents=True, exist_ok=True)
    for deb in debs:
        content = deb.build()
        (root / "pool" / deb.filename).write_bytes(content)
        head, description = deb.control().split("Description: ", 1)
        digest = hashlib.sha256(content).hexdigest()
        index = f"Filename: pool/{deb.filename}\nSize: {len(content)}\nSHA256: {digest}\n"
        paragraphs.append(f"{head}{index}Description: {description}")
    listing = "\n".join(paragraphs).encode()
    folder = root / "dists" / suite
    (folder / "main/binary-amd64").mkdir(parents=True, exist_ok=True)
    (folder / "main/binary-amd64/Packages").write_bytes(listing)
    (folder / "Release").write_text(
        f"Origin: Ubuntu\nLabel: Ubuntu\nSuite: {suite}\nCodename: {suite.partition('-')[0]}\nVersion: 0\n"
        f"Date: {formatdate(EPOCH, usegmt=True)}\nArchitectures: amd64\nComponents: main\nSHA256:\n"
        f" {hashlib.sha256(listing).hexdigest()} {len(listing)} main/binary-amd64/Packages\n"
    )
