"""What gives jobs to the nodes: a Slurm cluster of them."""
