"""A stand-in for a cloud's Terraform provider: its real schema, served to real Terraform, over an imitated cloud.

Real Terraform plans and applies a module against it, and refuses what the real provider's schema refuses: an argument
that is misspelled or of the wrong type, a required block that is missing, an attribute that is not there. What a schema
does not tell (which argument forces a new resource, which exclude each other, what an id looks like) stands in
`<name>.yaml` beside this file, each with its source. What a cloud itself would refuse is not known here: tests say
which answers it gives (`Cloud.fail`).

    with Cloud("alicloud").serving() as environment:
        subprocess.run(["terraform", "apply", "-auto-approve"], env={**os.environ, **environment})

`python -m tests.support.schema_provider NAME… -- COMMAND` runs a command with stand-ins for these providers.
"""

from tests.support.schema_provider.cloud import Cloud
from tests.support.schema_provider.server import serving

__all__ = ["Cloud", "serving"]
