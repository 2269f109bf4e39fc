"""State that several operators of a cluster share: the place, the lease of who is at work, and the files beside it."""
