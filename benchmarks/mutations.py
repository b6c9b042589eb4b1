"""A valid file -> what is left of it after damage, carelessness or malice; random, from a seed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

POWERS = [2**power for power in (15, 16, 31, 32, 53, 62, 63, 64, 100)]
NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "255", "65536", "1e3", "0.5", "-0.0", "1e-320", "1e308"),
    *("1e999", "NaN", "Infinity", "-Infinity", "nan", "+1", "007", "0x10", "1_000", "1.", ".5"),
    *(str(power + offset) for power in POWERS for offset in (-1, 0)),
    *("9" * 30, "9" * 400, "9" * 5000, "\u0661", "1" + "0" * 20),
)
TEXTS = (
    *("", " ", "\0", "\n", "a\nb\r\nc", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J"),
    *("[/bold]", "[red]x", "[link=http://x]y[/link]", ":smile:", "</script><script>x", "%s%n"),
    *("{0.__class__}", "\u202e", "\ud800", "é", "😀", "x" * 2000, "../../etc/passwd", "/dev/zero"),
    *("os:abort", "any.py:net", "builtins:exit", "coarse", "fine", "links", "largest"),
)
DEEP = ("[" * 10 + "]" * 10, "[" * 500 + "1" + "]" * 500, "[" * 100_000 + "]" * 100_000)
LARGEST = 2**23  # bytes, so that making a file takes no memory to speak of
RAW = "raw:"  # a text that begins so stands in the file without its quotes


def mutated(content: bytes, random: Random) -> bytes:
    """One to four changes; files of JSON mostly stay JSON, files of numbers stay numbers."""
    ways: list[Callable[[bytes, Random], bytes]] = [_bytes]
    if content.lstrip().startswith(b"{"):
        ways = [_fields, _fields, _fields, _text, _bytes]
    elif re.fullmatch(rb"[\d\s%.\-a-z]*", content):
        ways = [_words, _words, _lines, _bytes]
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        content = random.choice(ways)(content, random)[:LARGEST]
    return content


# ------------------------------------------------------------------ bytes of any file


def _bytes(content: bytes, random: Random) -> bytes:
    at, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    if random.random() < 0.7:
        end = min(end, at + random.choice((1, 1, 1, 2, 4, 8, 64)))
    before, piece, behind = content[:at], content[at:end], content[end:]
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: before,
        lambda: before + behind,
        lambda: behind + before,
        lambda: before + random.randbytes(len(piece)) + behind,
        lambda: before + bytes(byte ^ 1 << random.randrange(8) for byte in piece) + behind,
        lambda: before + random.choice((b"\0", b"\xff", b"\x7f")) * len(piece) + behind,
        lambda: before + piece * random.choice((2, 3, 50)) + behind,
        lambda: before + random.choice(TEXTS).encode("utf-8", "surrogatepass") + behind,
        lambda: content + random.randbytes(random.choice((1, 10, 1000))),
        lambda: content.replace(b"\n", random.choice((b"\r", b"\r\n", b"", b"\n\n", b"\0"))),
        lambda: random.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"#!", b"\x1f\x8b")) + content,
        lambda: content.decode("latin-1").encode(random.choice(("utf-16", "utf-32", "utf-7"))),
    )
    return random.choice(changes)()


# ------------------------------------------------------------------ files of numbers


def _words(content: bytes, random: Random) -> bytes:
    words = re.split(rb"(\s+)", content)
    for _ in range(random.choice((1, 1, 3))):
        # The first words are a header, which decides most.
        at = random.randrange(min(len(words), 12) if random.random() < 0.3 else len(words))
        changes: tuple[bytes, ...] = (
            random.choice(NUMBERS).encode(),
            b"%d" % random.randrange(30),
            b"",
            random.choice((b"\n", b" ", b"\t", b" % ", b"\v", b",")),
            random.choice(words),
        )
        words[at] = random.choice(changes)
    return b"".join(words)


def _lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    changes = (
        [],
        [lines[other]],
        [lines[at], lines[other]],
        [lines[at]] * 1000,
        [lines[at], b"% " + random.randbytes(20).replace(b"\n", b"") + b"\n"],
    )
    return b"".join([*lines[:at], *random.choice(changes), *lines[at + 1 :]])


# ------------------------------------------------------------------ JSON


def _fields(content: bytes, random: Random) -> bytes:
    """Change values, remove fields and add some, and write all of it again."""
    try:
        value = json.loads(content)
        places = _places(value)
        for _ in range(random.choice((1, 1, 2))):
            # The first places are the fields of the file itself.
            count = len(value) if random.random() < 0.5 else len(places)
            _change(*places[random.randrange(count)], places, random)
        text = json.dumps(
            value, indent=random.choice((None, 1)), ensure_ascii=random.random() < 0.7
        )
    except (ValueError, LookupError, TypeError, RecursionError):  # no JSON, or JSON of itself
        return _bytes(content, random)
    return re.sub(rf'"{RAW}([^"]*)"', r"\1", text).encode("utf-8", "surrogatepass")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every list or object of a value with every index or name that it has."""
    places: list[tuple[Any, Any]] = []
    todo = [value]
    for holder in todo:
        keys = holder if isinstance(holder, dict) else range(len(holder))
        places += [(holder, key) for key in keys]
        todo += [holder[key] for key in keys if isinstance(holder[key], (dict, list))]
    return places


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], random: Random) -> None:
    change = random.random()
    if change < 0.15:
        del holder[key]
    elif change < 0.25 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * random.choice((1, 2, 1000))
    elif change < 0.4 and isinstance(holder[key], (int, float)):
        holder[key] = random.choice((-1, 1, 2, 10, 1000, 2**31, 2**60)) * (holder[key] or 1)
    elif change < 0.5:
        other, name = random.choice(places)
        holder[key] = other[name]
    elif change < 0.55:
        holder[key] = RAW + random.choice(DEEP)
    else:
        holder[key] = _any_value(random, 2)


def _any_value(random: Random, depth: int) -> Any:
    simple = (
        RAW + random.choice(NUMBERS),
        RAW + random.choice(NUMBERS),
        random.choice(TEXTS),
        random.choice((None, True, False, [], {}, [[]], [0, 1], [1, 1])),
        random.randrange(40),
    )
    if not depth or random.random() < 0.7:
        return random.choice(simple)
    one = _any_value(random, depth - 1)
    length = random.choice((1, 2, 3, 4, 8, 238, 2000) if depth == 1 else (1, 2, 3, 4, 8))
    several = (
        [one] * length,
        [_any_value(random, 0) for _ in range(length)],
        {f"{random.choice(TEXTS)}{at}": one for at in range(length)},
    )
    return random.choice(several)


def _text(content: bytes, random: Random) -> bytes:
    """Change how JSON is written: a field twice, other quotes, escapes, brackets."""
    text = content.decode("utf-8", "surrogateescape")
    name = random.choice(re.findall(r'"(\w+)"\s*:', text) or ["format"])
    number = random.choice(NUMBERS)
    changes: tuple[Callable[[], str], ...] = (
        lambda: text.replace("{", f'{{"{name}": {number}, ', 1),
        lambda: text.replace("{", "{" + f'"x": 0, "{name}": null, ' * 200, 1),
        lambda: text.replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"'),
        lambda: text.replace('"', "'"),
        lambda: text.replace(",", ",,", 1),
        lambda: text.rstrip().rstrip("}"),
        lambda: text + text,
        lambda: re.sub(
            r"\d+", lambda _: random.choice(NUMBERS), text, count=random.randrange(1, 9)
        ),
        lambda: re.sub(r'("\w+")(\s*:)', r"\1 \n\t\2", text),
        lambda: DEEP[-1][:100_000] + text,
        lambda: f'{{"a": {text}, "b": {text}}}',
    )
    return random.choice(changes)().encode("utf-8", "surrogateescape")
