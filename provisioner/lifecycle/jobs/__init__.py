"""Jobs of `gpuprov run`: one container on each of several nodes, kept together until the last has ended."""
