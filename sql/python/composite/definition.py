"""A composite event as it was defined, checked as far as that goes without a catalogue."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from composite.parser import parse_expression
from composite.syntax import TRANSACTION, Expression, leaves, print_expression, print_name
from composite.texts import Attribute, Condition, read_attributes, read_conditions, read_partition
from composite.times import read_duration, write_duration
from lexer import SqlTextError

CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")
TIME_BASES = ("arrival", "event")
MAX_OPEN = 10_000
# Their third event ends what they hold, or time does.
CLOSING = frozenset("a a* p p* absence plus repeat or leaf at every cron begin_transaction commit".split())


class Alias(NamedTuple):
    """Say what a name in a filter stands for.

    leaf: which leaf, counted from 0 in the order of the text. many: it stands for a set of events.
    bound: always, maybe (a branch of `or` or `any`), or never (what must not come, or only closes).
    """

    name: str
    leaf: int
    type: str
    many: bool
    bound: str


class Definition(NamedTuple):
    """Hold a composite event; make one with `define`. Durations are microseconds."""

    name: str
    expression: Expression
    context: str
    partition: tuple[tuple[str, ...], ...]
    within: Optional[int]
    aliases: tuple[Alias, ...]
    conditions: tuple[Condition, ...]
    attributes: tuple[Attribute, ...]
    time_basis: str
    lateness: int
    max_open: int

    @property
    def text(self) -> str:
        """Return the normal form of the expression."""
        return print_expression(self.expression)


def define(  # noqa: PLR0913 -- what a user may say of a composite event
    name: str,
    expression: str,
    *,
    context: str = "recent",
    partition_by: Optional[str] = None,
    within: Optional[str] = None,
    filter: Optional[str] = None,  # noqa: A002
    attributes: Optional[str] = None,
    time_basis: str = "arrival",
    lateness: str = "0 s",
    max_open: Optional[int] = None,
    zone: str = "UTC",
    types: Optional[Mapping[str, Mapping[str, str]]] = None,
) -> Definition:
    """Return a composite event whose parts fit together.

    `types` maps event types to their attributes and these to SQL types; with it, partition keys are checked, too.
    Raises SqlTextError, its position that in the argument at fault: 42601 syntax, 42703 unknown attribute, 42704
    unknown alias, 42702 a name that could be two leaves, 42710 given twice, 42804 keys of several types,
    22023 what makes no sense, 54000 too long.
    """
    check_word(context, CONTEXTS, "context")
    check_word(time_basis, TIME_BASES, "time basis")
    if max_open is not None and max_open < 1:
        raise refuse(f"max_open {max_open} leaves nothing open", "Give a number above zero, or leave it out.")
    parsed = parse_expression(expression, zone)
    span = None if within is None else duration_of("within", within, least=1)
    late = duration_of("lateness", lateness, least=0)
    aliases = find_aliases(parsed, context)
    definition = Definition(
        name,
        parsed,
        context,
        read_partition(partition_by, len(leaves(parsed))) if partition_by is not None else (),
        span,
        aliases,
        read_conditions(filter, usable(aliases)) if filter is not None else (),
        read_attributes(attributes, usable(aliases)) if attributes is not None else (),
        time_basis,
        late,
        max_open or MAX_OPEN,
    )
    check_bounds(definition, explicit=max_open is not None)
    check_basis(definition)
    if types is not None:
        check_partition(definition, types)
    return definition


def refuse(message: str, hint: str, sqlstate: str = "22023") -> SqlTextError:
    """Return an error about an argument as a whole."""
    return SqlTextError(message, 1, hint, sqlstate=sqlstate)


def check_word(word: str, words: tuple[str, ...], what: str) -> None:
    """Raise SqlTextError unless a word is one of those allowed."""
    if word not in words:
        raise refuse(f'"{word}" is no {what}', f"Use one of: {', '.join(words)}.")


def duration_of(what: str, text: str, least: int) -> int:
    """Return the microseconds of an argument."""
    try:
        amount = read_duration("0 s" if text.strip() == "0" else text)
    except ValueError as error:
        raise refuse(f"{what}: {error}", "Write days, hours, minutes and seconds, as '1 day' or '90 s'.") from None
    if amount < least:
        raise refuse(f'{what} "{text}" is no time at all', "Give a duration above zero, or leave it out.")
    return amount


def find_aliases(expression: Expression, context: str) -> tuple[Alias, ...]:
    """Return what each leaf is called, and what the name stands for; a type named twice has no name."""
    found = list(walk_aliases(expression, "always", context, many=context == "cumulative"))
    given = {leaf.alias for leaf, _, _ in found if leaf.alias}
    plain = [leaf.type for leaf, _, _ in found if not leaf.alias]
    return tuple(
        Alias(leaf.name if leaf.alias or plain.count(leaf.type) == 1 else "", number, leaf.type, many, bound)
        for number, (leaf, many, bound) in enumerate(found)
        if leaf.alias or leaf.type not in given
    )


def walk_aliases(
    expression: Expression, bound: str, context: str, *, many: bool
) -> Iterable[tuple[Expression, bool, str]]:
    """Return each leaf, whether its name stands for a set, and when it is bound."""
    op = expression.op
    if op == "leaf":
        yield expression, many, bound
    for role, part in enumerate(expression.parts):
        inner = "never" if role in unbound_roles(op, context) else bound
        if inner == "always" and op in ("or", "any"):
            inner = "maybe"
        yield from walk_aliases(part, inner, context, many=many or (op, role) in (("a*", 1), ("repeat", 0)))


def unbound_roles(op: str, context: str) -> tuple[int, ...]:
    """Return the operands of an operator that are no part of what it detects."""
    if op in ("not", "absence"):
        return (0,)
    if context == "cumulative":
        return ()
    return {"a": (2,), "p": (1,)}.get(op, ())


def usable(aliases: Iterable[Alias]) -> dict[str, str]:
    """Return for each name when it is bound."""
    return {alias.name: alias.bound for alias in aliases if alias.name} | {
        alias.type: "ambiguous" for alias in aliases if not alias.name
    }


def check_bounds(definition: Definition, *, explicit: bool) -> None:
    """Raise SqlTextError when something would be kept for ever, or would expire before it is detected."""
    for part in nodes(definition.expression):
        if definition.within is not None and part.op in ("plus", "absence", "p", "p*"):
            if part.amount > definition.within:
                raise refuse(
                    f"{print_expression(part)} takes longer than within, which is {write_duration(definition.within)}",
                    "Make within longer: what is open beyond it expires.",
                )
        kept = part.op not in CLOSING and not (part.op == "not" and definition.context != "unrestricted")
        if kept and definition.context != "recent" and definition.within is None and not explicit:
            raise refuse(
                f"{print_expression(part)} would keep events for ever in {definition.context} context",
                "Give within or max_open, or use the context recent.",
            )


def check_basis(definition: Definition) -> None:
    """Raise SqlTextError for what needs the order of arrival."""
    if definition.time_basis == "event":
        for part in nodes(definition.expression):
            if part.op in TRANSACTION:
                raise refuse(f"{part.op} has no place in event time", "Use the time basis arrival.")
    elif definition.lateness:
        raise refuse("lateness is of no use with the time basis arrival", "Use the time basis event, or leave it out.")


def nodes(expression: Expression) -> Iterable[Expression]:
    """Return an expression and all in it."""
    yield expression
    for part in expression.parts:
        yield from nodes(part)


def check_partition(definition: Definition, types: Mapping[str, Mapping[str, str]]) -> None:
    """Raise SqlTextError unless every leaf has its key attributes, of the same SQL types."""
    first: tuple[str, ...] = ()
    for leaf, columns in zip(leaves(definition.expression), definition.partition):
        known = types.get(leaf.type)
        if known is None:
            message = f"event type {print_name(leaf.type)} does not exist"
            raise refuse(message, "Create it with pgps.create_event_type.", "42704")
        missing = [column for column in columns if column not in known]
        if missing:
            message = f"event type {print_name(leaf.type)} has no attribute {print_name(missing[0])}"
            raise refuse(message, f"It has {', '.join(known)}; name one key for each leaf.", "42703")
        found = tuple(known[column] for column in columns)
        if first and found != first:
            message = f"partition keys of several types: {', '.join(first)} and {', '.join(found)}"
            raise refuse(message, f"Make {print_name(leaf.type)} have the same type as the others.", "42804")
        first = found


def find_cycle(name: str, expression: Expression, definitions: Mapping[str, Expression]) -> Optional[list[str]]:
    """Return the composite events through which one would be made of itself, or None."""
    stack = [(name, [name], expression)]
    seen: set[str] = set()
    while stack:
        _, path, current = stack.pop()
        for leaf in leaves(current):
            if leaf.type == name:
                return [*path, name]
            if leaf.type in definitions and leaf.type not in seen:
                seen.add(leaf.type)
                stack.append((leaf.type, [*path, leaf.type], definitions[leaf.type]))
    return None
