"""What the shell offers to complete, and how it colours."""

from __future__ import annotations

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from pygments.token import Keyword, Name

from pgps.cli.shell.complete import Lexer, WordCompleter


@pytest.fixture
def completer() -> WordCompleter:
    made = WordCompleter({"\\d": "show", "\\dt": "event types"})
    made.learn(
        [
            ("event type", "quote"),
            ("event type", "Odd Name"),
            ("queue", "quote_in"),
            ("subscription", "cheap"),
            ("rule", "moved"),
            ("attribute", "symbol"),
            ("function", "pgps.publish"),
            ("view", "pgps.queues"),
            ("table", "portfolio"),
            ("role", "trader"),
        ]
    )
    return made


def offered(completer: WordCompleter, text: str) -> list[str]:
    event = CompleteEvent(completion_requested=True)
    return [found.text for found in completer.get_completions(Document(text), event)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adv", ["advertise"]),
        ("CREATE EV", ["CREATE EVENT TYPE"]),
        ("select 1; ADV", ["ADVERTISE"]),
        ("\\d", ["\\d", "\\dt"]),
        ("\\d ch", ["cheap"]),
        ("advertise ", ['"Odd Name"', "quote"]),
        ('publish "O', ['"Odd Name"']),
        ("publish immediate q", ["quote"]),
        ("alter queue ", ["quote_in"]),
        ("create subscription s on q", ["quote"]),
        ("drop subscription ", ["cheap"]),
        ("drop rule ", ["moved"]),
        ("grant publish on event type ", ['"Odd Name"', "quote"]),
        ("grant publish on event type quote to ", ["trader"]),
        ("select * from por", ["portfolio"]),
        ("select * from pgps_queue.", ["pgps_queue.quote_in"]),
        ("insert into pgps_event.q", ["pgps_event.quote"]),
        ("select sym", ["symbol"]),
        ("select pgps.pub", ["pgps.publish"]),
        ("select 1 fro", ["from"]),
        ("select 1 FRO", ["FROM"]),
        ("-- a comment\nroll", ["rollback"]),
    ],
)
def test_what_fits_is_offered(completer: WordCompleter, text: str, expected: list[str]) -> None:
    assert offered(completer, text) == expected


def test_nothing_is_offered_unasked_where_no_word_is_begun(completer: WordCompleter) -> None:
    assert not list(completer.get_completions(Document("select "), CompleteEvent(text_inserted=True)))


def test_words_of_the_language_are_coloured_as_key_words() -> None:
    tokens = {value: token for token, value in Lexer().get_tokens("publish tick; ADVERTISE x; select 1")}
    assert tokens["publish"] is Keyword
    assert tokens["ADVERTISE"] is Keyword
    assert tokens["tick"] is Name
