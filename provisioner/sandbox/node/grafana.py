"""Grafana without pages: it reads its settings and provisioning files as Grafana 12 does, and answers of the HTTP API
what shows them. data/sources.yaml has where that was read.

It is stricter: a setting, a key or a data source that it does not know ends it, and so does a setting with which the
real one asks the internet. YAML is read as far as it is JSON, which is what gpuprov writes.
"""

from __future__ import annotations

import base64
import configparser
import json
import os
import re
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import state

Json = dict[str, Any]

DEFAULTS: dict[str, dict[str, str]] = {
    "paths": {"data": "data", "logs": "data/log", "plugins": "data/plugins", "provisioning": "conf/provisioning"},
    "server": {"http_addr": "", "http_port": "3000", "domain": "localhost", "root_url": "",
               "enforce_domain": "false"},
    "log": {"mode": "console file", "level": "info"},
    "security": {"disable_initial_admin_creation": "false", "admin_user": "admin", "admin_password": "admin",
                 "disable_gravatar": "false"},
    "users": {"allow_sign_up": "false"},
    "auth": {"disable_login_form": "false"},
    "auth.basic": {"enabled": "true"},
    "auth.anonymous": {"enabled": "false", "org_name": "Main Org.", "org_role": "Viewer", "hide_version": "false"},
    "analytics": {"reporting_enabled": "true", "check_for_updates": "true", "check_for_plugin_updates": "true",
                  "feedback_links_enabled": "true"},
    "plugins": {"plugin_admin_enabled": "true", "preinstall_disabled": "false", "preinstall_auto_update": "true",
                "public_key_retrieval_disabled": "false"},
    "news": {"news_feed_enabled": "true"},
    "snapshots": {"enabled": "true"},
    "public_dashboards": {"enabled": "true"},
    "unified_alerting": {"enabled": "true"},
    "dashboards": {"default_home_dashboard_path": "", "min_refresh_interval": "5s"},
}  # fmt: skip
"""Sections and keys of conf/defaults.ini with their values; those that a head node has use for."""
ONLINE = (
    ("analytics", "reporting_enabled", "false"), ("analytics", "check_for_updates", "false"),
    ("analytics", "check_for_plugin_updates", "false"), ("plugins", "preinstall_disabled", "true"),
    ("news", "news_feed_enabled", "false"),
)  # fmt: skip
"""Settings with which it asks grafana.com nothing."""
SOURCE_KEYS = {
    "orgId": int, "orgName": str, "version": int, "name": str, "type": str, "access": str, "url": str, "user": str,
    "database": str, "basicAuth": bool, "basicAuthUser": str, "withCredentials": bool, "isDefault": bool,
    "correlations": list, "jsonData": dict, "secureJsonData": dict, "editable": bool, "uid": str,
}  # fmt: skip
PROVIDER_KEYS = {
    "name": str, "type": str, "orgId": int, "folder": str, "folderUid": str, "editable": bool, "options": dict,
    "disableDeletion": bool, "updateIntervalSeconds": int, "allowUiUpdates": bool,
}  # fmt: skip
UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
ASK = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
READ_AGAIN_S = 10
"""updateIntervalSeconds, where a file does not say it."""


class Wrong(Exception):
    """A file with which the real one does not start, or does not do what it says."""


def settings(config: str, environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Defaults, then the file, then GF_SECTION_KEY."""
    parser = configparser.RawConfigParser()
    parser.read_dict(DEFAULTS)
    try:
        parser.read_string(state.path(config.lstrip("/")).read_text(encoding="utf-8"))
    except (OSError, configparser.Error) as error:
        raise Wrong(f"{config}: {error}") from None
    for section in parser.sections():
        for key in parser[section]:
            if key not in DEFAULTS.get(section, {}):
                raise Wrong(f"{config}: the simulator knows no setting {section}.{key}")
            name = f"GF_{section}_{key}".upper().replace(".", "_")
            parser[section][key] = environment.get(name) or parser[section][key]
    return {section: dict(parser[section]) for section in parser.sections()}


def _documents(folder: Path) -> Iterator[tuple[Path, Json]]:
    """Files of a provisioning folder: .yaml and .yml, others are not looked at."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix in (".yaml", ".yml"):
            try:
                document = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise Wrong(f"{file}: {error}") from None
            if not isinstance(document, dict) or document.get("apiVersion") != 1:
                raise Wrong(f"{file}: apiVersion is not 1")
            yield file, document


def _rows(file: Path, document: Json, key: str, known: Mapping[str, type], more: tuple[str, ...] = ()) -> list[Json]:
    rows: Any = document.get(key)
    if unknown := sorted(document.keys() - {"apiVersion", key, *more}):
        raise Wrong(f"{file}: unknown key {unknown[0]}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Wrong(f"{file}: {key} is no list of mappings")
    for row in rows:
        for name, value in row.items():
            if name not in known:
                raise Wrong(f"{file}: unknown key {name}")
            if type(value) is not known[name]:
                raise Wrong(f"{file}: {name} is not of type {known[name].__name__}")
    return rows


def data_sources(provisioning: Path) -> dict[str, Json]:
    """uid → data source."""
    sources: dict[str, Json] = {}
    for file, document in _documents(provisioning / "datasources"):
        for row in _rows(file, document, "datasources", SOURCE_KEYS, ("deleteDatasources", "prune")):
            for key in ("name", "type", "url", "uid"):
                if not row.get(key):
                    raise Wrong(f"{file}: a data source without {key}")
            if row["type"] != "prometheus":
                raise Wrong(f"{file}: could not find plugin definition for data source {row['type']}")
            if row.setdefault("access", "proxy") not in ("proxy", "direct"):
                raise Wrong(f"{file}: access is proxy or direct")
            if row["uid"] in sources:
                raise Wrong(f"{file}: two data sources have the uid {row['uid']}")
            sources[row["uid"]] = row
    if sum(bool(row.get("isDefault")) for row in sources.values()) > 1:
        raise Wrong("datasource.yaml config is invalid. Only one datasource per organization can be marked as default")
    return sources


def providers(provisioning: Path) -> list[Json]:
    """Where dashboards come from."""
    result: list[Json] = []
    for file, document in _documents(provisioning / "dashboards"):
        for row in _rows(file, document, "providers", PROVIDER_KEYS):
            if row.get("name") in {other.get("name") for other in result}:
                raise Wrong(f"dashboard name {row.get('name')!r} is not unique")
            if row.setdefault("type", "file") != "file":
                raise Wrong(f"type {row['type']} is not supported")
            if not isinstance(row.get("options", {}).get("path"), str):
                raise Wrong("failed to load dashboards, path param is not a string")
            result.append(row)
    return result


def dashboards(provider: Json) -> dict[str, Json]:
    """uid → dashboard of the files below the provider's path. One that is not right is left out, and said."""
    result: dict[str, Json] = {}
    folder = state.path(provider["options"]["path"].lstrip("/"))
    if not folder.is_dir():
        _say(f"failed to search for dashboards: {folder} is not there")
    for file in sorted(folder.rglob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            if not document["title"] or not UID.fullmatch(document["uid"]) or document["uid"] in result:
                raise ValueError("title or uid is not usable")
        except (OSError, ValueError, KeyError, TypeError) as error:
            _say(f"failed to load dashboard from {file}: {error}")
            continue
        result[document["uid"]] = document
    return result


class Server:
    """What the API answers from."""

    def __init__(self, values: dict[str, dict[str, str]], version: str) -> None:
        self.values, self.version = values, version
        provisioning = state.path(values["paths"]["provisioning"].lstrip("/"))
        self.sources, self.providers = data_sources(provisioning), providers(provisioning)
        self.read()

    def read(self) -> None:
        self.boards = [(provider, dashboards(provider)) for provider in self.providers]

    def on(self, section: str, key: str) -> bool:
        return self.values[section][key].lower() in ("true", "1")

    def is_admin(self, user: str, password: str) -> bool:
        security = self.values["security"]
        exists = not self.on("security", "disable_initial_admin_creation")
        return exists and (user, password) == (security["admin_user"], security["admin_password"])

    def search(self, query: Mapping[str, list[str]]) -> list[Json]:
        hits: list[Json] = []
        for provider, boards in self.boards:
            folder = provider.get("folder", "")
            for uid, board in boards.items():
                slug = re.sub(r"[^a-z0-9]+", "-", board["title"].lower()).strip("-")
                hits.append({
                    "id": len(hits) + 1, "uid": uid, "orgId": 1, "title": board["title"], "uri": f"db/{slug}",
                    "url": f"/d/{uid}/{slug}", "slug": "", "type": "dash-db", "tags": board.get("tags", []),
                    "isStarred": False, "folderTitle": folder, "sortMeta": 0,
                })  # fmt: skip
        text, kind = (query.get(key, [""])[0] for key in ("query", "type"))
        return [hit for hit in hits if text.lower() in hit["title"].lower() and kind in ("", hit["type"])]

    def board(self, uid: str) -> tuple[int, Json]:
        for provider, boards in self.boards:
            if uid in boards:
                meta = {"provisioned": True, "canSave": bool(provider.get("allowUiUpdates")), "slug": "",
                        "folderTitle": provider.get("folder", "")}  # fmt: skip
                return 200, {"meta": meta, "dashboard": boards[uid]}
        return 404, {"message": "Dashboard not found"}

    def home(self) -> tuple[int, Json]:
        file = self.values["dashboards"]["default_home_dashboard_path"]
        try:
            document = json.loads(state.path(file.lstrip("/")).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 500, {"message": "Failed to load home dashboard"}
        return 200, {"meta": {"isHome": True}, "dashboard": document}

    def proxy(self, uid: str, path: str) -> tuple[int, Any]:
        """What the data source answers."""
        if uid not in self.sources:
            return 404, {"message": "Unable to find datasource"}
        address = f"{self.sources[uid]['url'].rstrip('/')}/{path}"
        try:
            with ASK(address, timeout=30) as answer:
                return answer.status, json.load(answer)
        except (OSError, ValueError) as error:
            return 502, {"message": f"bad gateway: {error}"}


class Api(BaseHTTPRequestHandler):
    """The paths of the API that show what was provisioned, and who may look."""

    server_version = "grafana (simulated by gpuprov)"
    grafana: Server

    def do_GET(self) -> None:
        grafana, parts = self.grafana, urllib.parse.urlsplit(self.path)
        components = parts.path.strip("/").split("/")
        if parts.path == "/api/health":
            version = {} if grafana.on("auth.anonymous", "hide_version") else {"version": grafana.version, "commit": ""}
            return self._answer(200, {"database": "ok", **version})
        if self._is_redirected():
            return None
        admin = self._is_admin()
        if not admin and not grafana.on("auth.anonymous", "enabled"):
            return self._answer(401, {"message": "Unauthorized"})
        match components:
            case ["api", "search"]:
                return self._answer(200, grafana.search(urllib.parse.parse_qs(parts.query)))
            case ["api", "dashboards", "home"]:
                return self._answer(*grafana.home())
            case ["api", "dashboards", "uid", uid]:
                return self._answer(*grafana.board(uid))
            case ["api", "datasources", "proxy", "uid", uid, *tail]:
                return self._answer(*grafana.proxy(uid, "/".join(tail) + (f"?{parts.query}" if parts.query else "")))
            case ["api", "datasources"]:
                role = grafana.values["auth.anonymous"]["org_role"]
                if admin or role == "Admin":
                    return self._answer(200, list(grafana.sources.values()))
                return self._answer(403, {"message": "You'll need additional permissions to perform this action."})
        return self._answer(404, {"message": "Not found (simulated by gpuprov)"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        grafana = self.grafana
        if self._is_redirected():
            return None
        if self.path == "/login" and not grafana.on("auth", "disable_login_form"):
            try:
                login = json.loads(body)
                if grafana.is_admin(login["user"], login["password"]):
                    return self._answer(200, {"message": "Logged in"})
            except (ValueError, KeyError, TypeError):
                pass
        if self.path == "/login":
            return self._answer(401, {"message": "Invalid username or password"})
        changes = self._is_admin() or (
            grafana.on("auth.anonymous", "enabled") and grafana.values["auth.anonymous"]["org_role"] != "Viewer"
        )
        return self._answer(501 if changes else 403, {"message": "simulated by gpuprov" if changes else "Forbidden"})

    def _is_redirected(self) -> bool:
        """Whether the request names another host than the domain, and was sent there (enforce_domain)."""
        grafana, host = self.grafana, self.headers.get("Host", "").partition(":")[0]
        server = grafana.values["server"]
        if not grafana.on("server", "enforce_domain") or host.lower() == server["domain"].lower():
            return False
        self.send_response(301)
        self.send_header("Location", f"http://{server['domain']}:{server['http_port']}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def _is_admin(self) -> bool:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        if kind != "Basic" or not self.grafana.on("auth.basic", "enabled"):
            return False
        user, _, password = base64.b64decode(text).decode(errors="replace").partition(":")
        return self.grafana.is_admin(user, password)

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The journal of a node is not for one line a request."""


def _say(message: str) -> None:
    print(f"logger=provisioning level=error msg={json.dumps(message)}", file=sys.stderr, flush=True)


def start(config: str, version: str, environment: Mapping[str, str]) -> tuple[Server, ThreadingHTTPServer]:
    """A server that listens. Raises Wrong where a file is not as it has to be."""
    values = settings(config, environment)
    for section, key, quiet in ONLINE:
        if values[section][key] != quiet:
            raise Wrong(f"with {section}.{key} = {values[section][key]} it asks grafana.com")
    grafana = Server(values, version)
    ThreadingHTTPServer.daemon_threads = True
    address = (values["server"]["http_addr"] or "0.0.0.0", int(values["server"]["http_port"]))  # noqa: S104 - as the real one
    return grafana, ThreadingHTTPServer(address, type("GrafanaApi", (Api,), {"grafana": grafana}))


def grafana(arguments: list[str], version: str) -> int:
    """`grafana server`."""
    if "--version" in arguments or "-v" in arguments:
        print(f"grafana version {version} (simulated by gpuprov)")
        return 0
    options = dict(a.removeprefix("--").split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
    if arguments[:1] != ["server"] or "config" not in options:
        print("usage (simulated by gpuprov): grafana server --homepath=DIR --config=FILE", file=sys.stderr)
        return 1
    try:
        served, server = start(options["config"], version, os.environ)
    except (Wrong, OSError) as error:
        _say(str(error))
        return 1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait: Callable[[float], bool] = threading.Event().wait
    while not wait(READ_AGAIN_S):
        served.read()
    return 0
