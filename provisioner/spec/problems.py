"""What pydantic found, in plain words, at the place in the file, with the nearest right word."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

from pydantic import ValidationError

from provisioner.catalog.description import MACHINE_NAME_TITLE
from provisioner.common.suggest import did_you_mean, nearest
from provisioner.spec.base import NAME_TITLE, REFUSED
from provisioner.spec.keys import all_keys, branches_of, resolved, schema_of, union_key
from provisioner.spec.scalars import IF_TEXT, OCTAL, read_truth
from provisioner.spec.source_map import MAX_PROBLEMS, Loc, Source, dotted, shown

_KINDS: Mapping[type, str] = {
    dict: "a block of keys",
    list: "a list",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "text",
    type(None): "nothing",
}
_WANTED: Mapping[str, str] = {
    "dict_type": "a block of keys",
    "model_type": "a block of keys",
    "model_attributes_type": "a block of keys",
    "tuple_type": "a list, such as [a, b]",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "string_type": "text",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def add_problems(source: Source, error: ValidationError, root: Loc = ()) -> None:
    """Adds one problem for each place that `error` complains about; `root` is where the validated part lies."""
    reported: set[Loc] = set()
    items = error.errors(include_url=False, include_context=True)
    places = [_locate(source.value, root + _untagged(root + item["loc"])[len(root) :]) for item in items]
    for item, (loc, tail) in zip(items, places, strict=True):
        if len(source.problems) > MAX_PROBLEMS:
            return
        if item["type"] == "string_type" and any(other[: len(loc)] == loc != other for other, _ in places):
            continue  # a list where a text may stand, too: what is wrong inside it is reported
        if loc in reported and item["type"] not in ("missing", "extra_forbidden"):
            continue
        if any(loc[:n] in source.broken for n in range(len(loc) + 1)):
            continue
        if tail and any(other[: len(loc)] == loc for other in reported) and isinstance(_at(source.value, loc), list):
            continue  # a union's other member: what is wrong inside the list is said already
        if item["type"] == "too_short" and (loc in source.partial or len(_at(source.value, loc))):
            continue  # what it has was refused for itself
        reported.add(loc)
        _add(source, dict(item), loc, tail)


def _add(source: Source, item: dict[str, Any], loc: Loc, tail: Loc) -> None:
    kind = item["type"]
    mark = source.mark(loc)
    if kind == "missing":
        key = str(item["loc"][-1])
        _missing(source, loc, key)
    elif kind == "union_tag_not_found":
        _missing(source, loc, item["ctx"]["discriminator"].strip("'"))
    elif kind == "extra_forbidden":
        key = str(loc[-1])
        if refusal := _refused(loc[:-1], key, source.value):
            source.report(mark.key, loc, *refusal)
        else:
            source.report(mark.key, loc, f"unknown key {shown(key)}", _right_key(source, loc[:-1], key))
    elif tail == ("[key]",):
        title = MACHINE_NAME_TITLE if loc[0] == "machines" else NAME_TITLE
        source.report(mark.key, loc, f"{shown(str(loc[-1]))} is not {title}")
    elif kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in item["ctx"]["expected_tags"].split(",")]
        key = item["ctx"]["discriminator"].strip("'")
        at = (*loc, key)
        source.report(source.mark(at).value, at, *_not_one_of(item["ctx"]["tag"], tags))
    else:
        at = mark.key if _at(source.value, loc) is None else mark.value
        source.report(at, loc, *_bad_value(source, item, loc))


def _missing(source: Source, parent: Loc, key: str) -> None:
    if parent in source.partial or (*parent, key) in source.broken:
        return
    schema = schema_of(parent, key, value=source.value)
    members = resolved(schema_of(parent)).get("discriminator", {}).get("mapping", {})
    description = schema.get("title") or schema.get("description", "")
    if len(choices := _choices((*parent, key), source.value)) > 1 and _is_made_of(description, key):
        description = f"one of {', '.join(choices)}"
    expected_text = f"one of {', '.join(members)}" if key == union_key(parent) else description
    in_block = f" in {dotted(parent)}" if parent else ""
    source.report(source.mark(parent).key, (*parent, key), f'"{key}" is missing{in_block}', _lower(expected_text))


def _is_made_of(title: str, key: str) -> bool:
    """Whether a title is pydantic's own, for a key that has none."""
    return title == key.replace("_", " ").title()


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _bad_value(source: Source, item: dict[str, Any], loc: Loc) -> tuple[str, str]:
    kind, value = item["type"], _at(source.value, loc)
    raw = source.mark(loc).raw if loc in source.marks else None
    title = _title(loc, source.value)
    if choices := _choices(loc, source.value):
        if isinstance(value, str) and len(choices) > 1:
            return _refused(loc, value, source.value) or _not_one_of(value, choices)
        if not title or _is_made_of(title, str(loc[-1])):
            title = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if schema_of(loc, value=source.value).get("writeOnly"):  # a secret may stand there by mistake
        return f"{_name(loc)} is not {title}", "user and password never stand in cluster.yaml"
    if kind in _BOUNDS and isinstance(value, int):
        key, bound_text = _BOUNDS[kind]
        return f"{value} is too {'small' if key[0] == 'g' else 'large'}: {bound_text} {item['ctx'][key]}", ""
    if kind == "too_long":
        return f"{_name(loc)} has too many items: at most {item['ctx']['max_length']}", ""
    if kind == "too_short":
        return f"{dotted(loc)} is empty: it wants {title or 'at least one'}", ""
    if kind == "value_error" and isinstance(value, str) and "allow" in loc:
        return _bad_network(value, item["msg"])
    if value is None:
        return f"{_name(loc)} has no value: it wants {title or _WANTED.get(kind, 'one')}", ""
    text_or_list = _takes_text(schema_of(loc, value=source.value))
    if text_or_list and isinstance(value, str):
        return f"{shown(value)} is not {title}", ""
    takes_text = kind == "string_type" or text_or_list
    wants_text = takes_text and isinstance(value, bool | int | float)
    if wants_text and raw is not None and title and not _text_fits(loc, raw, source.value):
        return f"{_name(loc)} wants {title}, not {raw}", ""
    if wants_text and raw is not None:
        reads = f"the number {value}" if str(value) != raw and not isinstance(value, bool) else _KINDS[type(value)]
        return f"{_name(loc)} wants text; unquoted, {raw} is {reads}", f'quote it: "{raw}"'
    if isinstance(value, str) and kind.startswith(("string_", "literal_")):
        return f"{shown(value) if value else 'an empty text'} is not {title or 'allowed here'}", ""
    actual_text = shown(value) if isinstance(value, str) else raw or _KINDS.get(type(value), "this")
    expected_kind = (
        _WANTED.get(kind) if isinstance(value, dict | list) or kind in ("tuple_type", "model_type") else None
    )
    expected_kind = title if text_or_list and isinstance(value, dict | list) and title else expected_kind
    return f"{_name(loc)} wants {expected_kind or title or _WANTED.get(kind, 'something else')}, not {actual_text}", ""


def _takes_text(node: Mapping[str, Any]) -> bool:
    """Whether a place takes a text, or a list or block of texts."""
    kinds = {child.get("type") for child in branches_of(dict(node)) if "properties" not in child}
    return "string" in kinds and not kinds.isdisjoint(("array", "object"))


def _text_fits(loc: Loc, text: str, value: Any) -> bool:
    """Whether this text in quotes has the shape that a place wants."""
    texts = [child for child in branches_of(schema_of(loc, value=value)) if child.get("type") == "string"]
    return any(re.search(child.get("pattern", ""), text) for child in texts)


def right_values_for_doubtful_ones(source: Source) -> None:
    """What readers of YAML take for different values was refused before it was known what its key wants."""
    places = {dotted(loc): loc for loc in source.broken}
    for index, problem in enumerate(source.problems):
        if problem.hint.endswith(IF_TEXT) or problem.hint == OCTAL:
            loc = places.get(problem.path, ())
            hint = _right_value(source, loc) if loc in source.marks else f'quote it: "{loc[-1]}"' if loc else ""
            source.problems[index] = replace(problem, hint=hint or problem.hint)


def _right_value(source: Source, loc: Loc) -> str:
    """What to write in place of a doubtful value; "" where nothing is known of the place."""
    if choices := _choices(loc, source.value):
        return f"one of {', '.join(choices)}"
    kinds = {child.get("type") for child in branches_of(schema_of(loc, value=source.value))} - {None}
    raw, title = source.mark(loc).raw or "", _title(loc, source.value)
    if "boolean" in kinds and "string" not in kinds:
        truth = read_truth(raw)
        return f"write {truth}" if truth else f"it wants {title}" if title else ""
    if "boolean" in kinds:
        return ""
    if "string" in kinds and _text_fits(loc, raw, source.value):
        return f'quote it: "{raw}"'
    number = raw.replace("_", "").lstrip("0")  # 1_000, 017
    if "integer" in kinds and number.isdecimal():
        return f"write {number}"
    return f"it wants {title}" if title else ""


def refuse_blocks_without_value(source: Source) -> None:
    """A key with nothing behind it where a block stands, or nothing: whoever wrote `nas:` asked for one."""
    for loc, mark in source.marks.items():
        if mark.raw != "" or not loc or loc in source.broken:
            continue
        node = schema_of(loc, value=source.value)
        kinds = {child.get("type") for child in branches_of(node)}
        if "null" in kinds and any("properties" in child for child in branches_of(node)):
            needed = [key for child in branches_of(node) for key in child.get("required", ())]
            full = "{" + ", ".join(f"{key}: …" for key in needed) + "}"
            source.broken.add(loc)
            hint = f"write {loc[-1]}: {full}{'' if needed else ' for what is usual'}, or leave the key out for none"
            source.report(mark.key, loc, f"{_name(loc)} has no value", hint)


def _refused(loc: Loc, key: str, value: Any) -> tuple[str, str] | None:
    """Why a key of a block, or one of a key's values, is left out on purpose (`refused` in spec/base.py), and what to
    do instead."""
    for child in branches_of(schema_of(loc, value=value)):
        if key in (refusals := child.get(REFUSED, {})):
            reason, hint = refusals[key]
            return reason, hint
    return None


def _name(loc: Loc) -> str:
    return dotted(loc[-2:] if loc and isinstance(loc[-1], int) else loc[-1:]) or "the file"


def _bad_network(value: str, detail: str) -> tuple[str, str]:
    if "broader than" in detail:
        too = f"{shown(value)} is {detail.rpartition(', ')[2]}: ssh is never opened to every address"
        return too, "name the networks that you log in from, such as 203.0.113.0/24"
    try:
        return f"{shown(value)} has bits set behind its prefix", f"did you mean {ip_network(value, strict=False)}?"
    except ValueError:
        return f"{shown(value)} is not a network such as 203.0.113.0/24", ""


def _not_one_of(value: str, choices: list[str]) -> tuple[str, str]:
    return f"{shown(value)} is not one of {', '.join(choices)}", did_you_mean(value, choices)


_COUNT = re.compile(r"^(?:num|number_of|n)_|_(?:count|num|number)$")
"""What others put around a noun where gpuprov has its plural: gpu_count is gpus."""


def _right_key(source: Source, parent: Loc, key: str) -> str:
    """Nearest sibling key, or the block that a known key belongs to, or the keys that there are."""
    known = _keys(source, parent)
    if members := _members(parent, key):
        return f"it belongs to {' or '.join(members)}"
    plural = f"{_COUNT.sub('', key)}s"
    if suggestions := [plural] if _COUNT.search(key) and plural in known else nearest(key, known):
        return f"did you mean {suggestions[0]}?"
    homes = [block for block, keys in all_keys().items() if key in keys]
    if homes and homes[0].rpartition(".")[2] != str(parent[-1] if parent else ""):  # another cloud's block of that name
        return f"it belongs to {homes[0] or 'the top of the file'}"
    return f"known here: {', '.join(known)}" if known else ""


def _untagged(loc: Loc) -> Loc:
    """Drops the name of the union member that pydantic puts behind the place of a block that is a union."""
    for depth in range(1, len(loc)):
        is_gpu = loc[0] == "machines" and depth == 3 and loc[2] == "gpu"
        if (is_gpu or union_key(loc[:depth])) and loc[depth] != "[key]":
            return loc[:depth] + loc[depth + 1 :]
    return loc


def _locate(value: Any, loc: Loc) -> tuple[Loc, Loc]:
    """The part of `loc` that is in the file, and the rest (union members, a missing key, "[key]")."""
    root_value = value
    for depth, part in enumerate(loc):
        known: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if part not in known:
            if isinstance(value, list) and loc[depth + 1 :] and isinstance(part, str):  # which member of a union it is
                return _locate(root_value, loc[:depth] + loc[depth + 1 :])
            if isinstance(value, dict) and str(part).startswith("dict[") and loc[depth + 1 :]:  # or a text
                return _locate(root_value, loc[:depth] + loc[depth + 1 :])
            return loc[:depth], loc[depth:]
        value = value[part]
    return loc, ()


def _at(value: Any, loc: Loc) -> Any:
    for part in loc:
        value = value[part]
    return value


def _title(loc: Loc, value: Any) -> str:
    """What finishes "this is not ...", from the model; empty for blocks."""
    if len(loc) == 2 and loc[0] in ("sites", "groups"):
        return ""
    node = schema_of(loc, value=value)
    title = node.get("title")
    if not title and loc and isinstance(loc[-1], int):
        title = schema_of(loc[:-1], value=value).get("title")
    return str(title or "")


def _choices(loc: Loc, value: Any) -> list[str]:
    for child in branches_of(schema_of(loc, value=value)):
        if "enum" in child:
            return list(child["enum"])
        if "const" in child:
            return [child["const"]]
    return []


def _keys(source: Source, parent: Loc) -> list[str]:
    branches = list(branches_of(schema_of(parent, value=source.value)))
    decides = union_key(parent)
    member = _at(source.value, parent).get(decides) if decides else None
    keys: list[str] = []
    for child in branches:
        properties = child.get("properties", {})
        if member is None or properties.get(decides, {}).get("const") == member:
            keys.extend(key for key in properties if key not in keys)
    return keys


def _members(parent: Loc, key: str) -> list[str]:
    """Values of the deciding key with which a block has `key`: ["backend: s3"]; empty for a block that is no union."""
    decides = union_key(parent)
    with_it = (child.get("properties", {}) for child in branches_of(schema_of(parent))) if decides else ()
    return [
        f"{decides}: {properties[decides]['const']}"
        for properties in with_it
        if key in properties and decides in properties
    ]


def to_json(value: Any) -> str:
    """The composed value as JSON, which pydantic reads strictly but with lists for tuples and text for networks."""
    return json.dumps(value)
