"""The sandbox: every site as podman nodes with simulated hardware on this machine."""
