"""One moto server and one initialised provider for all tests of the AWS module."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from provisioner.common.paths import data
from tests.support import aws_provider, moto_aws, terraform_plugins
from tests.support.aws_life import Life, live
from tests.support.aws_root import Root
from tests.support.moto_aws import Cloud


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for the whole of a fleet's life come last: it goes on beside the others."""
    items.sort(key=lambda item: "life" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    with moto_aws.serve() as served:
        yield served


@pytest.fixture(scope="session")
def initialised(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A root module that `terraform init` has seen, and the provider that runs beside it."""
    folder = tmp_path_factory.mktemp("aws")
    config = terraform_plugins.cli_config(tmp_path_factory.mktemp("rc"))
    retained = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TF_"))}
    environment = {
        **retained,
        "TF_CLI_CONFIG_FILE": str(config),
        "CHECKPOINT_DISABLE": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "GOGC": "400",  # the provider's schema is huge: a third of a plan is collecting its garbage
    }
    shutil.copytree(
        data("terraform") / "aws", folder / "module", ignore=shutil.ignore_patterns("examples", ".terraform*")
    )
    root = Root(folder, cloud, environment)
    root.write_calls({name: {"groups": {}, "aws": {"groups": {}}} for name in ("site", "guest", "closed")})
    root.terraform("init", "-input=false", "-no-color")
    with aws_provider.running(cloud) as attached:
        root.environment |= attached
        yield root


@pytest.fixture(scope="session")
def attached(cloud: Cloud) -> Iterator[dict[str, str]]:
    """A provider for commands of gpuprov: what their environment has."""
    with aws_provider.running(cloud) as attached:
        yield attached


@pytest.fixture(scope="session")
def new_root(initialised: Root, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A maker of initialised root modules without a state."""

    def make() -> Root:
        folder = tmp_path_factory.mktemp("root")
        for name in (".terraform", "module"):
            (folder / name).symlink_to(initialised.folder / name)
        shutil.copy(initialised.folder / ".terraform.lock.hcl", folder)
        return Root(folder, initialised.cloud, initialised.environment)

    return make


@pytest.fixture(scope="session")
def started(request: pytest.FixtureRequest, cloud: Cloud, new_root: Any) -> Iterator[Future[Life] | None]:
    """A fleet's life, begun with the first test and running beside the others, with a provider of its own; None where
    no test asks for it."""
    if not any("life" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    root: Root = new_root()
    with aws_provider.running(cloud) as attached, ThreadPoolExecutor(1) as pool:
        root.environment = root.environment | attached
        yield pool.submit(live, root)


@pytest.fixture(scope="session")
def life(started: Future[Life] | None) -> Life:
    """The whole of it, when it has ended."""
    assert started is not None
    return started.result()


@pytest.fixture
def root(new_root: Any) -> Root:
    test_root: Root = new_root()
    return test_root
