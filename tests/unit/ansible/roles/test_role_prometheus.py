"""Role prometheus: files are in place only if promtool and amtool accept them, and nobody else reads them."""

from __future__ import annotations

import configparser
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jinja2
import pytest
import yaml

from provisioner.configure.inventory import group_variables
from provisioner.monitoring import grafana_config
from provisioner.plan.roles import prometheus
from provisioner.sandbox.node.grafana import ONLINE
from tests.support.plans import cluster_spec, plan
from tests.support.prometheus import TOOLS
from tests.support.role_script import load
from tests.support.sandbox_cluster import ROOT

ROLE = ROOT / "ansible/roles/prometheus"
FILES = {
    "prometheus.yml": "rule_files: [rules/*.yml]\n",
    "alertmanager.yml": json.dumps(
        {"route": {"receiver": "page"}, "receivers": [{"name": "page"}, {"name": "nobody"}]}
    ),
    "rules/a.yml": "groups: [{name: a, rules: [{alert: A, expr: vector(1)}]}]\n",
}


class Exit(Exception):
    """How the module ended."""

    def __init__(self, **result: Any) -> None:
        super().__init__(str(result))
        self.result = result


@pytest.fixture
def files_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PATH", f"{TOOLS}:{os.environ['PATH']}")
    loaded = load("prometheus", "library/prometheus_files.py")
    monkeypatch.setattr(loaded.grp, "getgrnam", lambda _: SimpleNamespace(gr_gid=os.getgid()))
    monkeypatch.setattr(loaded.os, "chown", lambda *_: None)
    return loaded


def archive(folder: Path, program: str, files: dict[str, str]) -> Path:
    path = folder / "prometheus.tar"
    with tarfile.open(path, "w") as tar:
        for name, text in [*files.items(), ("../another/file", "of another program")]:
            member = tarfile.TarInfo(f"{program}/{name}" if name in files else name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str], *,
        receivers: list[dict[str, Any]] | None = None, check: bool = False,
        program: str = "prometheus") -> dict[str, Any]:  # fmt: skip
    params = {"archive": str(archive(folder, program, files)), "program": program, "folder": str(folder / "out"),
              "group": program, "receivers": json.dumps(receivers or [])}  # fmt: skip

    def end(**result: Any) -> None:
        raise Exit(**result)

    fake = SimpleNamespace(
        params=params, check_mode=check, exit_json=end, tmpdir=str(folder), atomic_move=os.replace,
        fail_json=lambda msg: end(failed=True, msg=msg),
    )  # fmt: skip
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: fake)
    with pytest.raises(Exit) as caught:
        module.main()
    return caught.value.result


def installed(folder: Path) -> dict[str, str]:
    out = folder / "out"
    return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}


def test_files_are_put_in_place_once(files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(files_module, monkeypatch, tmp_path, FILES, check=True)["changed"] is True
    assert installed(tmp_path) == {}
    assert run(files_module, monkeypatch, tmp_path, FILES)["changed"] is True
    assert installed(tmp_path).keys() == FILES.keys()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()} == {0o640}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out", tmp_path / "out/rules")} == {0o750}
    assert run(files_module, monkeypatch, tmp_path, FILES)["changed"] is False


def test_files_of_grafana_are_put_in_place_as_they_are(
    files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"provisioning/datasources/a.yaml": "{}", "dashboards/b.json": "{}"}
    monkeypatch.setattr(files_module, "complaints", lambda _: "asked")
    for changes in (True, False):
        assert run(files_module, monkeypatch, tmp_path, files, program="grafana")["changed"] is changes
        assert installed(tmp_path) == files


def test_a_look_before_the_package_is_there_says_that_files_are_missing(
    files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(files_module.grp, "getgrnam", missing)
    assert run(files_module, monkeypatch, tmp_path, FILES, check=True)["changed"] is True
    assert run(files_module, monkeypatch, tmp_path, FILES)["msg"] == "there is no group prometheus"


def test_rules_of_an_earlier_set_go(files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(
        files_module,
        monkeypatch,
        tmp_path,
        {**FILES, "rules/b.yml": FILES["rules/a.yml"].replace("name: a", "name: b")},
    )
    done = run(files_module, monkeypatch, tmp_path, FILES)
    assert [Path(path).name for path in done["written"]] == ["b.yml"]
    assert installed(tmp_path).keys() == FILES.keys()


def test_receivers_are_those_of_the_user_and_no_secret_is_in_the_archive(
    files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = {"name": "page", "webhook_configs": [{"url": "https://hooks.example.com/s3cret"}]}
    run(files_module, monkeypatch, tmp_path, FILES, receivers=[page])
    written = json.loads(installed(tmp_path)["alertmanager.yml"])
    assert written["receivers"] == [page, {"name": "nobody"}]
    # and without them again
    run(files_module, monkeypatch, tmp_path, FILES)
    assert "s3cret" not in installed(tmp_path)["alertmanager.yml"]


@pytest.mark.parametrize(
    ("files", "receivers", "message"),
    [
        (
            {"rules/a.yml": "groups: [{name: a, rules: [{alert: A, expr: 'up ==='}]}]\n"},
            [],
            "could not parse expression",
        ),
        ({"prometheus.yml": "nonsense: 1\n"}, [], "nonsense"),
        ({}, [{"name": "page", "webhook_configs": [{"uri": "x"}]}], "receivers (monitoring.prometheus.receivers)"),
    ],
    ids=["rule", "configuration", "receiver"],
)
def test_what_is_refused_changes_nothing(
    files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str],
    receivers: list[dict[str, Any]], message: str,
) -> None:  # fmt: skip
    run(files_module, monkeypatch, tmp_path, FILES)
    previous = installed(tmp_path)
    done = run(files_module, monkeypatch, tmp_path, {**FILES, **files}, receivers=receivers)
    assert done["failed"] is True
    assert message in done["msg"]
    assert installed(tmp_path) == previous


@pytest.mark.parametrize(
    "config", [{"webhook_configs": "s3cret-of-the-pager"}, {"webhook_configs": [{"url": "s3cret-of-the-pager"}]}]
)
def test_no_value_of_a_receiver_is_in_the_message(
    files_module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: dict[str, Any]
) -> None:
    done = run(files_module, monkeypatch, tmp_path, FILES, receivers=[{"name": "page", **config}])
    assert done["failed"] is True
    assert "s3cret" not in done["msg"]


def test_the_packages_own_units_are_off_before_the_packages_are_there() -> None:
    """Debian's postinst starts them, on all addresses."""
    first, second, *_ = yaml.safe_load((ROLE / "tasks/install.yml").read_text(encoding="utf-8"))
    drop_ins = [row["dest"] for row in first["vars"]["prometheus_drop_ins"]]
    units = [*second["locked_packages"]["present"], "grafana-server"]
    assert drop_ins == [f"/etc/systemd/system/{name}.service.d/gpuprov.conf" for name in units]


def test_all_listen_on_loopback_alone() -> None:
    text = (ROLE / "tasks/configure.yml").read_text(encoding="utf-8")
    assert [option for option in text.split() if "listen-address" in option] == [
        "--web.listen-address=127.0.0.1:9090", "--web.listen-address=127.0.0.1:9093", "--cluster.listen-address=",
    ]  # fmt: skip
    assert grafana_settings()["server"] == {
        "http_addr": "127.0.0.1", "http_port": str(prometheus.GRAFANA_PORT), "domain": "127.0.0.1",
        "enforce_domain": "true",
    }  # fmt: skip


def grafana_settings() -> dict[str, dict[str, str]]:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))
    parser = configparser.RawConfigParser()
    parser.read_string(defaults["prometheus_grafana_ini"])
    return {section: dict(parser[section]) for section in parser.sections()}


def test_grafana_has_no_user_no_password_and_nobody_outside_to_ask() -> None:
    settings = grafana_settings()
    assert settings["security"]["disable_initial_admin_creation"] == "true"
    assert settings["auth"]["disable_login_form"] == "true"
    assert settings["auth.basic"]["enabled"] == "false"
    assert settings["auth.anonymous"] == {"enabled": "true", "org_role": "Viewer"}
    assert {(section, key): settings[section][key] for section, key, _ in ONLINE} == {
        (section, key): quiet for section, key, quiet in ONLINE
    }


def test_paths_of_grafana_are_those_of_its_files_and_of_its_unit() -> None:
    settings, tasks = grafana_settings(), (ROLE / "tasks/grafana.yml").read_text(encoding="utf-8")
    assert settings["paths"]["provisioning"] == f"{grafana_config.FOLDER}/provisioning"
    home = Path(settings["dashboards"]["default_home_dashboard_path"])
    assert str(home.relative_to(grafana_config.FOLDER)) in grafana_config.files()
    assert f"folder: {grafana_config.FOLDER}\n" in tasks
    (state,) = {line.partition("=")[2] for line in tasks.split() if line.startswith("StateDirectory=")}
    assert settings["paths"]["data"] == f"/var/lib/{state}"


def test_size_is_a_reason_to_drop_data_only_where_cluster_yaml_says_so() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))
    template = jinja2.Template(defaults["prometheus_retention_size"])
    assert template.render(prometheus_here={"retention_size": None}) == ""
    size = template.render(prometheus_here={"retention_size": "40GB"})
    assert size == "--storage.tsdb.retention.size=40GB"


def test_only_groups_that_cluster_yaml_names_run_it() -> None:
    planned = plan(cluster_spec("m6i.large", monitoring={"prometheus": {"at": "train"}}))
    assert group_variables("train", planned)["gpuprov_runs_prometheus"] is True
    assert group_variables("train", planned)["gpuprov_runs_grafana"] is False
    planned = plan(cluster_spec("m6i.large", monitoring={"grafana": True, "prometheus": {"at": "train"}}))
    assert group_variables("train", planned)["gpuprov_runs_grafana"] is True
    assert prometheus.head_units(planned.group("train"), planned) == (*prometheus.UNITS, prometheus.GRAFANA_UNIT)


def test_a_machine_that_is_held_to_a_lock_without_grafana_does_not_run_it() -> None:
    planned = plan(cluster_spec("m6i.large", monitoring={"grafana": True, "prometheus": {"at": "train"}}))
    (group,) = planned.groups
    older = replace(group, stack=group.stack.model_copy(update={"packages": ()}))
    assert prometheus.variables(older, planned) == {"gpuprov_runs_prometheus": True, "gpuprov_runs_grafana": False}
    assert prometheus.head_units(older, planned) == prometheus.UNITS
    for monitoring in ({}, {"prometheus": {"at": "external"}}):
        planned = plan(cluster_spec("m6i.large", monitoring=monitoring))
        assert group_variables("train", planned)["gpuprov_runs_prometheus"] is False


def test_where_the_files_lie_on_the_operators_computer_is_no_difference() -> None:
    look = prometheus.ROLE.depends_on["gpuprov_prometheus"]
    local = {"head": {"archive": "/a/head.tar", "receivers": "/a/r.yaml", "sha256": "1", "receivers_sha256": "2"}}
    elsewhere = {"head": {**local["head"], "archive": "/b/head.tar", "receivers": "/b/r.yaml"}}
    assert look(local) == look(elsewhere)
    assert look(local) != look({"head": {**local["head"], "receivers_sha256": "3"}})
