"""What there is: the OpenAPI document, and a page for people. Both need nothing from elsewhere."""

from functools import cache
from typing import Annotated

import msgspec

from runnel.doors.http.call import Call
from runnel.doors.http.docs_page import page
from runnel.doors.http.openapi import document
from runnel.doors.http.operation import JSON, Reply, operation

HTML = "text/html; charset=utf-8"
# The page has no script, and loads nothing.
POLICY = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")


@cache
def _document() -> bytes:
    from runnel.doors.http.resources import operations  # which has this module in it

    return msgspec.json.encode(document(operations()))


@cache
def _page(host: str) -> bytes:
    from runnel.doors.http.resources import operations

    return page(operations(), host).encode()


@operation("GET /openapi.json")
async def openapi(call: Call) -> Annotated[Reply, "application/json"]:
    """Get the OpenAPI 3.1 document of all operations.

    GET /openapi.json
    """
    return Reply(_document(), JSON)


@operation("GET /docs")
async def docs(call: Call) -> Annotated[Reply, "text/html"]:
    """Read about all operations and errors, with lines for curl.

    GET /docs
    """
    endpoint = call.broker.image.brokers[call.broker.id].listeners["http"]
    return Reply(_page(f"{endpoint.host}:{endpoint.port}"), HTML, headers=(POLICY,))
