"""`make lint` finds a key that somebody would commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "find_secrets.py"
TOKENS = {
    "aws": "AKIA" + "Q3EGUZ5MNWJ2RX7B",
    "github": "ghp_" + "a1B2c3" * 6,
    "key": "-----BEGIN RSA " + "PRIVATE KEY-----",
}


def look(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_new_key_is_found_at_its_line_and_an_accepted_one_is_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "plain.txt").write_text("nothing here\n")
    assert look(tmp_path, "--accept").returncode == 0
    for number, (name, token) in enumerate(TOKENS.items()):
        (tmp_path / f"{name}.txt").write_text("\n" * number + f"{token}\n")
    result = look(tmp_path)
    assert result.returncode == 1, result.stderr
    assert {line.split(": ")[0] for line in result.stdout.splitlines()} == {"aws.txt:1", "github.txt:2", "key.txt:3"}
    assert look(tmp_path, "--accept").returncode == 0
    assert look(tmp_path).returncode == 0
