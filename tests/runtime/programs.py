"""Small programs that the tests start as child processes: `python -m tests.runtime.programs --fd N --parent P MODE`."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time

import msgspec

from neuron.runtime import child, logs
from neuron.runtime.link import BlockingLink
from neuron.runtime.shm import SlotSegment


class Text(msgspec.Struct, frozen=True, array_like=True, tag=True):
    text: str


class Number(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    data: bytes = b""


Message = Text | Number


def echo(link: BlockingLink[Message]) -> None:
    while (message := link.receive()) is not None:
        link.send(message)


def environment(link: BlockingLink[Message]) -> None:
    link.send(Text(",".join(sorted(os.environ))))


def open_fds(link: BlockingLink[Message]) -> None:
    # All of them: the link keeps the number it had in the parent, which may have hundreds open.
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    kinds = [os.fstat(fd).st_mode for fd in numbers if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    link.send(Number(sum(1 for mode in kinds if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode))))


def noise(link: BlockingLink[Message]) -> None:
    logs.configure_logging("info", device="cpu")
    logs.get_logger("child").info("structured", number=1)
    logs.flush_logs()
    print("plain \x1b[31m words")  # noqa: T201
    sys.stdout.flush()
    os.write(2, b'{"event": "half\n')
    os.write(2, b"x" * 100_000)
    os.write(2, b"\nlast words")
    os._exit(5)


def segfault(link: BlockingLink[Message]) -> None:
    import faulthandler

    faulthandler.enable()
    ctypes.string_at(0)


def stubborn(link: BlockingLink[Message]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link.send(Text("ready"))
    while True:
        time.sleep(60)


def grandchild(link: BlockingLink[Message]) -> None:
    """Leaves a process behind that holds stderr and the link open; says its pid."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    link.send(Number(process.pid))
    link.receive()
    os._exit(0)


def two_frames_then_die(link: BlockingLink[Message]) -> None:
    link.send(Text("one"))
    link.send(Text("two"))
    os.kill(os.getpid(), signal.SIGKILL)


def half_frame(link: BlockingLink[Message]) -> None:
    os.write(child.parse_child_arguments(sys.argv[1:]).fd, b"\0\0\0\x10half")
    os._exit(0)


def rows(link: BlockingLink[Message]) -> None:
    """Attach the named segment, answer with the sum of row 0, write row 1, again and again."""
    while isinstance(message := link.receive(), Text):
        segment = SlotSegment.attach(message.text, 2, 4096)
        segment.row(1)[:] = 7.0
        segment.set_stamp(1, 99)
        link.send(Number(int(segment.row(0).sum())))
        segment.close()


def gil_held(link: BlockingLink[Message]) -> None:
    """Sit in native code with the interpreter locked: no Python thread can run."""
    link.send(Text("ready"))
    ctypes.PyDLL(None).sleep(60)


def frozen_link(link: BlockingLink[Message]) -> None:
    """Bound to the parent by the kernel alone."""
    link.send(Text("ready"))
    time.sleep(60)


MODES = {
    function.__name__: function
    for function in (
        echo,
        environment,
        open_fds,
        noise,
        segfault,
        stubborn,
        grandchild,
        two_frames_then_die,
        half_frame,
        rows,
        gil_held,
        frozen_link,
    )
}


def main() -> None:
    arguments = child.parse_child_arguments(sys.argv[1:])
    mode = sys.argv[-1]
    sock = child.link_socket(arguments.fd)
    # `watched:` tries the thread alone, `bound:` the kernel alone; otherwise both.
    belt, _, name = mode.rpartition(":")
    if belt != "watched":
        child.bind_to_parent(arguments.parent)
    if belt != "bound":
        child.exit_when_closed(sock)
    try:
        MODES[name](BlockingLink(sock, Message))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
