"""Flame graphs: samples of stacks, folded, drawn as one SVG that a browser shows and zooms."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Folded", "draw", "of_perf", "of_py_spy", "to_text"]

Folded: TypeAlias = Counter[tuple[str, ...]]
"""How many samples each stack has; a stack begins with its outermost frame."""

_SAMPLE = re.compile(r"^(?P<command>\S.*?)\s+(?P<pid>\d+)\s*$")
_FRAME = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.+?)\s*$")
_UNKNOWN = "[unknown]"
_WIDTH, _HEIGHT, _TOP = 1200, 17, 48


def of_perf(script: str, names: Mapping[int, str]) -> Folded:
    """Fold what `perf script -F comm,pid,ip,sym` prints; `names` says what the processes are."""
    folded: Folded = Counter()
    for block in script.split("\n\n"):
        lines = block.strip("\n").splitlines()
        head = _SAMPLE.match(lines[0]) if lines else None
        if head is None:
            continue
        frames = [found["symbol"] for line in lines[1:] if (found := _FRAME.match(line))]
        # Frames without a symbol say nothing, and differ from build to build.
        known = [frame for frame in reversed(frames) if frame != _UNKNOWN]
        folded[names.get(int(head["pid"]), head["command"]), *known] += 1
    return folded


def of_py_spy(raw: str, name: str) -> Folded:
    """Read what `py-spy record --format raw` writes: frames joined by semicolons, a space, the samples."""
    folded: Folded = Counter()
    for line in raw.splitlines():
        stack, _, samples = line.rpartition(" ")
        if stack:
            folded[name, *stack.split(";")] += int(samples)
    return folded


def to_text(folded: Folded) -> str:
    """Return a line for each stack, as other programs for flame graphs read them."""
    return "".join(f"{';'.join(stack)} {samples}\n" for stack, samples in sorted(folded.items()))


@dataclass(slots=True)
class _Node:
    samples: int = 0
    inner: dict[str, _Node] = field(default_factory=dict)


def _tree(folded: Folded) -> _Node:
    root = _Node()
    for stack, samples in folded.items():
        node = root
        node.samples += samples
        for frame in stack:
            node = node.inner.setdefault(frame, _Node())
            node.samples += samples
    return root


def _places(node: _Node, left: int, depth: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield each frame below a node: its name, its first sample, how many it has, its depth."""
    for name, inner in sorted(node.inner.items()):
        yield name, left, inner.samples, depth
        yield from _places(inner, left, depth + 1)
        left += inner.samples


def draw(folded: Folded, title: str) -> str:
    """Return the SVG; raises ValueError when there are no samples."""
    root = _tree(folded)
    if not root.samples:
        raise ValueError("no samples: nothing has run while they were taken")
    # What is narrower than a fifth of a pixel cannot be seen, and would make up most of the file.
    shown = [place for place in _places(root, 0, 0) if place[2] * _WIDTH >= root.samples / 5]
    height = _TOP + _HEIGHT * (1 + max(depth for *_, depth in shown))
    frames = "".join(_frame(*place, root.samples) for place in shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace"'
        f' font-size="11"><text x="6" y="18" font-size="14">{escape(title)}: {root.samples:,} samples</text>'
        '<text x="6" y="36" fill="#666">click a frame to widen it, here to go back</text>'
        f"{frames}{_SCRIPT}</svg>\n"
    )


def _frame(name: str, left: int, samples: int, depth: int, all_samples: int) -> str:
    share = samples / all_samples
    label = escape(f"{name} ({samples:,} samples, {share:.2%})")
    # The color depends on the name alone, so that two graphs can be compared.
    hue = sum(name.encode()) * 7 % 50
    return (
        f'<g data-x="{left / all_samples:.6f}" data-w="{share:.6f}" data-d="{depth}"><title>{label}</title>'
        f'<rect x="{left / all_samples * _WIDTH:.2f}" y="{_TOP + depth * _HEIGHT}"'
        f' width="{share * _WIDTH:.2f}" height="{_HEIGHT - 1}" fill="hsl({hue},80%,70%)"/>'
        f'<text x="{left / all_samples * _WIDTH + 3:.2f}" y="{_TOP + depth * _HEIGHT + 12}"'
        f' data-name="{escape(name)}">{escape(_fitting(name, share * _WIDTH))}</text></g>'
    )


def _fitting(name: str, width: float) -> str:
    letters = int((width - 6) / 6.7)
    return name if len(name) <= letters else "" if letters < 4 else name[: letters - 2] + ".."


# Widens the frame that is clicked, and all that it contains, to the whole width.
_SCRIPT = """<script><![CDATA[
const frames = [...document.querySelectorAll("g")], width = WIDTH;
function widen(x, w, depth) {
  for (const frame of frames) {
    const left = (frame.dataset.x - x) / w, share = frame.dataset.w / w, [, box, text] = frame.children;
    const outer = left <= 1e-6 && left + share >= 1 - 1e-6;
    const is_shown = outer || (frame.dataset.d >= depth && left > -1e-6 && left + share < 1 + 1e-6);
    frame.style.display = is_shown ? "" : "none";
    const from = Math.max(left, 0) * width, room = Math.min(share, 1) * width;
    box.setAttribute("x", from), box.setAttribute("width", room), text.setAttribute("x", from + 3);
    const letters = Math.floor((room - 6) / 6.7), name = text.dataset.name;
    text.textContent = name.length <= letters ? name : letters < 4 ? "" : name.slice(0, letters - 2) + "..";
  }
}
for (const frame of frames) frame.addEventListener("click", event => {
  event.stopPropagation();
  widen(+frame.dataset.x, +frame.dataset.w, +frame.dataset.d);
});
document.documentElement.addEventListener("click", () => widen(0, 1, 0));
]]></script>""".replace("WIDTH", str(_WIDTH))
