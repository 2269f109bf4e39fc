"""What the boot service of Azure's GPU image does: sku-customizations.service of azhpc-images.

Azure/azhpc-images 8e9d055, components/setup_sku_customizations.sh and components/customizations/ndv4.sh, ndv5.sh: at
its start it asks which size the machine has, links that family's topology file to /opt/microsoft/<family>/topo.xml and
writes /etc/nccl.conf anew; at its end it removes the folders and empties /etc/nccl.conf.
"""

from __future__ import annotations

import re
import shutil

from . import state

FAMILIES = {r"standard_nd.*v4": "ndv4", r"standard_nd96is.*_h[12]00_v5": "ndv5"}
"""Of the script's cases those whose settings have a topology file and InfiniBand."""
FOLDER = "opt/microsoft"
CONF = "etc/nccl.conf"


def sku_customizations(arguments: list[str], _version: str) -> int:
    """start or stop."""
    size = state.hardware()["machine"].lower()
    family = next((name for pattern, name in FAMILIES.items() if re.fullmatch(pattern, size)), None)
    if arguments[:1] == ["stop"]:
        for name in FAMILIES.values():
            shutil.rmtree(state.path(f"{FOLDER}/{name}"), ignore_errors=True)
        state.path(CONF).write_text("", encoding="utf-8")
    elif family is not None:
        link = state.path(f"{FOLDER}/{family}/topo.xml")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/{FOLDER}/{family}-topo.xml")
        lines = ("NCCL_IB_PCI_RELAXED_ORDERING=1", f"NCCL_TOPO_FILE=/{link.relative_to(state.path(''))}",
                 "NCCL_IGNORE_CPU_AFFINITY=1")  # fmt: skip
        state.path(CONF).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0
