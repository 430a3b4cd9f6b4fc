"""`neuron chat`: a conversation in the terminal, streamed, with a few commands."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from neuron.api.cli.completion import complete_models
from neuron.api.cli.http import Api, json_option, only_model, url_option

_HELP = """\
/help            this text
/system TEXT     set the system message (and start over)
/image PATH      send a picture along with the next message
/clear           forget the conversation
/retry           ask the last question again
/set NAME VALUE  set a request field, such as: /set temperature 0
/unset NAME      back to the model's own value
/think on|off    let the model think, or not
/model ID        go on with another model
/models          list the loaded models
/timings         show or hide tokens per second
/quit            leave (also Ctrl-D)
Ctrl-C ends an answer."""


@dataclass(slots=True)
class Conversation:
    """`fields` go along with every request; `images` with the next message."""

    model: str
    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    timings: bool = False
    as_json: bool = False

    def body(self) -> dict[str, Any]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": head + self.turns, "stream": True, **self.fields}

    def say(self, text: str) -> None:
        content: Any = [*self.images, {"type": "text", "text": text}] if self.images else text
        self.turns.append({"role": "user", "content": content})


@click.command()
@click.argument("model_id", metavar="[ID]", required=False, shell_complete=complete_models)
@url_option
@json_option
@click.option("--system", help="System message.")
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="Send a picture along first.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 always takes the likeliest token.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer in tokens.")
@click.option("--timings", is_flag=True, help="Show tokens per second after each answer.")
def chat(
    model_id: str | None,
    url: str,
    as_json: bool,
    system: str | None,
    images: tuple[Path, ...],
    temperature: float | None,
    max_tokens: int | None,
    timings: bool,
) -> None:
    """Talk to a model. Lines come from the terminal, or from a pipe; with --json each answer is one JSON line."""
    api = Api(url)
    talk = Conversation(only_model(api, model_id), system, timings=timings, as_json=as_json)
    for path in images:
        attach(talk, path)
    if temperature is not None:
        talk.fields["temperature"] = temperature
    if max_tokens is not None:
        talk.fields["max_tokens"] = max_tokens
    interactive = sys.stdin.isatty()
    if interactive and not as_json:
        click.echo(f"{talk.model} at {url}. /help lists commands.")
    while (line := _read(interactive)) is not None:
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                if not command(api, talk, line):
                    return
            else:
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


def command(api: Api, talk: Conversation, line: str) -> bool:
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
        case "image" if rest:
            attach(talk, Path(rest))
        case "model" if rest:
            talk.model = rest
        case "models":
            for entry in api.get("/models"):
                click.echo(f"{entry['id']} ({entry['state']})")
        case "retry":
            _retry(api, talk)
        case "set" if len(rest.split(maxsplit=1)) == 2:
            _set(talk, *rest.split(maxsplit=1))
        case "unset" if rest:
            talk.fields.pop(rest, None)
        case _:
            click.echo(_HELP)
    return True


def attach(talk: Conversation, path: Path) -> None:
    from neuron.api.cli.images import image_part

    talk.images.append(image_part(path))
    if not talk.as_json:
        click.echo(f"{path} goes along with the next message.", err=True)


def _set(talk: Conversation, name: str, text: str) -> None:
    import json

    try:
        talk.fields[name] = json.loads(text)
    except ValueError:
        talk.fields[name] = text


def _retry(api: Api, talk: Conversation) -> None:
    if talk.turns and talk.turns[-1]["role"] == "assistant":
        talk.turns.pop()
    if not talk.turns:
        raise click.ClickException("nothing was asked yet.")
    _answer(api, talk)


def ask(api: Api, talk: Conversation, text: str) -> None:
    """One turn. What was answered before an interruption stays in the conversation; a failed turn does not."""
    talk.say(text)
    _answer(api, talk)
    talk.images.clear()


def _answer(api: Api, talk: Conversation) -> None:
    printer = Printer(quiet=talk.as_json)
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
    if talk.as_json:
        printer.print_json()
    elif talk.timings and printer.timings:
        figures = printer.timings
        click.echo(
            f"[{figures['prompt_n']} tokens in at {figures['prompt_per_second']:.1f}/s, "
            f"{figures['predicted_n']} out at {figures['predicted_per_second']:.1f}/s]",
            err=True,
        )


class Printer:
    """Writes deltas as they come; thinking is dimmed and not part of the conversation. `quiet`: only collects them."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.content: list[str] = []
        self.thought: list[str] = []
        self.timings: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self._quiet = quiet
        self._thinking = False

    def show(self, event: dict[str, Any]) -> None:
        self.timings = event.get("timings") or self.timings
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta", {})
            if thought := delta.get("reasoning_content"):
                self._thinking = True
                self.thought.append(thought)
                self._write(thought, dim=True)
            if text := delta.get("content"):
                if self._thinking:
                    self._write("\n\n")
                    self._thinking = False
                self.content.append(text)
                self._write(text)
            for call in delta.get("tool_calls", []):
                function = call.get("function", {})
                self._write(function.get("name") or function.get("arguments") or "")

    def _write(self, text: str, *, dim: bool = False) -> None:
        if not self._quiet:
            click.secho(text, dim=dim, nl=False) if dim else click.echo(text, nl=False)

    def note(self, text: str) -> None:
        self._write(f" {text}", dim=True)

    def close(self) -> None:
        if not self._quiet:
            click.echo()

    def print_json(self) -> None:
        import json

        answer = {
            "content": "".join(self.content),
            "reasoning": "".join(self.thought),
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "timings": self.timings,
        }
        click.echo(json.dumps(answer, ensure_ascii=False))
