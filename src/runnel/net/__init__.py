"""Sockets: the only part that knows them. Frames come in, parts of responses go out."""
