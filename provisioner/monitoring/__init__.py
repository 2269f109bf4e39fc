"""Prometheus rules, scrape targets, Alertmanager routes and dashboards of one cluster, from the catalogue of checks.

`fleet.py` says what is watched, `rules/` has the alerting and recording rules by subject, `export.py` writes them all.
Everything is a pure function of cluster.yaml, the catalogue and the nodes: the same input gives the same bytes.
"""
