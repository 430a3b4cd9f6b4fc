"""Pictures of one coloured square, pictures of noise, and what is to be said about them. Used by training and tests."""

import base64
import io
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 32, 34),
    "green": (30, 160, 50),
    "blue": (30, 60, 215),
    "yellow": (240, 215, 25),
    "purple": (135, 40, 160),
    "orange": (245, 135, 20),
    "black": (12, 12, 14),
    "brown": (110, 65, 30),
}
#: Name -> (row, column) of a grid of three by three.
PLACES = {
    "top left": (0, 0),
    "top": (0, 1),
    "top right": (0, 2),
    "left": (1, 0),
    "centre": (1, 1),
    "right": (1, 2),
    "bottom left": (2, 0),
    "bottom": (2, 1),
    "bottom right": (2, 2),
}
QUESTIONS = ("What do you see?", "Which square is there, and where?", "Describe the picture.", "Name the square.")
NO_SQUARE = "I see no square."
NO_PICTURE = "I see no picture."


@dataclass(frozen=True, slots=True)
class Picture:
    image: Image.Image
    colour: str
    place: str

    @property
    def answer(self) -> str:
        return f"A {self.colour} square at the {self.place}."


def draw(colour: str, place: str, rng: random.Random) -> Picture:
    """A picture of 96 to 192 pixels a side: one square near the middle of one of nine cells, on a light ground."""
    width, height = rng.randint(96, 192), rng.randint(96, 192)
    shade = rng.randint(185, 255)
    ground = np.clip(shade + np.asarray([rng.randint(-12, 12) for _ in range(3)]), 0, 255)
    grain = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, 6), (height, width, 3))
    image = Image.fromarray(np.clip(ground + grain, 0, 255).astype(np.uint8), "RGB")
    row, column = PLACES[place]
    side = rng.uniform(0.2, 0.3) * min(width, height)
    middle = [(line + 0.5) / 3 * size for line, size in ((column, width), (row, height))]
    x, y = (value + rng.uniform(-0.05, 0.05) * min(width, height) for value in middle)
    tint = tuple(max(0, min(255, value + rng.randint(-10, 10))) for value in COLOURS[colour])
    ImageDraw.Draw(image).rectangle((x - side / 2, y - side / 2, x + side / 2, y + side / 2), fill=tint)
    return Picture(image, colour, place)


def random_picture(rng: random.Random) -> Picture:
    return draw(rng.choice(list(COLOURS)), rng.choice(list(PLACES)), rng)


def noise(size: tuple[int, int], rng: random.Random) -> Image.Image:
    """Independent random pixels."""
    values = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values, "RGB")


def data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
