"""What went through a door so far: plain numbers, which whoever watches reads when it likes."""


class Traffic:
    __slots__ = ("bytes_in", "bytes_out", "connections", "requests")

    def __init__(self) -> None:
        self.connections = 0  # that were accepted
        self.requests = 0  # that were answered
        self.bytes_in = 0
        self.bytes_out = 0
