"""The process that renders chat templates: untrusted code with bounded memory, time and output, and no files.

Started by template_pool as `python -m neuron.actors.text.template_child --fd N`. It reads one job at a time, and
ends when the link does.
"""

import json
import resource
import socket
import sys
import time

import jinja2
import jinja2.exceptions
import msgspec

from neuron.actors.text.template_environment import RefusedByTemplate, TooLarge, chat_environment
from neuron.actors.text.template_wire import Disconnected, Failure, RenderJob, RenderReply, receive_frame, send_frame

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


def confine() -> None:
    """No new files, sockets or processes, no core, bounded memory. After this only the inherited link works."""
    time.localtime()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, ADDRESS_SPACE),
    ):
        resource.setrlimit(limit, (value, value))


def allow_cpu_seconds(seconds: int) -> None:
    """The kernel ends this process when it computes for longer than `seconds` from now."""
    used = time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds + 1, hard))


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


def serve(link: socket.socket) -> None:
    """Answer jobs until the link ends."""
    renderer = TemplateRenderer()
    while True:
        try:
            frame = receive_frame(link)
        except (Disconnected, OSError):
            return
        allow_cpu_seconds(CPU_SECONDS)
        try:
            job = msgspec.msgpack.decode(frame, type=RenderJob)
            payload = msgspec.msgpack.encode(renderer.render(job))
        except MemoryError:
            send_frame(link, msgspec.msgpack.encode(RenderReply(failure=Failure.TOO_LARGE)))
            return
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            payload = msgspec.msgpack.encode(RenderReply(failure=Failure.FAILED))
        send_frame(link, payload)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    warm_up()
    send_frame(link, msgspec.msgpack.encode(RenderReply(text="")))
    confine()
    serve(link)


if __name__ == "__main__":
    main()
