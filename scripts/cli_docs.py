"""docs/reference/cli and docs/reference/documents: the commands as Typer has them, and what `--json` prints.

scripts/check_docs.py writes both. A page of a command has its generated part between two marks; the explanation below
is kept. A page of a document is generated whole, with the example in scripts/data/examples.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provisioner.cli.main import COMMANDS, load
from provisioner.output import OUTPUTS
from provisioner.spec import schema

REFERENCE = Path(__file__).parent.parent / "docs/reference"
COMMAND_PAGES, DOCUMENT_PAGES = REFERENCE / "cli", REFERENCE / "documents"
EXAMPLES = Path(__file__).parent / "data/examples"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"
PRINTED_BY = {
    "validate": ("validate",), "plan": ("plan",), "report": ("up", "verify", "replace"), "facts": ("facts",),
    "status": ("status",), "clusters": ("status",), "upgrade": ("upgrade",), "maintain": ("maintain",), "run": ("run",),
    "down": ("down",), "gc": ("gc",),
    "monitoring": ("monitoring",), "monitoring-test": ("monitoring",),
    "cost": ("cost",), "size": ("size",), "bmc": ("bmc",), "doctor": ("doctor",), "image": ("image",),
    "run-list": ("run",), "bench": ("bench",),
    "image-list": ("image",), "image-diff": ("image",), "image-move": ("image",), "image-prune": ("image",),
    "image-nightly": ("image",),
    "error": (),
}  # fmt: skip
"""Document → the commands that print it; `error` is printed by each that comes to no answer."""
TYPES = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "Path": "PATH"}


def options(command: Any, call: str) -> str:
    """Help, usage and options of a command, and of the commands below it, as Markdown."""
    lines = [_paragraphs(command.help), "", "```", call + _usage(command), "```", ""]
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    rows = [f"| {_spelled(parameter)} | {_meaning(parameter)} |" for parameter in command.params if not subcommands]
    if rows:
        lines += ["| argument or option | meaning |", "| --- | --- |", *rows, ""]
    for name, inner in subcommands.items():
        lines += [f"## {name}", "", options(inner, f"{call} {name}")]
    return "\n".join(lines)


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _usage(command: Any) -> str:
    if getattr(command, "commands", {}):
        return " COMMAND"
    flags = " [OPTIONS]" if any(p.param_type_name == "option" for p in command.params) else ""
    return flags + "".join(f" {_argument(p)}" for p in command.params if p.param_type_name == "argument")


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`".replace("|", "\\|")
    value = "" if parameter.is_flag else f" {parameter.metavar or _type_name(parameter.type_descriptor.annotation)}"
    spellings = [f"`{spelling}{value}`" for spelling in (*parameter.opts, *parameter.secondary_opts)]
    return ", ".join(spellings).replace("|", "\\|")


def _type_name(annotation: Any) -> str:
    arguments = [a for a in typing.get_args(annotation) if a is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, arguments))
    if arguments:
        return _type_name(arguments[0])
    if members := getattr(annotation, "__members__", None):
        return "|".join(str(member.value) for member in members.values())
    return TYPES.get(getattr(annotation, "__name__", ""), "TEXT")


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    if parameter.param_type_name == "option" and not parameter.is_flag and isinstance(default, str | int | float):
        text += f" Default: `{default}`." if str(default) else ""
    return text


def command_page(name: str, text: str = "") -> str:
    """A command's page: `text` is the page as it was, whose part below the mark stays."""
    documents = [document for document, commands in PRINTED_BY.items() if name in commands]
    printed = ", ".join(f"[{document}](../documents/{document}.md)" for document in documents)
    generated = options(load(name, COMMANDS[name]), f"gpuprov {name}").rstrip()
    generated += f"\n\nWith `--json` it prints: {printed}." if printed else ""
    explanation = text.partition(END)[2].strip()
    return f"# {name}\n\n{BEGIN}\n\n{generated}\n\n{END}\n" + (f"\n{explanation}\n" if explanation else "")


def commands() -> str:
    """The table of docs/reference/cli/README.md."""
    rows = [f"| [{name}]({name}.md) | {entry.help} |" for name, entry in COMMANDS.items()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows]) + "\n"


def documents() -> str:
    """The table of docs/reference/documents/README.md."""
    lines = ["| document | printed by |", "| --- | --- |"]
    for name, commands in PRINTED_BY.items():
        printed = ", ".join(f"[{command}](../cli/{command}.md)" for command in commands)
        lines.append(f"| [{name}]({name}.md) | {printed or 'every command that comes to no answer'} |")
    return "\n".join(lines) + "\n"


def document_page(name: str) -> str:
    """A document's page: an example and every key."""
    document = schema.schema(name)
    example = (EXAMPLES / f"{name}.json").read_text(encoding="utf-8").strip()
    commands = ", ".join(f"[{command}](../cli/{command}.md)" for command in PRINTED_BY[name])
    lines = [f"# {name}", "", f"Printed by {commands or 'every command that comes to no answer'} with `--json`. "]
    lines[-1] += f"`gpuprov schema {name}` prints the JSON schema."
    lines += ["", "```json", example, "```", "", "## Keys", "", *_keys(document)]
    for title, block in document.get("$defs", {}).items():
        if "properties" in block:
            lines += [f"## {title}", "", *([_paragraphs(block["description"]), ""] if "description" in block else [])]
            lines += _keys(block)
        elif "enum" in block:
            lines += [f"## {title}", "", " or ".join(f"`{value}`" for value in block["enum"]) + ".", ""]
    return "\n".join(lines).rstrip() + "\n"


def _keys(block: dict[str, Any]) -> Iterator[str]:
    yield from ("| key | value | meaning |", "| --- | --- | --- |")
    for key, child in block.get("properties", {}).items():
        meaning = " ".join(str(child.get("description", "")).split()).replace("|", "\\|")
        yield f"| `{key}` | {_value(child)} | {meaning} |"
    yield ""


def _value(node: dict[str, Any]) -> str:
    """What a key holds, in words."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if branches := node.get("anyOf") or node.get("oneOf"):
        return " or ".join(dict.fromkeys(_value(branch) for branch in branches))
    if "enum" in node or "const" in node:
        return " or ".join(f"`{value}`" for value in node.get("enum", [node.get("const")]))
    match node.get("type"):
        case "array":
            return f"list of {_value(node['items'])}" if node.get("items") else "list"
        case "object":
            inner = node.get("additionalProperties")
            return f"by name: {_value(inner)}" if isinstance(inner, dict) and inner else "object"
        case str(name):
            return name
    return "any"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with its text as the code has it now."""
    for name in COMMANDS:
        file = COMMAND_PAGES / f"{name}.md"
        yield file, command_page(name, file.read_text(encoding="utf-8") if file.is_file() else "")
    for name in OUTPUTS:
        yield DOCUMENT_PAGES / f"{name}.md", document_page(name)
    for folder, table in ((COMMAND_PAGES, commands()), (DOCUMENT_PAGES, documents())):
        head, tail = (folder / "README.md").read_text(encoding="utf-8").split(BEGIN)
        yield folder / "README.md", f"{head}{BEGIN}\n\n{table}\n{END}{tail.split(END)[1]}"


def main() -> None:
    for file, text in pages():
        file.write_text(text, encoding="utf-8")
