"""The right word for a mistyped one, for every error that names what there is."""

from __future__ import annotations

from collections.abc import Collection

SHORT = 4
"""Letters up to which a word that is as near to several is no typo of one of them."""
PART = 3
"""Letters from which a word that is a part of another one may stand for it: p4d for p4d.24xlarge."""
ALIKE = 60
"""Of 100: how much alike a word and the right one are at least."""


def nearest(term: str, choices: Collection[str], limit: int = 1, *, alike: float = ALIKE) -> list[str]:
    """The right words that a wrong one may stand for, best first; none where none is near.

    >>> nearest("statsu", ["status", "up"]), nearest("p4d", ["p4d.24xlarge"]), nearest("PL7", ["PL0", "PL1"])
    (['status'], ['p4d.24xlarge'], [])
    """
    from rapidfuzz import fuzz, process

    def plain(text: str) -> str:
        return text.lower().replace("_", "-")

    known, candidate_limit = list(choices), limit + 1
    matches = process.extract(
        term[:100], known, scorer=fuzz.ratio, processor=plain, limit=candidate_limit, score_cutoff=alike
    )
    if not matches:
        return [name for name in known if plain(term) in plain(name)][:limit] if len(term) >= PART else []
    if limit == 1 and len(matches) > 1 and matches[0][1] == matches[1][1] and len(term) <= SHORT:
        return []  # PL7 is as near to PL0 as to PL1
    return [match[0] for match in (matches[:1] if matches[0][1] == 100 else matches[:limit])]


def did_you_mean(term: str, choices: Collection[str], limit: int = 1) -> str:
    """The question with the nearest words; "" where none is near."""
    suggestions = nearest(term, choices, limit)
    return f"did you mean {' or '.join(suggestions)}?" if suggestions else ""
