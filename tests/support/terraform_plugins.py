"""Where Terraform's real providers are on this machine, for tests and linters; elsewhere the registry gives them.

`python -m tests.support.terraform_plugins` writes a CLI configuration for Terraform and prints its path.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ENVIRONMENT = "GPUPROV_TF_PLUGINS"
"""Folder of unpacked providers, <host>/<namespace>/<type>/<version>/<os>_<arch>/, searched before all others."""

PROVIDER = "registry.terraform.io/hashicorp/aws"


def mirror() -> Path | None:
    """A filesystem mirror that holds the AWS provider, or None."""
    configured = [Path(os.environ[name]) for name in (ENVIRONMENT, "TF_PLUGIN_CACHE_DIR") if os.environ.get(name)]
    default_folders = [Path.home() / ".terraform.d" / "plugins", Path("/usr/local/share/terraform/plugins")]
    for folder in (*configured, *default_folders, *sorted(Path("/opt").glob("*plugins*"))):
        if any(folder.glob(f"{PROVIDER}/*/*/terraform-provider-aws*")):
            return folder
    return None


def cli_config(folder: Path) -> Path:
    """Write Terraform's CLI configuration into that folder: the mirror where there is one, else downloads kept for
    the next time."""
    mirror_folder = mirror()
    if mirror_folder:
        text = (
            "provider_installation {\n"
            f'  filesystem_mirror {{\n    path    = "{mirror_folder}"\n    include = ["{PROVIDER}"]\n  }}\n'
            f'  direct {{\n    exclude = ["{PROVIDER}"]\n  }}\n}}\n'
        )
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuprov-tests" / "terraform"
        cache.mkdir(parents=True, exist_ok=True)
        text = f'plugin_cache_dir = "{cache}"\nplugin_cache_may_break_dependency_lock_file = true\n'
    file = folder / "terraform.rc"
    file.write_text(text, encoding="utf-8")
    return file


if __name__ == "__main__":
    print(cli_config(Path(tempfile.mkdtemp(prefix="gpuprov-terraform-"))))
