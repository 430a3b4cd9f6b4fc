"""Reads the comments of neuron.example.toml: what each key means. Used by the documents and their test."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parent / "neuron.example.toml"
_TABLE = re.compile(r"#?(\[\[?)([a-z_.]+)\]\]?")
_KEY = re.compile(r"(#?)([a-z_]+) = (.+)")


def meanings(text: str) -> dict[str, str]:
    """Dotted key -> the comment above it. `sources.example` is written as `sources.NAME`.

    >>> meanings('[server]\\n# Where to\\n# listen.\\nport = 1\\n#host = "a"\\n')
    {'server.port': 'Where to listen.', 'server.host': ''}
    """
    found: dict[str, str] = {}
    section, comment = "", list[str]()
    for line in text.splitlines():
        if table := _TABLE.fullmatch(line):
            section, comment = table[2].replace("sources.example", "sources.NAME"), []
        elif key := _KEY.fullmatch(line):
            found[f"{section}.{key[2]}" if section else key[2]] = " ".join(comment)
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        else:
            comment = []
    return found


def uncommented(text: str) -> str:
    """The file with every key and table switched on."""
    lines = (line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines())
    return "\n".join(lines) + "\n"
