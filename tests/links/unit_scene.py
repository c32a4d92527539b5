"""A client's broker and one that serves, with a link, for tests of units of work over links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.fix_broker import call, value
from tests.fix_db import Connect
from tests.fix_units import Party, make_service
from tests.links.rig import Broker, Link, linked, settle

Brokers = Callable[[int], list[Broker]]
SERVICE = "shop/orders/book"


@dataclass
class Scene:
    """A client's broker, and the one that serves."""

    home: Broker
    shop: Broker
    links: list[Link]
    connect: Connect

    def settle(self) -> None:
        """Carry and apply everything, until nothing is left."""
        while True:
            settle([self.home, self.shop], self.links)
            if not sum(value(broker.admin, "select pgps.relay_units()") for broker in (self.home, self.shop)):
                return

    def client(self, token: str = "client") -> Party:
        return Party(self.connect(dsn=self.home.dsn), token)

    def server(self, token: str = "server", service: str = SERVICE) -> Party:
        return Party(self.connect(dsn=self.shop.dsn), token).serve(service)


@pytest.fixture
def scene(brokers: Brokers, connect: Connect) -> Iterator[Scene]:
    home, shop = brokers(2)
    for broker in (home, shop):
        make_service(broker.admin, SERVICE, status_lifetime=9, lifetime="1 hour", store="broker")
    call(shop.admin, "grant_service", *SERVICE.split("/"), "send", "pgps_neighbour")
    call(shop.admin, "relay_services")
    call(home.admin, "place_service", *SERVICE.split("/"), "b")
    with linked([(home, shop)]) as links:
        scene = Scene(home, shop, links, connect)
        scene.settle()
        yield scene
