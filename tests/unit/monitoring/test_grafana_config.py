"""Grafana's provisioning files, on the simulated Grafana, and what that one refuses."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.monitoring import grafana_config
from provisioner.monitoring.dashboards.grafana import dashboards
from provisioner.monitoring.server_config import OWN_ADDRESS
from provisioner.sandbox.node import grafana, state

QUIET = "".join(f"[{section}]\n{key} = {value}\n" for section, key, value in dict.fromkeys(grafana.ONLINE[3:]))
INI = f"""\
[server]
http_addr = 127.0.0.1
http_port = 0
[paths]
provisioning = {grafana_config.FOLDER}/provisioning
[dashboards]
default_home_dashboard_path = {grafana_config.FOLDER}/dashboards/{grafana_config.HOME}
[analytics]
reporting_enabled = false
check_for_updates = false
check_for_plugin_updates = false
{QUIET}
"""
VIEWER = "[auth.anonymous]\nenabled = true\n[security]\ndisable_initial_admin_creation = true\n"
DATA_SOURCES = "provisioning/datasources/gpuprov.yaml"
PROVIDERS = "provisioning/dashboards/gpuprov.yaml"
FLEET = "dashboards/gpuprov-fleet.json"
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the files of a head node."""
    monkeypatch.setattr(state, "ROOT", str(tmp_path))
    for name, document in grafana_config.files().items():
        file = tmp_path / grafana_config.FOLDER.lstrip("/") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
    return tmp_path


def edit(root: Path, name: str, change: Edit) -> None:
    file = root / grafana_config.FOLDER.lstrip("/") / name
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def started(root: Path, ini: str) -> tuple[grafana.Server, Any]:
    (root / "grafana.ini").write_text(ini)
    return grafana.start("/grafana.ini", "12.4.3", {})


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[[str], str]]:
    servers: list[Any] = []

    def url(ini: str) -> str:
        _, server = started(root, ini)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield url
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_every_dashboard_is_there_and_the_only_data_source_is_the_prometheus_beside_it(root: Path) -> None:
    server, _ = started(root, INI)
    assert {hit["title"] for hit in server.search({})} == {board["title"] for board in dashboards().values()}
    assert server.home()[1]["dashboard"] == dashboards()["fleet"]
    (source,) = server.sources.values()
    assert (source["url"], source["access"], source["isDefault"]) == (f"http://{OWN_ADDRESS}", "proxy", True)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (DATA_SOURCES, lambda d: d.update(apiVersion=2), "apiVersion is not 1"),
        (DATA_SOURCES, lambda d: d.update(datasource=d.pop("datasources")), "unknown key datasource"),
        (DATA_SOURCES, lambda d: d["datasources"][0].update(isDefalt=True), "unknown key isDefalt"),
        (DATA_SOURCES, lambda d: d["datasources"][0].update(isDefault="yes"), "isDefault is not of type bool"),
        (DATA_SOURCES, lambda d: d["datasources"][0].update(type="prometeus"), "could not find plugin definition"),
        (DATA_SOURCES, lambda d: d["datasources"][0].pop("url"), "a data source without url"),
        (DATA_SOURCES, lambda d: d["datasources"].append(d["datasources"][0] | {"uid": "b"}), "Only one datasource"),
        (PROVIDERS, lambda d: d["providers"][0].update(options={}), "path param is not a string"),
        (PROVIDERS, lambda d: d["providers"][0].update(type="git"), "type git is not supported"),
        (PROVIDERS, lambda d: d["providers"].append(d["providers"][0]), "is not unique"),
    ],
)  # fmt: skip
def test_a_wrong_provisioning_file_ends_it(root: Path, file: str, change: Edit, message: str) -> None:
    edit(root, file, change)
    with pytest.raises(grafana.Wrong, match=message):
        started(root, INI)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (PROVIDERS, lambda d: d["providers"][0]["options"].update(path="/etc/elsewhere")),
        (FLEET, lambda d: d.update(title="")),
        (FLEET, lambda d: d.update(uid="not a uid")),
    ],
)
def test_what_it_cannot_load_is_missing(
    root: Path, capsys: pytest.CaptureFixture[str], file: str, change: Edit
) -> None:
    edit(root, file, change)
    server, _ = started(root, INI)
    assert server.board("gpuprov-fleet")[0] == 404
    assert "level=error" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["[server]\nhttp_adr = 1", "[auth.anonimous]\nenabled = true"])
def test_a_setting_that_it_does_not_know_ends_it(root: Path, setting: str) -> None:
    with pytest.raises(grafana.Wrong, match=r"knows no setting|already exists"):
        started(root, f"{setting}\n")


@pytest.mark.parametrize("key", ["preinstall_disabled", "news_feed_enabled", "check_for_updates"])
def test_a_setting_with_which_it_asks_the_internet_ends_it(root: Path, key: str) -> None:
    with pytest.raises(grafana.Wrong, match=f"{key} = .* it asks"):
        started(root, "".join(line for line in INI.splitlines(True) if not line.startswith(key)))


def test_without_gpuprovs_settings_there_is_an_admin_and_nobody_else(serve: Callable[[str], str]) -> None:
    """So a test that finds no admin on a head node can fail."""
    url, admin = serve(INI), {"Authorization": "Basic YWRtaW46YWRtaW4="}
    assert ask(f"{url}/api/health") == (200, {"database": "ok", "version": "12.4.3", "commit": ""})
    assert ask(f"{url}/api/search")[0] == 401
    assert ask(f"{url}/api/datasources", **admin)[0] == 200
    assert ask(f"{url}/login", {"user": "admin", "password": "admin"})[0] == 200
    assert ask(f"{url}/login", {"user": "admin", "password": "a"})[0] == 401


def test_a_viewer_looks_and_changes_nothing(serve: Callable[[str], str]) -> None:
    url = serve(INI + VIEWER)
    assert len(ask(f"{url}/api/search?type=dash-db")[1]) == len(dashboards())
    assert ask(f"{url}/login", {"user": "admin", "password": "admin"})[0] == 401
    assert ask(f"{url}/api/datasources")[0] == 403
    assert ask(f"{url}/api/dashboards/db", {})[0] == 403
    assert ask(f"{url}/api/datasources/proxy/uid/other/api/v1/query")[0] == 404


def test_a_page_of_another_site_gets_no_answer(serve: Callable[[str], str]) -> None:
    """Whose name leads to this computer's loopback (DNS rebinding)."""
    url = serve(INI.replace("[server]\n", "[server]\ndomain = 127.0.0.1\nenforce_domain = true\n") + VIEWER)
    assert ask(f"{url}/api/search")[0] == 200
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/api/search", headers={"Host": "evil.example.com:3000"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (301, b"")


def test_environment_variables_come_after_the_file(root: Path) -> None:
    (root / "grafana.ini").write_text("[server]\nhttp_port = 3001\n")
    values = grafana.settings("/grafana.ini", {"GF_SERVER_HTTP_PORT": "3002", "GF_AUTH_ANONYMOUS_ENABLED": "true"})
    assert values["server"]["http_port"] == "3002"
    assert values["auth.anonymous"]["enabled"] == "true"
