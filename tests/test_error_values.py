"""An error that is kept lets go of the frames it passed through: they hold requests of megabytes (model/errors.py)."""

import ast
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import no_garbage_is_looked_for

import runnel
from runnel.model.errors import BatchTooLarge, RunnelError, as_value

SOURCE = Path(runnel.__file__).parent
SERVING = ("broker", "cluster", "doors", "groups", "queues", "transactions")
KEEPERS = ("fromkeys", "_replace", "append", "put", "set_exception", "setdefault")
THREAD = SOURCE / "cluster" / "zookeeper.py"  # what it keeps ends this life of the broker


def kept(name: str, value: ast.expr) -> bool:
    """Whether an expression keeps what `name` stands for, as it is."""
    match value:
        case ast.Name():
            return value.id == name
        case ast.List() | ast.Tuple() | ast.Set():
            return any(kept(name, each) for each in value.elts)
        case ast.Dict():
            return any(kept(name, each) for each in value.values)
        case ast.BinOp():
            return kept(name, value.left) or kept(name, value.right)
        case ast.IfExp():
            return kept(name, value.body) or kept(name, value.orelse)
        case ast.ListComp() | ast.GeneratorExp():
            return kept(name, value.elt)
        case ast.DictComp():
            return kept(name, value.value)
        case ast.Call(ast.Name(called) | ast.Attribute(_, called)) if called[:1].isupper() or called in KEEPERS:
            return any(kept(name, each) for each in (*value.args, *(word.value for word in value.keywords)))
    return False


def keeping(handler: ast.ExceptHandler) -> Iterator[ast.stmt | ast.expr]:
    assert handler.name is not None
    for node in ast.walk(ast.Module(handler.body, [])):
        if isinstance(node, ast.Assign | ast.Return | ast.Expr) and node.value is not None:
            if kept(handler.name, node.value):
                yield node
        elif isinstance(node, ast.Call) and kept(handler.name, node):
            yield node


def faults_in(path: Path) -> list[str]:
    with no_garbage_is_looked_for():
        tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(name=str()):
                found += [f"{path.relative_to(SOURCE)}:{each.lineno}" for each in keeping(node)]
            case ast.Call(ast.Attribute(_, "set_exception"), [ast.Name() | ast.Attribute()]):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def test_the_brokers_parts_keep_no_error_with_its_frames() -> None:
    paths = [path for folder in SERVING for path in (SOURCE / folder).rglob("*.py") if path != THREAD]
    assert len(paths) > 100
    assert [fault for path in paths for fault in faults_in(path)] == []


def test_the_look_out_sees_errors_that_are_kept() -> None:
    assert faults_in(THREAD) != []


class Body:
    """Stands for a request of megabytes."""


def results_of(body: Body) -> list[RunnelError]:
    results: list[RunnelError] = []
    try:
        try:
            raise ValueError("too large")
        except ValueError as error:
            raise BatchTooLarge("too large") from error
    except RunnelError as error:
        results.append(as_value(error))
    return results


def test_an_error_that_became_a_value_holds_nothing_that_was_in_hand() -> None:
    gc.disable()
    try:
        body = Body()
        held = weakref.ref(body)
        [error] = results_of(body)
        del body
        assert held() is None
        assert str(error) == "too large"
    finally:
        gc.enable()


def test_an_error_that_nobody_foresaw_keeps_its_frames() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError
    assert as_value(raised.value).__traceback__ is not None
