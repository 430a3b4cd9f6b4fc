"""The conversation of `neuron bench agent`: a coding agent that reads files, made from a seed. Pure."""

import json
import random
from typing import Any

Messages = list[dict[str, Any]]

_WORDS = (
    "parser request buffer session token index vector module handler socket thread signal layer kernel cache queue "
    "writer reader record schema branch commit filter matrix column client server driver config device"
).split()
_SYSTEM = (
    "You are a coding agent in a terminal. Read files before you change them, make small changes, run the tests after "
    "each, and say what you did in one sentence. Never touch files outside the repository."
)


def _tool(name: str, text: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": value} for key, value in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}


TOOLS: list[dict[str, Any]] = [
    _tool("read_file", "Read a file.", path="Path from the repository's root."),
    _tool("write_file", "Replace a file.", path="Path from the repository's root.", content="All of its text."),
    _tool("run", "Run a command in the shell and return what it prints.", command="The command line."),
    _tool("search", "Search all files.", pattern="A regular expression.", glob="Which files."),
]


def code(lines: int, seed: str) -> str:
    """`lines` lines that look like a program, the same for the same seed."""
    chance = random.Random(seed)
    made = []
    for number in range(lines):
        a, b, c = (chance.choice(_WORDS) for _ in range(3))
        made.append(f"    {a}_{b}[{number}] = {c}.{b}({chance.randrange(1000)}, {a}={chance.randrange(100)})")
    return "\n".join(made)


def conversation(turns: int, lines: int, name: str) -> list[Messages]:
    """What the agent sends at each of its `turns`: all before, then a call and its result of `lines` lines.

    Two conversations of other names differ from their first words on.
    """
    messages: Messages = [
        {"role": "system", "content": f"Repository {name}. {_SYSTEM}"},
        {"role": "user", "content": f"Find out why the tests of {name} fail, and repair it.\n{code(lines, name)}"},
    ]
    sent = [list(messages)]
    for turn in range(1, turns):
        call = {"path": f"src/{_WORDS[turn % len(_WORDS)]}_{turn}.py"}
        arguments = json.dumps(call)
        function = {"name": "read_file", "arguments": arguments}
        messages.append(
            {
                "role": "assistant",
                "content": f"I read {call['path']} next.",
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": code(lines, f"{name} {turn}")})
        sent.append(list(messages))
    return sent


def alone(lines: int, name: str) -> Messages:
    """One turn's new text without what came before it."""
    return [{"role": "user", "content": f"{name}\n{code(lines, name)}"}]
