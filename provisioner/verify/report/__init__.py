"""A report for every reader: JSON and JUnit for machines, a table for a terminal, one HTML page for people."""
