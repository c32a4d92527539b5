"""Take a statement of the publish/subscribe language apart."""

from collections.abc import Callable
from typing import Any, Optional

from lexer import SqlTextError, check_characters
from statement_composite import create_composite_event, create_event_rule
from statement_reader import StatementReader

SYNTAX = {
    "create_event_type": "CREATE EVENT TYPE t AS (a1 type1, a2 type2, ..)",
    "drop_event_type": "DROP EVENT TYPE t [CASCADE]",
    "alter_queue": "ALTER QUEUE q SET [NON-AUDITABLE | AUDITABLE]",
    "advertise": "ADVERTISE t",
    "unadvertise": "UNADVERTISE t",
    "publish": "PUBLISH [IMMEDIATE | DEFERRED] [NON-GUARANTEED | GUARANTEED] t (v1, v2, ..)",
    "create_rule": "CREATE RULE r AS ON {INSERT|UPDATE|DELETE} TO table [WHERE filter] PUBLISH t (v1, v2, ..)",
    "create_composite_event": "CREATE [GLOBAL] COMPOSITE EVENT t ON expression [CONTEXT c] [PARTITION BY ..]"
    " [WITHIN 'interval'] [WHERE filter] [AS (attribute type = expression, ..)]",
    "create_event_rule": "CREATE RULE r ON t [WHERE filter] EXECUTE f(args) [COUPLING c] [WITH priority]",
    "drop_rule": "DROP RULE r",
    "create_subscription": "CREATE [LOCAL | GLOBAL] SUBSCRIPTION s ON t [WHERE filter]"
    " [EXECUTE f(args)] [WITH priority]",
    "drop_subscription": "DROP SUBSCRIPTION s",
    "create_link": "CREATE LINK l TO address port USING user password",
    "grant": "GRANT {PUBLISH | SUBSCRIBE} ON EVENT TYPE t TO role",
    "revoke": "REVOKE {PUBLISH | SUBSCRIBE} ON EVENT TYPE t FROM role",
    "grant_service": "GRANT {SEND | SERVE} ON SERVICE class/server/service TO role",
    "revoke_service": "REVOKE {SEND | SERVE} ON SERVICE class/server/service FROM role",
}
HEADS = {
    ("create", "event", "type"): "create_event_type",
    ("drop", "event", "type"): "drop_event_type",
    ("alter", "queue"): "alter_queue",
    ("advertise",): "advertise",
    ("unadvertise",): "unadvertise",
    ("publish",): "publish",
    ("create", "rule"): "create_rule",
    ("create", "composite", "event"): "create_composite_event",
    ("create", "global", "composite", "event"): "create_composite_event",
    ("drop", "rule"): "drop_rule",
    ("create", "subscription"): "create_subscription",
    ("create", "local", "subscription"): "create_subscription",
    ("create", "global", "subscription"): "create_subscription",
    ("drop", "subscription"): "drop_subscription",
    ("create", "link"): "create_link",
    ("grant", "publish", "on"): "grant",
    ("grant", "subscribe", "on"): "grant",
    ("revoke", "publish", "on"): "revoke",
    ("revoke", "subscribe", "on"): "revoke",
    ("grant", "send", "on"): "grant_service",
    ("grant", "serve", "on"): "grant_service",
    ("revoke", "send", "on"): "revoke_service",
    ("revoke", "serve", "on"): "revoke_service",
}
OPERATIONS = ("insert", "update", "delete")


def parse_statement(text: str) -> dict[str, Any]:
    """Return the parts of a statement as a dict that can be written as JSON.

    `verb` is a key of SYNTAX, with the fields that the function of this name below returns. Names are
    folded unless quoted; expressions are source text with balanced brackets, to be followed by a new line.
    `{"verb": None}` when the text does not begin like one of the statements; PostgreSQL's own CREATE RULE
    .. DO, CREATE SUBSCRIPTION .. CONNECTION, DROP RULE .. ON and DROP SUBSCRIPTION IF EXISTS are not of
    them. Raises SqlTextError 42601.
    """
    check_characters(text)
    verb = find_verb(text)
    if verb is None:
        return {"verb": None}
    reader = StatementReader(text, f"Syntax: {SYNTAX[verb]}")
    fields = READERS[verb](reader)
    reader.end()
    return {"verb": verb, **fields}


def find_verb(text: str) -> Optional[str]:
    """Return which statement a text begins like, None for one of PostgreSQL's."""
    reader = StatementReader(text, "")
    try:
        for head, verb in HEADS.items():
            reader.at = 0
            if reader.accept(*head):
                found = "create_event_rule" if verb == "create_rule" and reader.peek(1).word("on") else verb
                return None if is_ordinary(found, reader) else found
    except SqlTextError:
        pass  # PostgreSQL cannot read it either
    return None


def is_ordinary(verb: str, reader: StatementReader) -> bool:
    """Tell whether what follows the first words makes the statement one of PostgreSQL's own."""
    if verb == "create_rule":
        while reader.peek().text and not reader.peek().word("do"):
            reader.next()
        return reader.peek().word("do")
    if verb == "create_subscription":
        return reader.peek(1).word("connection")
    if verb in ("drop_rule", "drop_subscription"):
        if_exists = reader.peek().word("if") and reader.peek(1).word("exists")
        return if_exists or reader.peek(1).word("on", "cascade", "restrict")
    return False


def create_event_type(reader: StatementReader) -> dict[str, Any]:
    """Return name and attributes, the source between the parentheses."""
    reader.expect("create", "event", "type")
    name = reader.name()
    reader.expect("as")
    return {"name": name, "attributes": reader.source(reader.parenthesised())}


def drop_event_type(reader: StatementReader) -> dict[str, Any]:
    """Return name and cascade."""
    reader.expect("drop", "event", "type")
    return {"name": reader.name(), "cascade": not reader.accept("restrict") and reader.accept("cascade")}


def alter_queue(reader: StatementReader) -> dict[str, Any]:
    """Return queue and auditable."""
    reader.expect("alter", "queue")
    queue = reader.name()
    reader.expect("set")
    return {"queue": queue, "auditable": reader.one_of("auditable", "non-auditable") == "auditable"}


def advertise(reader: StatementReader) -> dict[str, Any]:
    """Return name."""
    reader.next()
    return {"name": reader.name()}


def publish(reader: StatementReader) -> dict[str, Any]:
    """Return event_type, visibility, reliability and columns, each None if left out, values as source and their count.

    `PUBLISH t (c1, c2) VALUES (v1, v2)` names the attributes; they are in columns then.
    """
    reader.expect("publish")
    chosen: dict[str, Optional[str]] = {"visibility": None, "reliability": None}
    modifiers = {
        "immediate": "visibility", "deferred": "visibility",
        "guaranteed": "reliability", "non": "reliability",
    }  # fmt: skip
    while modifiers.get(reader.peek().value) and reader.peek().kind == "ident" and not reader.peek(1).symbol("("):
        kind = modifiers[reader.peek().value]
        if chosen[kind]:
            raise reader.refuse(reader.peek())
        chosen[kind] = reader.one_of("immediate", "deferred", "guaranteed", "non-guaranteed")
    event_type = reader.name()
    start = reader.at
    values = reader.parenthesised()
    columns = None
    if reader.accept("values"):
        reader.at = start
        reader.accept_symbol("(")
        columns = reader.names(reader.name)
        if not reader.accept_symbol(")"):
            raise reader.refuse(reader.peek())
        reader.expect("values")
        values = reader.parenthesised()
    count = len(reader.sources(values))
    return {"event_type": event_type, **chosen, "columns": columns, "values": reader.source(values), "count": count}


def create_rule(reader: StatementReader) -> dict[str, Any]:
    """Return name, table as SQL, operations, condition or None, event_type, and values, each as source."""
    reader.expect("create", "rule")
    name = reader.name()
    reader.expect("as", "on")
    braces = reader.accept_symbol("{")
    operations = [reader.one_of(*OPERATIONS)]
    while reader.accept("or") or reader.accept_symbol(",") or reader.accept_operator("|"):
        operations.append(reader.one_of(*OPERATIONS))
    if braces and not reader.accept_symbol("}"):
        raise reader.refuse(reader.peek())
    reader.expect("to")
    table = reader.qualified()
    condition = reader.source(reader.expression("publish")) if reader.accept("where") else None
    reader.expect("publish")
    event_type = reader.name()
    return {
        "name": name,
        "table": table,
        "operations": [operation for operation in OPERATIONS if operation in operations],
        "condition": condition,
        "event_type": event_type,
        "values": reader.sources(reader.parenthesised()),
    }


def drop_named(reader: StatementReader) -> dict[str, Any]:
    """Return name."""
    reader.next()
    return advertise(reader)


def create_subscription(reader: StatementReader) -> dict[str, Any]:
    """Return name, event_type, scope; filter, execute (as SQL), args, priority, each None if left out."""
    reader.expect("create")
    scope = "local" if reader.accept("local") or not reader.accept("global") else "global"
    reader.expect("subscription")
    name = reader.name()
    reader.expect("on")
    event_type = reader.pattern()
    condition = execute = args = priority = None
    if reader.accept("where"):
        condition = reader.source(reader.expression("execute", "with"))
    if reader.accept("execute"):
        execute = reader.qualified()
        args = reader.source(reader.parenthesised()) or None
    if reader.accept("with"):
        if not reader.peek(1).symbol("("):
            reader.accept("priority")
        priority = reader.integer()
    return {
        "name": name, "event_type": event_type, "scope": scope, "filter": condition,
        "execute": execute, "args": args, "priority": priority,
    }  # fmt: skip


def create_link(reader: StatementReader) -> dict[str, Any]:
    """Return name, address, port, user, and password or None."""
    reader.expect("create", "link")
    name = reader.name()
    reader.expect("to")
    address = reader.bare()
    port = reader.integer()
    reader.expect("using")
    user = reader.bare() if reader.peek().kind == "string" else reader.name()
    password = reader.bare() if reader.more() else None
    return {"name": name, "address": address, "port": port, "user": user, "password": password}


def grant(reader: StatementReader) -> dict[str, Any]:
    """Return privilege, event_type and roles, of a GRANT or a REVOKE."""
    granted = reader.one_of("grant", "revoke") == "grant"
    privilege = reader.one_of("publish", "subscribe")
    reader.expect("on", "event", "type")
    event_type = reader.name()
    reader.expect("to" if granted else "from")
    return {"privilege": privilege, "event_type": event_type, "roles": reader.names(reader.role)}


def grant_service(reader: StatementReader) -> dict[str, Any]:
    """Return privilege, service (class, server and service, which the functions fold) and roles."""
    granted = reader.one_of("grant", "revoke") == "grant"
    privilege = reader.one_of("send", "serve")
    reader.expect("on", "service")
    place = reader.peek()
    service = reader.bare().split("/")
    if len(service) != 3:
        raise reader.refuse(place)
    reader.expect("to" if granted else "from")
    return {"privilege": privilege, "service": service, "roles": reader.names(reader.role)}


READERS: dict[str, Callable[[StatementReader], dict[str, Any]]] = {
    "create_event_type": create_event_type,
    "drop_event_type": drop_event_type,
    "alter_queue": alter_queue,
    "advertise": advertise,
    "unadvertise": advertise,
    "publish": publish,
    "create_rule": create_rule,
    "create_composite_event": create_composite_event,
    "create_event_rule": create_event_rule,
    "drop_rule": drop_named,
    "create_subscription": create_subscription,
    "drop_subscription": drop_named,
    "create_link": create_link,
    "grant": grant,
    "revoke": grant,
    "grant_service": grant_service,
    "revoke_service": grant_service,
}
