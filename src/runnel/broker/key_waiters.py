"""Who waits for messages of a key."""

from collections.abc import Iterable

from runnel.broker.fetch import Waiter


class KeyWaiters:
    """By the hash of the key. Each is ended when it has to look again, maybe twice; it stays until it leaves."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, dict[Waiter, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, key_hash: int, waiter: Waiter) -> None:
        waiting = self._waiting.get(key_hash)
        if waiting is None:
            self._waiting[key_hash] = {waiter: None}
        else:
            waiting[waiter] = None

    def done(self, key_hash: int, waiter: Waiter) -> None:
        waiting = self._waiting.get(key_hash)
        if waiting is not None:
            waiting.pop(waiter, None)
            if not waiting:
                del self._waiting[key_hash]

    def end(self, key_hashes: Iterable[int] | None = None) -> None:
        """Those of these keys, or all."""
        waiting = self._waiting
        for key_hash in list(waiting) if key_hashes is None else key_hashes:
            for waiter in list(waiting.get(key_hash, ())):
                waiter.end()
