"""How much memory a text of JSON or msgpack takes when it is decoded: told from its bytes, before that is done.

Rule 1: the weight is never below what decoding allocates, and is found at the speed of memory.
Rule 2: bytes that only look like structure (a comma in a text) weigh too: texts are never looked through one by one
        unless it matters.
"""

from typing import Final

from runnel.model.seams import Buffer

JSON_BYTES: Final = 128  # for each comma, object and list: a value in an object of Python's, and its share of that
JSON_STRUCTURE: Final = (b",", b"{", b"[")
VALUE_BYTES: Final = 600  # of a value of msgpack: an empty array may become an object with all its defaults
MARKS: Final = bytes((*range(0x80, 0xC0), 0xC4, 0xD9, *range(0xDC, 0xE0)))  # begin arrays, maps, and short texts
SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of a length
EXTENSIONS: Final = frozenset((0xC7, 0xC8, 0xC9))  # a byte for their type comes before what has that length
FIXED: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
    **{0xA0 + size: size for size in range(32)},
}  # fmt: skip  # bytes behind the first one; of all others there are none
STEPS: Final = [0 if first in SIZED else 1 + FIXED.get(first, 0) for first in range(256)]


def json_weight(body: bytes) -> int:
    """Bytes that a body of JSON takes beside its own once it is decoded, at most."""
    return JSON_BYTES * sum(map(body.count, JSON_STRUCTURE))


def marks(body: Buffer) -> int:
    """Values of msgpack that take more than their bytes, at most: bytes that may begin one."""
    data = bytes(body)
    return len(data) - len(data.translate(None, MARKS))


def values(body: Buffer, most: int) -> int:
    """Values of msgpack, counted one by one up to `most` and one more. What is torn is counted as far as it goes."""
    data, at, end, count = bytes(body), 0, len(body), 0
    while at < end and count <= most:
        count += 1
        step = STEPS[data[at]]
        at += step or _sized(data, at)
    return count


def _sized(data: bytes, at: int) -> int:
    """How many bytes a value takes that says its length."""
    width = SIZED[data[at]]
    return 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big") + (data[at] in EXTENSIONS)
