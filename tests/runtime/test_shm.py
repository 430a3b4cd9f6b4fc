"""Shared memory: reserved, private, gone when it should be, and never another owner's (LIFE-03, LIFE-04, LIFE-07)."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuron.runtime import shm
from neuron.runtime.errors import InsufficientShm, ProtocolError
from neuron.runtime.shm import ByteSegment, SlotSegment, sweep_stale

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]


def _dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_both_sides_see_rows_and_stamps() -> None:
    ours = SlotSegment.create(3, 4 * 1001)
    theirs = SlotSegment.attach(ours.name, 3, 4 * 1001)
    ours.unlink()
    theirs.row(2)[:] = np.arange(1001, dtype=np.float32)
    theirs.set_stamp(2, 2**40)
    assert ours.row(2).shape == (1001,)
    assert ours.row(2).dtype == np.float32
    np.testing.assert_array_equal(ours.stamped_row(2, 2**40), np.arange(1001, dtype=np.float32))
    assert not ours.row(0).any()
    assert not ours.row(1).any()
    assert ours.stamp(0) == 0
    theirs.close()
    ours.close()


def test_rows_start_where_a_device_can_copy_to() -> None:
    segment = SlotSegment.create(3, 4 * 1001)
    for index in range(3):
        assert segment.row(index).ctypes.data % shm.ALIGNMENT == 0
    assert segment.nbytes == 4 * shm.ALIGNMENT
    segment.close()


@pytest.mark.parametrize(("index", "stamp"), [(0, 5), (1, 4), (2, 1), (-1, 1), (10**9, 1)])
def test_a_wrong_stamp_or_slot_is_a_protocol_error(index: int, stamp: int) -> None:
    segment = SlotSegment.create(2, 4096)
    segment.set_stamp(0, 4)
    segment.set_stamp(1, 5)
    with pytest.raises(ProtocolError):
        segment.stamped_row(index, stamp)
    segment.close()


def test_the_segment_is_private_and_its_name_is_gone_after_unlink() -> None:
    segment = ByteSegment.create(10_000)
    path = os.path.join(shm.DIRECTORY, segment.name)
    info = os.stat(path)
    assert stat.S_IMODE(info.st_mode) == 0o600
    assert info.st_blocks * 512 >= 10_000  # reserved, not sparse
    assert str(os.getpid()) in segment.name
    segment.unlink()
    segment.unlink()
    assert not os.path.exists(path)
    segment.view()[:] = 3
    assert int(segment.view().sum()) == 30_000
    segment.close()


def test_close_without_unlink_leaves_nothing() -> None:
    for _ in range(10):
        segment = SlotSegment.create(1, 4096)
        SlotSegment.attach(segment.name, 1, 4096).close()
        assert os.path.exists(os.path.join(shm.DIRECTORY, segment.name))
        segment.close()


def test_a_view_outlives_close() -> None:
    segment = SlotSegment.create(1, 4096)
    row = segment.row(0)
    row[:] = 2.0
    segment.close()
    assert float(row.sum()) == 2048.0


def test_too_little_room_is_a_typed_error_with_both_figures() -> None:
    info = os.statvfs(shm.DIRECTORY)
    wanted = info.f_blocks * info.f_frsize + 4096
    with pytest.raises(InsufficientShm) as caught:
        ByteSegment.create(wanted)
    assert caught.value.extra["needed_bytes"] == wanted
    free = caught.value.extra["free_bytes"]
    assert isinstance(free, int)
    assert 0 < free < wanted


def test_room_lost_between_the_question_and_the_reserve_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InsufficientShm):
        SlotSegment.create(4, 4 * 248_320)


def test_a_limit_on_file_size_is_no_signal() -> None:
    """Row 37 with what every machine has: the kernel refuses the reserve, and no write ever faults."""
    code = (
        "import resource\n"
        "from neuron.runtime.shm import SlotSegment\n"
        "from neuron.runtime.errors import InsufficientShm\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.RLIM_INFINITY}))\n"
        "try:\n"
        "    SlotSegment.create(4, 4 * 248320)\n"
        "except InsufficientShm as error:\n"
        "    print(error.code, error.extra['needed_bytes'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "insufficient_shm 3985408\n", "")


def _in_small_shm(code: str) -> "subprocess.CompletedProcess[str]":
    """Run code where /dev/shm is a file system of 1 MiB; skips where namespaces are not allowed."""
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        if subprocess.run([*enter, mount], capture_output=True, timeout=60).returncode != 0:
            pytest.skip("this machine allows no mount namespace")
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    command = [*enter, f'{mount} && exec "$0" -c "$1"', sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_a_file_system_of_one_mebibyte() -> None:
    """LIFE-04 and row 37: four rows of a large vocabulary do not fit; a smaller one then does, and can be written."""
    code = (
        "from neuron.runtime.shm import SlotSegment\n"
        "from neuron.runtime.errors import InsufficientShm\n"
        "try:\n"
        "    SlotSegment.create(4, 4 * 248320)\n"
        "except InsufficientShm as error:\n"
        "    print(error.extra['needed_bytes'], error.extra['free_bytes'])\n"
        "segment = SlotSegment.create(1, 1 << 19)\n"
        "segment.row(0)[:] = 1.0\n"
        "try:\n"
        "    SlotSegment.create(1, 1 << 19)\n"
        "except InsufficientShm as error:\n"
        "    print(error.extra['needed_bytes'], error.extra['free_bytes'])\n"
        "print(int(segment.row(0).sum()))\n"
    )
    done = _in_small_shm(code)
    assert done.stderr == ""
    assert done.stdout == "3985408 1048576\n528384 520192\n131072\n"


def test_without_the_reserve_the_same_write_is_fatal() -> None:
    """The negative control of the test above."""
    code = (
        "import os\n"
        "os.posix_fallocate = lambda fd, start, length: os.ftruncate(fd, length)\n"
        "from neuron.runtime import mapping, shm\n"
        "mapping._free_bytes = lambda: 1 << 40\n"
        "shm.SlotSegment.create(4, 4 * 248320).row(3)[:] = 1.0\n"
        "shm.SlotSegment.create(4, 4 * 248320).row(0)[:] = 1.0\n"
    )
    assert _in_small_shm(code).returncode == -signal.SIGBUS


@pytest.mark.parametrize(
    "name", ["", "neuron-1-zz", "../etc/passwd", "neuron-1-" + "0" * 24 + "/..", "psm_1234", "neuron-0-" + "0" * 24]
)
def test_a_foreign_name_is_never_opened(name: str) -> None:
    with pytest.raises(ProtocolError):
        SlotSegment.attach(name, 1, 4096)


def test_another_size_is_refused() -> None:
    segment = SlotSegment.create(2, 4096)
    with pytest.raises(ProtocolError):
        SlotSegment.attach(segment.name, 3, 4096)
    with pytest.raises(ProtocolError):
        ByteSegment.attach(segment.name, 1)
    segment.close()
    with pytest.raises(ProtocolError):
        SlotSegment.attach(segment.name, 2, 4096)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(4096))
    name = f"{shm.PREFIX}-{_dead_pid()}-{'a' * 24}"
    path = os.path.join(shm.DIRECTORY, name)
    os.symlink(target, path)
    try:
        with pytest.raises(ProtocolError):
            ByteSegment.attach(name)
        assert name not in sweep_stale()
        assert target.exists()
    finally:
        os.unlink(path)


def test_the_sweep_takes_only_what_dead_owners_left() -> None:
    """LIFE-07: leftovers of a crash go; a running instance's and foreign files stay."""
    living = SlotSegment.create(1, 4096)
    dead = _dead_pid()
    left = f"{shm.PREFIX}-{dead}-{'b' * 24}"
    odd = f"{shm.PREFIX}-{dead}-readme"
    for name in (left, odd):
        with open(os.path.join(shm.DIRECTORY, name), "wb") as file:
            file.write(bytes(10))
    try:
        removed = sweep_stale()
        assert left in removed
        assert living.name not in removed
        assert os.path.exists(os.path.join(shm.DIRECTORY, living.name))
        assert os.path.exists(os.path.join(shm.DIRECTORY, odd))
    finally:
        os.unlink(os.path.join(shm.DIRECTORY, odd))
    living.row(0)[:] = 1
    living.close()


def test_the_sweep_leaves_a_locked_segment_though_its_pid_looks_dead() -> None:
    """Another pid namespace sharing the directory."""
    name = f"{shm.PREFIX}-{_dead_pid()}-{'c' * 24}"
    path = os.path.join(shm.DIRECTORY, name)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys; f = open(sys.argv[1], 'wb'); f.write(b'1'); f.flush();"
            "fcntl.flock(f, fcntl.LOCK_SH); print('held', flush=True); sys.stdin.read()",
            path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    assert name not in sweep_stale()
    holder.communicate(b"", timeout=30)
    assert name in sweep_stale()
    assert not os.path.exists(path)


def test_no_tracker_process_takes_part() -> None:
    """LIFE-03: whoever attaches and ends, however, nobody unlinks or warns."""
    segment = SlotSegment.create(1, 4096)
    segment.row(0)[:] = 3.0
    end = {"exit": "", "kill": "import os; os.kill(os.getpid(), 9)"}
    for how in [*end] * 3:
        code = (
            f"from neuron.runtime.shm import SlotSegment\ns = SlotSegment.attach({segment.name!r}, 1, 4096)\n"
            f"assert s.row(0).sum() == 3072.0\n{end[how]}"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.stderr == ""
        assert float(segment.row(0).sum()) == 3072.0
    segment.close()
