"""What a BMC's answer means, in one sentence and with what to do; rows of data/answers.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provisioner.common import yaml_text
from provisioner.common.text import printable
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.tree import text

_FILE = Path(__file__).parent / "data" / "answers.yaml"
_MOST = 200
"""Characters of a BMC's own text that are shown."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an answer. `id`: the last part of its MessageId, without the registry and its version."""

    id: str = ""
    text: str = ""
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """`kind`: what follows from it (busy, credentials, denied, in-post, internal, job, licence, media-unreachable,
    no-session, not-found, parameter-missing, parameter-refused, precondition, refused, session-limit, success,
    unsupported); `again`: the same request may succeed a while later; `said`: the BMC's own words, "" where there are
    none; `what`: the parameter that it is about."""

    kind: str
    say: str
    do: str
    again: bool = False
    said: str = ""
    what: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind != "success"

    def error(self, where: str = "", status: int | None = None) -> BmcError:
        message = f"{self.say} ({self.said})" if self.said else self.say
        return BmcError(message, where=where, hint=self.do, kind=self.kind, status=status)


@cache
def _data() -> Any:
    return yaml_text.load(_FILE.read_text(encoding="utf-8"))


def messages(body: bytes | str) -> list[Message]:
    """The messages of an answer's body, wherever a vendor puts them; empty for HTML, a cut body and no body."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return []
    return list(_messages(document))


def _messages(document: object) -> Iterator[Message]:
    if not isinstance(document, Mapping):
        return
    for key, value in document.items():
        if key.endswith("@Message.ExtendedInfo"):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Mapping):
                    args = each.get("MessageArgs")
                    yield Message(
                        (text(each.get("MessageId")) or "").rpartition(".")[2],
                        " ".join(filter(None, (text(each.get("Message")), text(each.get("Resolution"))))),
                        tuple(arg for arg in args if isinstance(arg, str)) if isinstance(args, list) else (),
                    )
    if isinstance(inside := document.get("error"), Mapping):
        yield from _messages(inside)
        if not any(key.endswith("@Message.ExtendedInfo") for key in inside) and (
            message_text := text(inside.get("message"))
        ):
            yield Message((text(inside.get("code")) or "").rpartition(".")[2], message_text)


def read(status: int | None, body: bytes | str) -> Answer:
    """What an answer means. `status`: of HTTP; None where only the body is known."""
    answer_messages = messages(body)
    is_success = status is not None and status < 400
    message_text = next((message.text for message in answer_messages if message.text), "")
    message_text = printable(" ".join(message_text.split()))[:_MOST]
    for row in _data()["answers"]:
        if row["kind"] == "success" and status is not None and not is_success:
            continue
        for message in answer_messages:
            if (arguments := _fits(row, message)) is not None:
                fitting = [each for other in answer_messages if (each := _fits(row, other)) is not None]
                setting_names = tuple(dict.fromkeys(each[0] for each in fitting if each))
                return Answer(
                    row["kind"], _filled(row["say"], arguments, setting_names), row["do"], row.get("again", False),
                    "" if row["kind"] == "success" else message_text, setting_names,
                )  # fmt: skip
    if is_success or (status is None and not answer_messages):
        return Answer("success", "the request was accepted", "")
    by_status = _data()["statuses"].get(status)
    if by_status is None:
        server = status is not None and status >= 500
        by_status = _data()["statuses"][500 if server else 400]
    return Answer(by_status["kind"], by_status["say"], by_status["do"], by_status.get("again", False), message_text)


def _fits(row: Mapping[str, Any], message: Message) -> tuple[str, ...] | None:
    """What fills the row's sentence where it fits a message; None where it does not."""
    if "id" in row:
        return message.args if message.id == row["id"] else None
    match = re.search(row["text"], message.text, re.IGNORECASE)
    return None if match is None else tuple(match.groups())


def _filled(sentence: str, arguments: tuple[str, ...], setting_names: tuple[str, ...]) -> str:
    first = " and ".join(setting_names) if setting_names else "a setting"
    second = arguments[1] if len(arguments) > 1 else first
    return str(printable(sentence.replace("{0}", first).replace("{1}", second)))
