"""Pictures in a terminal: two pixels a character in true colour, or letters where there is no colour."""

from PIL import Image

from ops.tiny_vision.pictures import COLOURS

COLUMNS = 36


def drawn(image: Image.Image, *, colour: bool) -> str:
    """The picture as lines of text, COLUMNS wide; a character is twice as high as it is wide."""
    rows = max(2, round(COLUMNS * image.height / image.width / 2) * 2)
    small = image.resize((COLUMNS, rows if colour else rows // 2), Image.Resampling.BOX)
    pixels = small.load()
    assert pixels is not None
    if not colour:
        return "\n".join("".join(_letter(pixels[x, y]) for x in range(COLUMNS)) for y in range(small.height))
    lines = []
    for y in range(0, rows, 2):
        cells = [f"\x1b[38;2;{_rgb(pixels[x, y])};48;2;{_rgb(pixels[x, y + 1])}m\u2580" for x in range(COLUMNS)]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _rgb(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return ";".join(str(value) for value in pixel[:3])


def _letter(pixel: object) -> str:
    """The first letter of the nearest colour; blank for the ground."""
    assert isinstance(pixel, tuple)
    names = {**COLOURS, " ": (225, 225, 225)}
    nearest = min(names, key=lambda name: sum((a - b) ** 2 for a, b in zip(names[name], pixel, strict=False)))
    return nearest[0].upper()
