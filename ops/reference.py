"""`python -m ops.reference` writes ops/docs/reference from the code; with `--check` it only fails when that is stale.

Every table comes from what the daemon itself uses: the metric table, the error tree, the settings, the limits, the
OpenAPI document, the command line and the log calls. So the documents name what exists, and all of it.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from neuron.actors import errors as actor_errors
from neuron.actors import limits
from neuron.actors.settings import Settings
from neuron.api import errors as api_errors
from neuron.api.cli import cli
from neuron.api.metric_table import TABLE
from neuron.api.openapi import document
from neuron.api.startup import _RESERVED, ENVIRONMENT
from neuron.runtime import errors as runtime_errors
from neuron.runtime.errors import NeuronError
from ops.example_config import EXAMPLE, meanings
from ops.log_events import events

FOLDER = Path(__file__).parent / "docs" / "reference"
_NOTE = "<!-- Written by `python -m ops.reference`; do not edit. -->\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.reference", description="Write the reference documents.")
    parser.add_argument("--check", action="store_true", help="fail when a document is not what the code says")
    check = parser.parse_args(arguments).check
    stale = [name for name, text in pages().items() if not _is_current(FOLDER / name, text)]
    if check:
        for name in stale:
            sys.stderr.write(f"{FOLDER / name} is stale; run `python -m ops.reference`.\n")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages()[name], encoding="utf-8")
        sys.stdout.write(f"wrote {name}\n")
    return 0


@cache
def pages() -> dict[str, str]:
    makers: dict[str, Callable[[], str]] = {
        "api.md": api_page,
        "command-line.md": command_page,
        "configuration.md": configuration_page,
        "errors.md": errors_page,
        "limits.md": limits_page,
        "log-events.md": events_page,
        "metrics.md": metrics_page,
        "../decisions/README.md": decisions_page,
    }
    return {name: f"{_NOTE}{make().rstrip()}\n" for name, make in makers.items()}


def decisions_page() -> str:
    """The titles of the records, in the order of their numbers."""
    rows = []
    for path in sorted((FOLDER.parent / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        number, _, rest = title.partition(" ")
        text = rest if number.rstrip(":.").isdigit() else title
        rows.append((f"[{path.name[:4]}]({path.name})", text[:1].upper() + text[1:]))
    text = "What was decided, why, and what was turned down. A change that moves one leaves a record here."
    return f"# Decisions\n\n{text}\n\n{table(('', 'decision'), rows)}\n"


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table.

    >>> print(table(("a", "b"), [(1, "x|y")]))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    """
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- metrics, errors, limits, log events ---------------------------------------------------------


def metrics_page() -> str:
    rows = [
        (f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.help)
        for family in TABLE
    ]
    text = "Served at `GET /metrics`. Labels have few values whatever clients send; `model` only names loaded models."
    return f"# Metrics\n\n{text}\n\n{table(('metric', 'kind', 'labels', 'meaning'), rows)}\n"


def error_classes() -> list[type[NeuronError]]:
    """Every class of the tree that can be sent, by status and code."""
    modules = (runtime_errors, actor_errors, api_errors)
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, NeuronError) and value is not NeuronError
    }
    return sorted(classes, key=lambda kind: (kind.status, kind.code, kind.__name__))


def errors_page() -> str:
    rows: dict[str, tuple[object, ...]] = {}
    for kind in error_classes():
        retry = {None: "", True: "yes", False: "no: `x-should-retry: false`"}[kind.should_retry]
        if isinstance(kind.retry_after, int):
            retry = f"after {kind.retry_after} s"
        own = kind.__dict__.get("__doc__") or ""
        meaning = " ".join(own.split("\n\n")[0].split())
        # Two classes may share a code; the one that is named after it says what it means.
        if kind.code not in rows or kind.__name__.casefold() == kind.code.replace("_", ""):
            rows[kind.code] = (kind.status, f"`{kind.code}`", kind.type, retry, meaning)
    text = (
        'Every error is `{"error": {"message", "type", "param", "code", ...}}`, also inside a stream. '
        "Codes are stable; messages are not. A status of 499 is only ever logged."
    )
    return f"# Errors\n\n{text}\n\n{table(('status', 'code', 'type', 'retry', 'meaning'), rows.values())}\n"


def limits_page() -> str:
    rows = [(limit.name, f"{limit.value:,}", limit.unit, limit.over) for limit in limits.TABLE]
    text = "What a client may send. Limits that an operator may change are in [configuration](configuration.md)."
    return f"# Limits\n\n{text}\n\n{table(('what', 'at most', 'unit', 'beyond it'), rows)}\n"


def events_page() -> str:
    rows = [(f"`{event.name}`", event.level, ", ".join(f"`{key}`" for key in event.keys)) for event in events()]
    text = (
        "One JSON object a line on stderr. Beside these keys: `timestamp`, `level`, `event`, `logger`, `pid`, and what "
        "the logger is bound to (`req_id`, `model`, `device`)."
    )
    return f"# Log events\n\n{text}\n\n{table(('event', 'level', 'keys'), rows)}\n"


# -- configuration -------------------------------------------------------------------------------


def setting_keys(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> list[tuple[str, str, str]]:
    """(dotted key, type, default) of every key of the file; tables of a name or a list are `sources.NAME`, `models`."""
    found: list[tuple[str, str, str]] = []
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        key = prefix + field.encode_name
        hint = hints[field.name]
        inner = hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None
        if key in _RESERVED:
            continue
        if inner is not None:
            found += setting_keys(inner, f"{key}.")
        elif key == "sources":
            found += setting_keys(get_args(hint)[1], "sources.NAME.")
        elif key == "models":
            found += setting_keys(get_args(hint)[0], "models.")
        else:
            found.append((key, _type_name(hint), _default(field)))
    return found


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return _type_name(next(arm for arm in get_args(hint) if arm is not type(None)))
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, str) and hint is not str:
        return " or ".join(f'"{member.value}"' for member in hint)  # type: ignore[attr-defined]
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Path": "path"}[hint.__name__]


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT:
        return "[]" if field.default_factory is not msgspec.NODEFAULT else "required"
    value = getattr(field.default, "value", field.default)
    if value is None:
        return "unset"
    return f"`{msgspec.json.encode(value).decode()}`"


def configuration_page() -> str:
    known = meanings(EXAMPLE.read_text(encoding="utf-8"))
    rows = [(f"`{key}`", kind, default, known.get(key, "")) for key, kind, default in setting_keys()]
    variables = [(f"`{name}`", f"`{key}`") for name, key in ENVIRONMENT.items()]
    others = [
        ("`NEURON_CONFIG`", "the file, when `--config` names none"),
        ("`HF_HOME`, `HF_HUB_CACHE`", "where the source named huggingface keeps its files"),
        ("`NEURON_URL`, `NEURON_API_KEY`", "the daemon and the key that the command line uses"),
        ("`NO_COLOR`", "no colours on a terminal"),
    ]
    text = (
        "A TOML file; [neuron.example.toml](../../neuron.example.toml) holds every key with its default. "
        "Precedence: defaults, file, environment, command line. Unknown keys are refused by name."
    )
    return (
        f"# Configuration\n\n{text}\n\n{table(('key', 'type', 'default', 'meaning'), rows)}\n\n"
        f"## Environment\n\n{table(('variable', 'sets'), variables + others)}\n"
    )


# -- command line --------------------------------------------------------------------------------


def command_page() -> str:
    parts = ["# Command line\n"]
    context = click.Context(cli, info_name="neuron")
    for path, command in _commands("neuron", cli, context):
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=path)))
        parts.append(f"## {path}\n\n`{path} {usage}`\n\n{command.help or ''}\n")
        rows = []
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                default = parameter.default if parameter.show_default else ""
                help_text = parameter.help or ""
                rows.append((", ".join(f"`{name}`" for name in parameter.opts), help_text, default))
        if rows:
            parts.append(table(("option", "meaning", "default"), rows) + "\n")
    return "\n".join(parts)


def _commands(path: str, command: click.Command, context: click.Context) -> Iterable[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None:
            yield from _commands(f"{path} {name}", inner, context)


# -- HTTP ----------------------------------------------------------------------------------------


def api_page() -> str:
    described = document()
    routes = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            answers = operation["responses"]["200"].get("content", {})
            shapes = ", ".join(dict.fromkeys(_shape(content) or kind for kind, content in answers.items()))
            query = ", ".join(f"`{given['name']}`" for given in operation.get("parameters", ()))
            routes.append(
                (f"`{method.upper()} {path}`", operation["summary"], query, _type(body) if body else "", shapes)
            )
    parts = [
        "# HTTP API\n",
        "The same, for machines: `GET /openapi.json`. Prose and promises: [the contract](../contract.md).\n",
        table(("route", "", "parameters", "body", "answer"), routes) + "\n",
    ]
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append(f"## {name}\n\n{schema.get('description', '')}".rstrip() + "\n")
        required = set(schema.get("required", ()))
        rows = [
            (f"`{key}`", _type(value), "yes" if key in required else "", value.get("description", ""))
            for key, value in schema.get("properties", {}).items()
        ]
        parts.append(table(("key", "type", "always", ""), rows) + "\n" if rows else _type(schema) + "\n")
    return "\n".join(parts)


def _shape(content: dict[str, Any]) -> str:
    schema = content.get("schema") or content.get("x-event-data")
    stream = " (stream)" if "x-event-data" in content else ""
    return _type(schema) + stream if schema else ""


def _type(schema: Any) -> str:
    """A schema in a few words."""
    if not isinstance(schema, dict) or not schema:
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(_type(arm) for arm in schema[union])
    if "enum" in schema:
        return " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{msgspec.json.encode(schema['const']).decode()}`"
    kinds = schema.get("type", "any")
    words = [_simple(kind, schema) for kind in (kinds if isinstance(kinds, list) else [kinds])]
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", ">="), ("maximum", "<=")) if key in schema]
    return " or ".join(words) + (f" ({', '.join(bounds)})" if bounds else "")


def _simple(kind: str, schema: dict[str, Any]) -> str:
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return kind


if __name__ == "__main__":
    sys.exit(main())
