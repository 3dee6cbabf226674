"""Operations: what follows from a function's types and docstring."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, cast

import msgspec
import pytest
from msgspec import Meta

from runnel.doors.http.call import Call
from runnel.doors.http.operation import Header, Operation, Struct, decoded, operation_of
from runnel.doors.http.problems import InvalidInput, MalformedBody
from runnel.doors.http.routes import Routes


class Order(Struct):
    item: str
    amount: int = 1


class Request:
    """As much of a call as binding needs."""

    def __init__(self, **headers: str) -> None:
        self._headers = headers

    def header(self, name: str) -> str | None:
        return self._headers.get(name)


async def buy(
    call: Call,
    shop: str,
    body: Order,
    count: Annotated[int, Meta(ge=1, description="how many")] = 1,
    colour: list[str] | None = None,
    gift: bool = False,
    coupon: Annotated[str | None, Header("Coupon")] = None,
) -> dict[str, Any]:
    """Buy something.

    It is not sent back.

        POST /shops/main/orders?count=2 {"item": "tea"}
    """
    return {"shop": shop, "body": body, "count": count, "colour": colour, "gift": gift, "coupon": coupon}


async def close(call: Call, shop: str) -> None:
    """Close a shop.

    DELETE /shops/main
    """


BUY = operation_of("POST", "/shops/{shop}/orders", buy, 200)
CLOSE = operation_of("DELETE", "/shops/{shop}", close, 200)


def bound(operation: Operation, query: str = "", body: bytes = b'{"item": "tea"}', **headers: str) -> Any:
    async def main(awaited: Awaitable[Any]) -> Any:
        return await awaited

    return asyncio.run(main(operation.bind(cast(Call, Request(**headers)), ["main"], query.encode(), body)))


def test_path_query_headers_and_body_arrive_by_their_types() -> None:
    told = bound(BUY, "count=3&colour=red&colour=blue&gift=true", b'{"item": "tea", "amount": 2}', Coupon="half")
    assert told == {
        "shop": "main", "body": Order(item="tea", amount=2), "count": 3, "colour": ["red", "blue"], "gift": True,
        "coupon": "half",
    }  # fmt: skip


def test_what_has_a_default_may_be_left_out() -> None:
    told = bound(BUY)
    assert (told["count"], told["colour"], told["gift"], told["coupon"]) == (1, None, False, None)


@pytest.mark.parametrize(
    ("query", "body", "problem"),
    [
        ("count=many", b'{"item": "tea"}', "Expected `int`, got `str` - at `count`"),
        ("count=0", b'{"item": "tea"}', "`count`"),
        ("cuont=1", b'{"item": "tea"}', "query parameter 'cuont' is not known; allowed: colour, count, gift"),
        ("count=1&count=2", b'{"item": "tea"}', "'count' is there twice"),
        ("count=%ff", b'{"item": "tea"}', "the query of the address can't be read"),
        ("", b'{"itme": "tea"}', "unknown field `itme`"),
        ("", b"{}", "missing required field `item`"),
        ("", b'{"item": 3}', "Expected `str`, got `int` - at `item`"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_who_sent_it(query: str, body: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput, match=r".") as raised:
        bound(BUY, query, body)
    assert problem in str(raised.value)


@pytest.mark.parametrize("body", [b"item=tea", b"", b'{"item": "\xff"}', b'{"\xff": 1}'])
def test_a_body_that_is_no_json_is_another_error(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        bound(BUY, body=body)


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(MalformedBody, match="nested too deeply"):
        decoded(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, b'{"value": ' + b"[" * 5_000)


def test_an_operation_without_parameters_in_the_query_takes_none() -> None:
    with pytest.raises(InvalidInput, match="not known; allowed: none"):
        bound(CLOSE, "force=true", b"")


def test_the_docstring_says_what_it_does_and_how_it_is_called() -> None:
    assert BUY.summary == "Buy something."
    assert BUY.description == "It is not sent back."
    assert (BUY.example.target, BUY.example.body) == ("/shops/main/orders?count=2", {"item": "tea"})


def test_a_docstring_without_an_example_is_refused() -> None:
    async def bare(call: Call) -> None:
        """Do something."""

    with pytest.raises(TypeError, match="must end with an example"):
        operation_of("GET", "/bare", bare, 200)


# --- addresses


def test_an_address_is_split_before_it_is_decoded() -> None:
    routes = Routes([BUY, CLOSE])
    found = routes.find(b"/shops/a%2Fb%20c/orders")
    assert found is not None
    assert (found.methods, found.values) == ({"POST": BUY}, ["a/b c"])
    assert routes.find(b"/shops/a/b/orders") is None
    assert routes.find(b"/shops") is None
    assert routes.find(b"/") is None


def test_a_fixed_segment_wins_over_a_parameter() -> None:
    fixed = operation_of("GET", "/shops/count", close, 200)
    routes = Routes([CLOSE, fixed])
    for address, method in ((b"/shops/count", "GET"), (b"/shops/counts", "DELETE")):
        found = routes.find(address)
        assert found is not None
        assert list(found.methods) == [method]


def test_two_operations_at_one_address_are_refused() -> None:
    with pytest.raises(TypeError, match="served twice"):
        Routes([CLOSE, operation_of("DELETE", "/shops/{name}", close, 200)])
