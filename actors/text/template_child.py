"""The process that renders chat templates: untrusted code with bounded memory, time and output, and no files.

Started by template_pool as `python -m neuron.actors.text.template_child --fd N`. It reads one job at a time, and
ends when the link does.
"""

import json

import jinja2
import jinja2.exceptions
import msgspec

from neuron.actors.text.template_environment import RefusedByTemplate, TooLarge, chat_environment
from neuron.actors.text.template_wire import Failure, RenderJob, RenderReply
from neuron.runtime.confined import confine, inherited_link, send_frame, serve

ADDRESS_SPACE = 256 << 20
CPU_SECONDS = 3
_KEPT_TEMPLATES = 32
_MAX_SENTENCE = 2000
_WARM_UP = (
    "{{ a|tojson(indent=2)|pprint ~ strftime_now('%d %b %Y %H:%M') ~ lipsum(1) ~ a|random ~ 'x.y'|urlize|escape }}",
    "{{ {'a': 1}|xmlattr ~ {'a': 1}|urlencode ~ 'a'|striptags ~ 'a b'|title|wordwrap(3) ~ a|map('upper')|join }}",
    "{% macro m(x=1) %}{{ x }}{% endmacro %}{{ m(2) }}{% for x in a %}{% continue %}{% endfor %}{{ 1|float|round(1) }}",
    "{{ a|sort|groupby('x')|list }}{{ 'a'|filesizeformat }}{{ missing.field }}",
    "{{ 1 / 0 }}",
    "{{ raise_exception('no') }}",
    "{% for %}",
    "{{ a.__class__ }}",
)


def warm_up() -> None:
    """Load what Jinja imports late: afterwards no file can be opened."""
    renderer = TemplateRenderer()
    for source in _WARM_UP:
        renderer.render(RenderJob(source=source, variables=b'{"a": ["b"]}', max_bytes=1 << 20))


class TemplateRenderer:
    """Compiled templates by their source, and the rendering of one job."""

    def __init__(self) -> None:
        self._environment = chat_environment()
        self._compiled: dict[str, jinja2.Template] = {}

    def render(self, job: RenderJob) -> RenderReply:
        """Never raises except MemoryError: the caller then ends the process."""
        try:
            return RenderReply(text=self._render(job))
        except RefusedByTemplate as refusal:
            return RenderReply(failure=Failure.REFUSED, detail=(refusal.message or "")[:_MAX_SENTENCE])
        except TooLarge:
            return RenderReply(failure=Failure.TOO_LARGE)
        except jinja2.TemplateSyntaxError as error:
            return RenderReply(failure=Failure.SYNTAX, detail=str(error.lineno))
        except jinja2.exceptions.SecurityError:
            return RenderReply(failure=Failure.FORBIDDEN)
        except jinja2.UndefinedError:
            return RenderReply(failure=Failure.UNDEFINED)
        except MemoryError:
            raise
        except Exception:
            return RenderReply(failure=Failure.FAILED)

    def _render(self, job: RenderJob) -> str:
        template = self._compiled.get(job.source)
        if template is None:
            template = self._environment.from_string(job.source)
            if len(self._compiled) >= _KEPT_TEMPLATES:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[job.source] = template
        size, pieces = 0, []
        for piece in template.generate(json.loads(job.variables)):
            size += len(piece)
            if size > job.max_bytes:
                raise TooLarge("output")
            pieces.append(piece)
        text = "".join(pieces)
        if len(text) > job.max_bytes // 4 and len(text.encode(errors="replace")) > job.max_bytes:
            raise TooLarge("output")
        return text


def main() -> None:
    link = inherited_link()
    warm_up()
    renderer = TemplateRenderer()

    def answer(frame: bytearray) -> bytes:
        try:
            job = msgspec.msgpack.decode(frame, type=RenderJob)
            return msgspec.msgpack.encode(renderer.render(job))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return msgspec.msgpack.encode(RenderReply(failure=Failure.FAILED))

    send_frame(link, msgspec.msgpack.encode(RenderReply(text="")))
    confine(ADDRESS_SPACE)
    no_memory = msgspec.msgpack.encode(RenderReply(failure=Failure.TOO_LARGE))
    serve(link, answer, cpu_seconds=CPU_SECONDS, no_memory=no_memory)


if __name__ == "__main__":
    main()
