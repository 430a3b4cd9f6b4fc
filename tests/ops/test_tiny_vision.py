"""The committed tiny vision model is the one that its script describes."""

import json
import random

from ops.tiny_vision.pictures import COLOURS, PLACES, draw, noise
from ops.tiny_vision.show import COLUMNS, drawn
from ops.tiny_vision.vocabulary import CHAT_TEMPLATE, SPECIAL, TARGET, build_tokenizer


def test_tokenizer_and_template_are_those_of_the_script() -> None:
    built = build_tokenizer()
    assert json.loads((TARGET / "tokenizer.json").read_text()) == json.loads(built.to_str())
    assert (TARGET / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    config = json.loads((TARGET / "config.json").read_text())
    assert config["image_token_id"] == built.token_to_id("<|image_pad|>")
    assert built.get_vocab_size() <= config["text_config"]["vocab_size"]
    assert all(built.token_to_id(text) is not None for text in SPECIAL)
    assert sum(path.stat().st_size for path in TARGET.iterdir()) < 4 << 20


def test_a_square_is_where_it_is_said_to_be() -> None:
    rng = random.Random(1)
    for colour in COLOURS:
        for place, (row, column) in PLACES.items():
            picture = draw(colour, place, rng)
            letter = colour[0].upper()
            lines = drawn(picture.image, colour=False).splitlines()
            found = [(y, x) for y, line in enumerate(lines) for x, mark in enumerate(line) if mark == letter]
            y, x = (sum(values) / len(found) for values in zip(*found, strict=True))
            assert int(y / len(lines) * 3) == row
            assert int(x / COLUMNS * 3) == column


def test_colour_fills_the_terminal_s_width() -> None:
    lines = drawn(noise((120, 100), random.Random(2)), colour=True).splitlines()
    assert all(line.count("\u2580") == COLUMNS and line.endswith("\x1b[0m") for line in lines)
