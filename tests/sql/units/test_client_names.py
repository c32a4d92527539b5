"""Names of services as the client library compares and takes them apart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pgps.client import units
from pgps.errors import BadArgument

ENDS = datetime(2026, 3, 1, tzinfo=UTC)


def fits(asked: str, service_class: str) -> bool:
    message = units.Message(
        "U1", "C1", "RECV_ONLY", None, service_class, "orders", "book", None, 0, "no", ENDS, "open", None, b"", 1, None,
        None,
    )  # fmt: skip
    named = dict(zip(("class", "server", "service"), units.parts_of(asked), strict=True))
    wanted: dict[str, Any] = {"conversation": "any", "option": "any", "user_status": None, **named}
    return units.fits(message, wanted, wanted)


@pytest.mark.parametrize(
    ("asked", "service_class", "expected"),
    [
        ("Shop/orders/book", "shop", True),
        ("shop/Orders", "shop", True),
        ("*/*/BOOK", "shop", True),
        ('"Shop"/orders/book', "Shop", True),
        ('"Sh""op"/orders/book', 'Sh"op', True),
        ("Shop/orders/book", "Shop", False),
        ('"Shop"/orders/book', "shop", False),
        ("Été/orders/book", "Été", True),
        ("SHOP*/orders/book", "SHOP*", True),
        ("My Shop/orders/book", "My Shop", True),
        ("my shop/orders/book", "My Shop", False),
    ],
)
def test_a_message_fits_as_the_broker_folds_names(asked: str, service_class: str, expected: bool) -> None:
    assert fits(asked, service_class) is expected


def test_a_service_has_three_parts() -> None:
    with pytest.raises(BadArgument, match="'a/b/c/d'"):
        units.parts_of("a/b/c/d")
