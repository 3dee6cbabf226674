"""How a program of the tests is run with one of the Java clients: from an archive of its classes, if there is one."""

from functools import cache

from tests.compat import setup_clients
from tests.helpers.class_archive import ClassArchive


@cache
def archive(version: str) -> ClassArchive:
    stamp = setup_clients.BUILD / f"java-{version}-programs.done"  # tells which sources were compiled
    compiled = stamp.read_text() if stamp.exists() else ""
    return ClassArchive(f"java-{version}", "java", str(setup_clients.java_folder(version)), compiled)


def java_command(version: str, options: list[str] | None = None, *, memory: str = "256m") -> list[str]:
    """Java with the client's jars and the compiled programs; the name of one of these comes next."""
    given = archive(version).options if options is None else options
    return ["java", *given, f"-Xmx{memory}", "-cp", f"{setup_clients.java_folder(version)}/*"]
