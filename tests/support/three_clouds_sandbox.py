"""`python -m tests.support.three_clouds_sandbox up FILE`: gpuprov whose Alibaba Cloud, Azure and Tencent Cloud have
simulated machines."""

from __future__ import annotations

import os
import sys

from tencentcloud.common.http import request

from provisioner.cli.main import run
from provisioner.machines.providers.alicloud import provider as alicloud
from provisioner.machines.providers.tencent import provider as tencent
from tests.support import alicloud_sandbox, azure_sandbox, tencent_sandbox

if __name__ == "__main__":
    # Tencent's account is a proxy, which the SDK of Alibaba Cloud would take for its own.
    proxy = os.environ.pop("http_proxy")
    request._get_proxy_from_env = lambda *_, **__: proxy
    azure_sandbox.stand_in()
    alicloud.PROVIDER = alicloud_sandbox.SandboxRun
    tencent.PROVIDER = tencent_sandbox.SandboxRun
    sys.exit(run(sys.argv[1:]))
