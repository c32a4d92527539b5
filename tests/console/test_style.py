"""The colours of the console can be read, by day and by night."""

from __future__ import annotations

import importlib.resources
import re

import pytest

_PAIRS = [
    ("text", "ground"), ("text", "paper"), ("dim", "ground"), ("dim", "paper"), ("link", "ground"), ("link", "paper"),
    ("on-accent", "accent"), ("fine", "paper"), ("warn", "paper"), ("bad", "paper"), ("bad", "bad-ground"),
    ("text", "bad-ground"), ("text", "note-ground"), ("text", "fine-ground"), ("dim", "bad-ground"),
    ("accent", "ground"), ("link", "bad-ground"), ("dim", "note-ground"),
]  # fmt: skip


def _palettes() -> dict[str, dict[str, str]]:
    text = (importlib.resources.files("pgps_console") / "static" / "console.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", part)) for part in text.split(":root {")[1:3])
    return {"light": light, "dark": light | dark}


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), _PAIRS)
def test_text_stands_out_from_its_ground(scheme: str, text: str, ground: str) -> None:
    palette = _palettes()[scheme]
    one, other = sorted((_luminance(palette[text]), _luminance(palette[ground])))
    assert (other + 0.05) / (one + 0.05) >= 4.5
