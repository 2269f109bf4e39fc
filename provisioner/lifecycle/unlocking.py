"""`gpuprov unlock`: clear what a run that died left of its locks."""

from __future__ import annotations

from provisioner.lifecycle.session import Cluster

TERRAFORM_LOCKS = "sites/*/.terraform.tfstate.lock.info"


def unlock(cluster: Cluster) -> list[str]:
    """Remove Terraform's lock files and a dead holder of the shared state; what was removed. Raises LockedError while a
    holder on this machine lives: the kernel knows."""
    with cluster.alone_here("unlock"):
        stale = sorted(cluster.paths.root.glob(TERRAFORM_LOCKS))
        for file in stale:
            file.unlink()
        return [*map(str, stale), *(cluster.sharing.clear() if cluster.sharing else ())]
