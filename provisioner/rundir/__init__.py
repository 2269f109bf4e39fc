"""The files of the run directory: one module for each."""
