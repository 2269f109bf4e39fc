"""Grafana dashboards: panels as rows (panels.py), made into Grafana's JSON with its own SDK (grafana.py)."""
