"""JSON schemas (draft 2020-12): cluster.yaml for editors, and the shapes of what `--json` prints."""

from __future__ import annotations

import json
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.output import OUTPUTS
from provisioner.spec.models import ClusterSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES = ("cluster", *OUTPUTS)


def schema(name: str = "cluster") -> dict[str, Any]:
    """The schema of that name (NAMES). Raises GpuprovError for another name."""
    if name == "cluster":
        model = ClusterSpec.model_json_schema()
        block = model["properties"]["machines"]
        texts = {key: block.pop(key) for key in ("default", "title", "description")}
        model["properties"]["machines"] = {**texts, "anyOf": [block, {"type": "string"}]}
    elif name in OUTPUTS:
        model = OUTPUTS[name].model_json_schema(mode="serialization")
    else:
        raise GpuprovError(f"there is no schema {name!r}", hint=f"one of {', '.join(NAMES)}")
    _close(model)
    return {"$schema": DIALECT, "title": f"gpuprov {name}", **{k: v for k, v in model.items() if k != "title"}}


def text(name: str = "cluster") -> str:
    """The schema as the file that editors read."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def key_names(document: dict[str, Any] | None = None) -> list[str]:
    """Every key of cluster.yaml, dotted; names that the user chooses stand as <name>: groups.<name>.count;
    of a list of blocks as storage.s3[].bucket."""
    root = document or schema()
    keys: dict[str, None] = {}

    def walk(node: dict[str, Any], prefix: str) -> None:
        node = {**root["$defs"][node["$ref"].rsplit("/", 1)[-1]], **node} if "$ref" in node else node
        for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            walk(branch, prefix)
        for key, child in node.get("properties", {}).items():
            keys[f"{prefix}{key}"] = None
            walk(child, f"{prefix}{key}.")
        for child in node.get("patternProperties", {}).values():
            walk(child, f"{prefix}<name>.")
        if "$ref" in node.get("items", {}):  # a list of blocks
            walk(node["items"], f"{prefix.removesuffix('.')}[].")

    walk(root, "")
    return list(keys)


def _close(node: Any) -> None:
    """Editors must mark a name that breaks the pattern of names, as gpuprov does."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for child in node.values():
            _close(child)
    elif isinstance(node, list):
        for child in node:
            _close(child)
