"""Moving a running fleet to another lock, node by node."""
