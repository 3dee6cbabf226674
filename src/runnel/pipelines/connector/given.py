"""The options that a user gave, as values. Names are case-insensitive, as Spark has them.

Rule 1: an option that nothing listens to is refused, with the nearest name that there is: a typo must not count for
        nothing.
Rule 2: whatever the text is, it becomes a value or a BadOption that names the option, its value and what is allowed.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

from runnel.client.connecting import DEFAULT
from runnel.pipelines.errors import BadOption, UnknownOption

BROKERS = "runnel.brokers"
ALIASES = {
    "kafka.bootstrap.servers": BROKERS,
    "kafka.group.id": "group.id",
    "kafka.isolation.level": "isolation",
    "maxRowsPerTrigger": "maxOffsetsPerTrigger",
}
NEAR = 0.6  # how alike two names are that one may be meant by the other

_CANONICAL = {alias.lower(): name for alias, name in ALIASES.items()}
_SIZE = re.compile(r"(\d+)\s*(b|k|kb|m|mb|g|gb|t|tb)?", re.IGNORECASE)
_POWER = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SPAN = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_SPAN_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Given:
    """Options as they were given, under the names that are known."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in (*known, BROKERS)}
        self._texts: dict[str, str] = {}
        for raw, text in options.items():
            canonical = _CANONICAL.get(raw.lower(), raw)
            name = names.get(canonical.lower())
            if name is None:
                raise _unknown(raw, names.values())
            if self._texts.get(name, text) != text:
                raise BadOption(raw, text, f"{name} is the same option and says {self._texts[name]!r}: give one")
            self._texts[name] = text

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str, default: str = "") -> str:
        return self._texts.get(name, default).strip()

    def brokers(self) -> tuple[str, ...]:
        named = tuple(part.strip() for part in self.text(BROKERS, DEFAULT).split(",") if part.strip())
        if not named:
            raise BadOption(BROKERS, self.text(BROKERS), "name at least one HOST:PORT, several with commas between")
        return named

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise BadOption(name, text, "use true or false")
        return text == "true"

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these words; the first is the default."""
        text = self.text(name, choices[0]).lower()
        if text not in choices:
            raise BadOption(name, text, f"use {' or '.join(choices)}")
        return text

    def count(self, name: str) -> int | None:
        """A number from 1 on."""
        if name not in self:
            return None
        text = self.text(name)
        if not text.isdecimal() or int(text) < 1:
            raise BadOption(name, text, "use a whole number from 1 on")
        return int(text)

    def size(self, name: str) -> int | None:
        """A number of bytes from 1 on."""
        if name not in self:
            return None
        match = _SIZE.fullmatch(self.text(name))
        if match is None or int(match[1]) < 1:
            raise BadOption(name, self.text(name), "use a number of bytes from 1 on, or with a unit as in 64m or 1g")
        return int(match[1]) << 10 * _POWER[(match[2] or "b")[0].lower()]

    def span_ms(self, name: str, default: str) -> int:
        """A span of time."""
        text = self.text(name, default)
        match = _SPAN.fullmatch(text)
        if match is None:
            raise BadOption(name, text, "use a number with a unit (ms, s, m, h, d), as in 30s or 15m")
        return int(match[1]) * _SPAN_MS[match[2].lower()]


def is_given(options: Mapping[str, str], name: str) -> bool:
    """Whether an option was given, before the others are looked at."""
    return name.lower() in {raw.lower() for raw in options}


def _unknown(raw: str, names: Iterable[str]) -> UnknownOption:
    spelled = {name.lower(): name for name in (*names, *ALIASES)}
    near = difflib.get_close_matches(raw.lower(), spelled, n=1, cutoff=NEAR)
    if near:
        return UnknownOption(f"there is no option {raw!r}: did you mean {spelled[near[0]]!r}?")
    if raw.lower().startswith("kafka."):
        return UnknownOption(
            f"there is no option {raw!r}: it sets up Kafka's own client, which is not used; leave it out"
        )
    return UnknownOption(f"there is no option {raw!r}: use one of {', '.join(sorted(spelled.values()))}")
