"""A party whose calls are cancelled, and asked again, sees every message of a unit of work, in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from pgps.client import AsyncClient, Client
from tests.fix_db import Connect
from tests.fix_units import make_service

SERVICE = "bank/ledger/book"
MESSAGES = [str(number).encode() for number in range(15)]


async def _received_with_cancellation(dsn: str, chance: random.Random) -> tuple[list[bytes], int]:
    """Receive one unit, and cancel calls at moments of chance; return its messages and how often one was cancelled."""
    got, cancelled, conversation = [], 0, "any"
    async with AsyncClient(dsn) as client, client.logon("server") as server:
        await server.register(SERVICE)
        while True:
            try:
                async with asyncio.timeout(chance.choice([0.001, 0.002, 0.004, 0.008, 0.02])):
                    message = await server.receive(conversation, timeout=1)
            except TimeoutError:
                cancelled += 1
                continue
            assert message is not None
            got.append(message.data)
            conversation = message.conversation
            if message.is_last:
                await server.syncpoint("commit", conversation=conversation)
                return got, cancelled


@pytest.mark.parametrize("seed", range(4))
def test_a_receive_that_is_cancelled_loses_no_message(own_database: str, connect: Connect, seed: int) -> None:
    make_service(connect(dsn=own_database), SERVICE, deferred=True)
    with Client(own_database) as client, client.logon("customer") as customer:
        conversation = customer.begin(SERVICE)
        for message in MESSAGES:
            conversation.send(message, store="broker", commit=message == MESSAGES[-1])
    got, cancelled = asyncio.run(_received_with_cancellation(own_database, random.Random(seed)))
    assert got == MESSAGES
    assert cancelled > 0
