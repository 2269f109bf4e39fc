"""Keys and tokens in files of the repository, by detect-secrets; what is known to be none is in .secrets.baseline.

detect-secrets asks all plugins about every line, which takes half a minute here. So its patterns look at whole files
first, and it sees only files in which one of them was found. Nothing is asked of a network.

    python scripts/find_secrets.py             exit status 1, and where they are
    python scripts/find_secrets.py --accept    what is found now is no secret: written into the baseline
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from detect_secrets import SecretsCollection
from detect_secrets.core import baseline
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.settings import transient_settings

BASELINE = Path(".secrets.baseline")
OTHER = ("KeywordDetector", "IPPublicDetector")
"""Words such as "password", and addresses: fixtures and documentation are full of them."""


def main(accept: bool) -> int:
    """Look through everything that git tracks, or would; run in the root of the repository."""
    classes = [c for c in get_mapping_from_secret_type_to_class().values() if issubclass(c, RegexBasedDetector)]
    detectors = [c for c in classes if c.__name__ not in OTHER]
    patterns = [pattern for detector in detectors for pattern in detector().denylist]
    with transient_settings({"plugins_used": [{"name": detector.__name__} for detector in detectors]}):
        secrets = SecretsCollection()
        for name in suspects(patterns):
            secrets.scan_file(name)
        if accept:
            BASELINE.write_text(json.dumps(baseline.format_for_output(secrets), indent=1) + "\n", encoding="utf-8")
            return 0
        known = baseline.load(baseline.load_from_file(str(BASELINE)))
        unknown = secrets - known
    for name, secret in unknown:
        print(f"{name}:{secret.line_number}: {secret.type}: take it out and revoke it; where it is none: --accept")
    return 1 if unknown else 0


def suspects(patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """Files in which one of the patterns is found somewhere."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=True)
    files = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        if Path(name).is_file() and name != str(BASELINE):
            text = Path(name).read_bytes().decode("utf-8", "replace")
            if any(pattern.search(text) for pattern in patterns):
                files.append(name)
    return files


if __name__ == "__main__":
    sys.exit(main("--accept" in sys.argv[1:]))
