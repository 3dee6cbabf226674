"""Decoders and encoders by message and version, each compiled once.

It stands apart from `codec`, which imports it when the first message is read or written: what only shows a help page
or starts up never pays for it.
"""

from functools import cache

from runnel.wire.kafka import notation
from runnel.wire.kafka.decoder import Decode, compile_decoder
from runnel.wire.kafka.encoder import Encode, compile_encoder


@cache
def decoder(name: str, version: int) -> Decode:
    return compile_decoder(notation.message(name), version)[0]


@cache
def encoder(name: str, version: int) -> Encode:
    return compile_encoder(notation.message(name), version)[0]


def versions(name: str) -> range:
    return notation.message(name).versions


def source(name: str, version: int) -> str:
    """The Python of both, to look at."""
    schema = notation.message(name)
    return compile_decoder(schema, version)[1] + "\n\n" + compile_encoder(schema, version)[1]
