"""gpuprov's own checks, one file per area; provisioner/verify/check.py says how one is written."""
