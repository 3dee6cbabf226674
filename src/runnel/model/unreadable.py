"""What the decoders of msgspec raise at bytes that others wrote, of whatever kind those are.

Beside errors of its own these are what Python raises at texts that are not UTF-8, and at values in values in values.
"""

from typing import Final

from msgspec import DecodeError

UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)
# Decoders of records also take what they read apart: its elements may be too few, too many, or of other types.
FOREIGN: Final = (*UNREADABLE, TypeError, ValueError, LookupError, StopIteration)
