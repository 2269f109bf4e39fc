"""Accounts of nodes, for tests in which all have the same."""

from __future__ import annotations

from collections import defaultdict

UBUNTU: defaultdict[str, str] = defaultdict(lambda: "ubuntu")
