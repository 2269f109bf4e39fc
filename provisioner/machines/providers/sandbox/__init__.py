"""The sandbox: every site rehearsed on this machine, as podman nodes with simulated hardware."""
