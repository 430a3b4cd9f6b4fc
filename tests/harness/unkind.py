"""`python -m tests.harness.unkind WHAT... -- serve ...`: the daemon in a machine that is unkind to it.

`no-pread`: every pread at offset 0 fails with EIO, in the daemon and below it (seccomp; the linker's are elsewhere).
`no-override`: permission bits hold for root too. `clock FILE`: the wall clock is wrong by the seconds in FILE.
`block FILE`: at SIGUSR1 the main thread, and so the event loop, stands still for the seconds in FILE.
`stuck-thread`: the thread that warms the sampler up never comes back.
"""

import ctypes
import datetime
import errno
import os
import platform
import signal
import struct
import sys
import time
from pathlib import Path

_PREAD64 = {"x86_64": 17, "aarch64": 67}
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 24, 22, 38
_SECCOMP_MODE_FILTER = 2
_RET_ERRNO, _RET_ALLOW = 0x0005_0000, 0x7FFF_0000
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_CAPABILITY_VERSION = 0x2008_0522


def supported() -> bool:
    """Whether `no-pread` works here: the machine's system calls are known, and its kernel filters them."""
    if sys.platform != "linux" or platform.machine() not in _PREAD64:
        return False
    return "Seccomp:" in Path("/proc/self/status").read_text()


def refuse_pread() -> None:
    load, jump_equal, give = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (load, 0, 0, 0),  # The call's number.
            (jump_equal, 0, 3, _PREAD64[platform.machine()]),
            (load, 0, 0, 40),  # The low half of its fourth argument.
            (jump_equal, 0, 1, 0),
            (give, 0, 0, _RET_ERRNO | errno.EIO),
            (give, 0, 0, _RET_ALLOW),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def obey_permissions() -> None:
    if os.geteuid() != 0:
        return
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        _prctl(_PR_CAPBSET_DROP, capability)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    held = ctypes.create_string_buffer(24)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.capget(header, held))
    words = list(struct.unpack("6I", held.raw[:24]))
    words[:3] = [word & ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH) for word in words[:3]]
    _check(libc.capset(header, struct.pack("6I", *words)))


def turn_clock(control: Path) -> None:
    """What the daemon's Python asks for the time of day; time limits must not notice."""
    true_time, true_datetime = time.time, datetime.datetime

    def offset() -> float:
        return float(control.read_text())

    class Turned(true_datetime):  # type: ignore[valid-type,misc]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return true_datetime.now(tz) + datetime.timedelta(seconds=offset())

    time.time = lambda: true_time() + offset()
    datetime.datetime = Turned  # type: ignore[misc]


def block_on_signal(control: Path) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(float(control.read_text())))


def hold_a_thread() -> None:
    from neuron.actors.sampling import sampler

    sampler.warm_up.__globals__["kernels"] = lambda: time.sleep(3600)


def _prctl(option: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(option, *(ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4])))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    split = sys.argv.index("--")
    wanted, sys.argv[1:] = iter(sys.argv[1:split]), sys.argv[split + 1 :]
    for what in wanted:
        match what:
            case "no-pread":
                refuse_pread()
            case "no-override":
                obey_permissions()
            case "clock":
                turn_clock(Path(next(wanted)))
            case "block":
                block_on_signal(Path(next(wanted)))
            case "stuck-thread":
                hold_a_thread()
            case _:
                raise SystemExit(f"unkind: {what}?")
    from neuron.api.cli import main as neuron  # After the clock was turned.

    neuron()


if __name__ == "__main__":
    main()
