"""Run a command with stand-ins for providers, all where none is named: [NAME…] -- COMMAND

What this machine's environment says of Terraform counts more.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.schema_provider import Cloud, serving
from tests.support.schema_provider.cloud import names

mark = sys.argv.index("--")
with serving(*(Cloud(name) for name in sys.argv[1:mark] or names())) as environment:
    raise SystemExit(subprocess.run(sys.argv[mark + 1 :], env={**environment, **os.environ}, check=False).returncode)
