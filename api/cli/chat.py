"""`neuron chat`: a conversation in the terminal, streamed, with a few commands."""

import sys
from dataclasses import dataclass, field
from typing import Any

import click

from neuron.api.cli.http import Api, only_model, url_option

_HELP = """\
/help            this text
/system TEXT     set the system message (and start over)
/clear           forget the conversation
/set NAME VALUE  set a sampling field, such as: /set temperature 0
/think on|off    let the model think, or not
/timings         show or hide tokens per second
/quit            leave (also Ctrl-D)
Ctrl-C ends an answer."""


@dataclass(slots=True)
class Conversation:
    """`fields` go along with every request."""

    model: str
    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    timings: bool = False

    def body(self) -> dict[str, Any]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": head + self.turns, "stream": True, **self.fields}


@click.command()
@click.argument("model_id", metavar="[ID]", required=False)
@url_option
@click.option("--system", help="System message.")
@click.option("--temperature", type=click.FloatRange(0, 2))
@click.option("--max-tokens", type=click.IntRange(1))
@click.option("--timings", is_flag=True, help="Show tokens per second after each answer.")
def chat(
    model_id: str | None, url: str, system: str | None, temperature: float | None, max_tokens: int | None, timings: bool
) -> None:
    """Talk to a model. Lines come from the terminal, or from a pipe."""
    api = Api(url)
    talk = Conversation(only_model(api, model_id), system, timings=timings)
    if temperature is not None:
        talk.fields["temperature"] = temperature
    if max_tokens is not None:
        talk.fields["max_tokens"] = max_tokens
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(f"{talk.model} at {url}. /help lists commands.")
    while (line := _read(interactive)) is not None:
        if not line.strip():
            continue
        if line.startswith("/"):
            if not command(talk, line):
                return
            continue
        try:
            ask(api, talk, line)
        except click.ClickException as error:
            if not interactive:
                raise
            error.show()


def _read(interactive: bool) -> str | None:
    """The next line; None at the end of input."""
    try:
        return input("> " if interactive else "")
    except EOFError:
        if interactive:
            click.echo()
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""


def command(talk: Conversation, line: str) -> bool:
    """Handles a line that begins with "/"; False ends the conversation."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    match name:
        case "quit" | "exit":
            return False
        case "clear":
            talk.turns.clear()
        case "system":
            talk.system = rest or None
            talk.turns.clear()
        case "think" if rest in ("on", "off"):
            talk.fields["chat_template_kwargs"] = {"enable_thinking": rest == "on"}
        case "timings":
            talk.timings = not talk.timings
        case "set" if len(rest.split()) == 2:
            _set(talk, *rest.split())
        case _:
            click.echo(_HELP)
    return True


def _set(talk: Conversation, name: str, text: str) -> None:
    import json

    try:
        talk.fields[name] = json.loads(text)
    except ValueError:
        talk.fields[name] = text


def ask(api: Api, talk: Conversation, text: str) -> None:
    """One turn. What was answered before an interruption stays in the conversation; a failed turn does not."""
    talk.turns.append({"role": "user", "content": text})
    printer = _Printer()
    try:
        for event in api.events("/v1/chat/completions", talk.body()):
            printer.show(event)
    except KeyboardInterrupt:
        printer.note("(interrupted)")
    except click.ClickException:
        talk.turns.pop()
        printer.close()
        raise
    printer.close()
    talk.turns.append({"role": "assistant", "content": "".join(printer.content)})
    if talk.timings and printer.timings:
        figures = printer.timings
        click.echo(
            f"[{figures['prompt_n']} tokens in at {figures['prompt_per_second']:.1f}/s, "
            f"{figures['predicted_n']} out at {figures['predicted_per_second']:.1f}/s]",
            err=True,
        )


class _Printer:
    """Writes deltas as they come; thinking is dimmed and not part of the conversation."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.timings: dict[str, Any] = {}
        self._thinking = False

    def show(self, event: dict[str, Any]) -> None:
        self.timings = event.get("timings") or self.timings
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            if thought := delta.get("reasoning_content"):
                self._thinking = True
                click.secho(thought, dim=True, nl=False)
            if text := delta.get("content"):
                if self._thinking:
                    click.echo("\n")
                    self._thinking = False
                self.content.append(text)
                click.echo(text, nl=False)
            for call in delta.get("tool_calls", []):
                function = call.get("function", {})
                click.echo(function.get("name") or function.get("arguments") or "", nl=False)

    def note(self, text: str) -> None:
        click.secho(f" {text}", dim=True, nl=False)

    def close(self) -> None:
        click.echo()
