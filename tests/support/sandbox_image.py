"""Make the image of sandbox nodes, for which the first fleet would wait: `python -m tests.support.sandbox_image`."""

from __future__ import annotations

from provisioner.sandbox import assets

if __name__ == "__main__":
    assets.prepare((), lambda *_, **__: None)
