"""The machine's source of chance."""

import secrets


class SystemRng:
    """Chance from the operating system: nobody can guess it."""

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)
