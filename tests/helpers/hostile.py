"""Good bytes made bad, by chance: what a parser has to survive.

RUNNEL_FUZZ_EXECS    how often parsers are tried, of each kind (200,000 unless told: seconds)
"""

import os
import random

EXECS = int(os.environ.get("RUNNEL_FUZZ_EXECS", "200000"))
NUMBERS = [b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80" * 6, b"\0" * 4, b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x7f"]


def mutated(good: bytes, chance: random.Random, first: int = 0) -> bytearray:
    """Bytes changed, overwritten by hostile lengths, cut out, doubled or inserted, from the `first` on."""
    mutant = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(first, max(first, len(mutant)) + 1)
        match chance.randrange(5):
            case 0 if position < len(mutant):
                mutant[position] = chance.randrange(256)
            case 1:
                number = chance.choice(NUMBERS)
                mutant[position : position + len(number)] = number
            case 2:
                del mutant[position : position + chance.randint(1, 8)]
            case 3:
                mutant[position:position] = mutant[position : position + chance.randint(1, 30)]
            case _:
                mutant[position:position] = chance.randbytes(chance.randint(1, 5))
    return mutant
