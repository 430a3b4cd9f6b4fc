"""The way up of the real daemon: what is launched ahead of its use goes when nobody takes it."""

import time
from pathlib import Path

from tests.harness.daemon import DaemonProcess, say


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def workers(daemon: DaemonProcess) -> list[str]:
    return [line for pid in daemon.descendants() if "device.worker" in (line := command(pid))]


def test_a_spare_process_that_nobody_takes_is_ended() -> None:
    """The start-up model does not exist: the process that was launched for it goes when that is known."""
    with DaemonProcess(models=["demo:none/such"], wait=False) as daemon:
        daemon.wait_for_log("activation complete", timeout_s=60.0)
        deadline = time.monotonic() + 10.0
        while workers(daemon):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert daemon.get("/health")["activation"]["failed"][0]["model_id"] == "demo:none/such"


def test_a_model_without_weights_has_no_process_with_libraries() -> None:
    with DaemonProcess({"m": say("x")}) as daemon:
        (worker,) = workers(daemon)
        assert "--libraries" not in worker
