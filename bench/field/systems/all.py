"""The systems that take part, in the order of the tables."""

from __future__ import annotations

from bench.field.systems.activemq import ActiveMQ
from bench.field.systems.base import System
from bench.field.systems.graphile import Graphile
from bench.field.systems.pgboss import PgBoss
from bench.field.systems.pgps import Pgps
from bench.field.systems.pgq import Pgq
from bench.field.systems.pgqueuer import Pgqueuer
from bench.field.systems.procrastinate import Procrastinate
from bench.field.systems.rabbitmq import RabbitMQ

__all__ = ["SYSTEMS"]

SYSTEMS: tuple[System, ...] = (
    Pgps(), Pgq(), RabbitMQ(), ActiveMQ(), Pgqueuer(), Procrastinate(), PgBoss(), Graphile(),
)  # fmt: skip
