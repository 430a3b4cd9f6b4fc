"""Rows 40 and 44 of the fault matrix: files that cannot be read, or that change beneath a real model."""

import contextlib
import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.clients import check_error, content
from tests.harness.daemon import DaemonProcess, say
from tests.harness.dense_model import compiled_code, directory_source, write_dense_model
from tests.harness.rows import check_terminal_lines, until
from tests.harness.unkind import supported
from tests.kernels.formats import models as files

WEIGHTS = "model.safetensors"
#: Compiling may be part of a load.
LOAD_S = 120.0
#: The first report of a load that is made with the weights mapped.
MAPPED = {"point": "worker.load.progress", "action": "sleep", "seconds": 1.5, "start": 2, "device": "cpu:1"}


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "dense"
    write_dense_model(folder)
    return folder


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


_numbers = itertools.count(1)


@pytest.fixture(name="folder")
def _folder(root: Path, whole: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(whole, root / "test" / f"dense-{next(_numbers)}"))


@pytest.fixture(name="control", scope="module")
def _control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("control") / "failpoints.json"
    path.write_text("[]")
    return path


def daemon(root: Path, **options: Any) -> DaemonProcess:
    environment = {**compiled_code(), **options.pop("environment", {})}
    return DaemonProcess({"other": say("x")}, directory_source(root), environment=environment, **options)


@pytest.fixture(name="held", scope="module")
def _held(root: Path, control: Path) -> Iterator[DaemonProcess]:
    with daemon(root, environment={"NEURON_FAILPOINTS": str(control)}) as held:
        yield held
        check_terminal_lines(held)


@pytest.fixture(name="bound", scope="module")
def _bound(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Path]]:
    """A daemon that permission bits hold for, and its home, which nothing was written to so far."""
    home = tmp_path_factory.mktemp("home")
    with daemon(root, unkind=["no-override"], environment={"HOME": str(home)}) as held:
        yield held, home


def load(held: DaemonProcess, folder: Path) -> httpx.Response:
    with held.client(timeout=LOAD_S) as client:
        return client.post("/models/load", json={"model_id": name_of(folder), "devices": ["cpu:1"]})


def name_of(folder: Path) -> str:
    return f"local:test/{folder.name}"


def answer(held: DaemonProcess, folder: Path) -> str:
    with held.client(timeout=LOAD_S) as client:
        body = client.post("/v1/chat/completions", json=held.chat_body(name_of(folder), "abc", max_tokens=6)).json()
    return str(body["error"]["code"] if "error" in body else body["choices"][0]["message"]["content"])


def let_go(held: DaemonProcess, folder: Path) -> None:
    """What every row ends with: the model beside it answers, and this one makes room."""
    assert content(held.chat("other")) == "x"
    held.unload(name_of(folder))


# -- row 40 ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not supported(), reason="system calls cannot be filtered here")
def test_row_40_a_disk_that_fails(root: Path, folder: Path) -> None:
    """EIO from the kernel at each read of a header: a typed refusal, and whatever needs no disk goes on."""
    gguf = folder.parent / "packed"
    gguf.mkdir()
    (gguf / "model.gguf").write_bytes(files.gguf_file())
    with daemon(root, unkind=["no-pread"]) as held:
        for model in (folder, gguf):
            response = load(held, model)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (422, "source_unreadable"), response.text
            assert error["message"].endswith("cannot be read: Input/output error.")
        assert held.get("/models") == [held.model("other")]
        assert content(held.chat("other")) == "x"
        assert held.get("/health")["status"] == "ok"


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "."])
def test_row_40_files_that_may_not_be_read(bound: tuple[DaemonProcess, Path], folder: Path, name: str) -> None:
    held, path = bound[0], folder / name
    mode = path.stat().st_mode
    path.chmod(0)
    response = load(held, folder)
    path.chmod(mode)
    assert (response.status_code, check_error(response)["code"]) == (422, "source_unreadable"), response.text
    let_go(held, folder)


def test_row_40_nothing_is_written_to_serve(bound: tuple[DaemonProcess, Path], folder: Path) -> None:
    """The model's folder and the home are read-only: it loads and answers, and no file is there after."""
    held, home = bound
    before = sorted(home.rglob("*"))
    try:
        for place in (folder, home):
            place.chmod(0o500)
        assert load(held, folder).status_code == 200
        assert answer(held, folder)
        assert sorted(home.rglob("*")) == before
        let_go(held, folder)
    finally:
        for place in (folder, home):
            place.chmod(0o700)


# -- row 44 ----------------------------------------------------------------------------------------


def test_row_44_weights_cut_short_while_they_are_read(held: DaemonProcess, folder: Path, control: Path) -> None:
    """The kernel sends SIGBUS: a device process is lost, the load says so, and a load of the whole file works."""
    weights = (folder / WEIGHTS).read_bytes()
    with when_mapped(held, folder, control) as answers, (folder / WEIGHTS).open("r+b") as file:
        file.truncate(4096)
    (response,) = answers
    assert (response.status_code, check_error(response)["code"]) == (503, "worker_died")
    entry = held.model(name_of(folder))
    assert entry is not None
    assert entry["state"] == "failed"
    died = held.log_lines("device process died")[-1]
    assert (died["reason"], died["phase"]) == ("io_fault: signal SIGBUS", "load")
    (folder / WEIGHTS).write_bytes(weights)
    assert load(held, folder).status_code == 200
    assert answer(held, folder)
    let_go(held, folder)


def test_row_44_files_that_go_away_while_they_are_read(held: DaemonProcess, folder: Path, control: Path) -> None:
    """What is open stays readable: the load succeeds."""
    with when_mapped(held, folder, control) as answers:
        (folder / WEIGHTS).unlink()
    assert answers[0].status_code == 200, answers[0].text
    assert answer(held, folder)
    let_go(held, folder)


@pytest.mark.parametrize("how", ["truncated", "deleted"])
def test_row_44_a_loaded_model_needs_its_files_no_more(held: DaemonProcess, folder: Path, how: str) -> None:
    assert load(held, folder).status_code == 200
    before = answer(held, folder)
    assert not any(WEIGHTS in maps for maps in _maps(held))
    if how == "deleted":
        shutil.rmtree(folder)
    else:
        with (folder / WEIGHTS).open("r+b") as file:
            file.truncate(16)
    assert answer(held, folder) == before
    let_go(held, folder)
    response = load(held, folder)
    assert 400 <= response.status_code < 500, response.text
    check_error(response)


@contextmanager
def when_mapped(held: DaemonProcess, folder: Path, control: Path) -> Iterator[list[httpx.Response]]:
    """A load that waits, its weights mapped, until the block is over; its answer is in the list then."""
    answers: list[httpx.Response] = []
    control.write_text(json.dumps([MAPPED]))
    thread = threading.Thread(target=lambda: answers.append(load(held, folder)))
    thread.start()
    until(lambda: any(WEIGHTS in maps for maps in _maps(held)), within_s=LOAD_S)
    yield answers
    thread.join()
    control.write_text("[]")


def _maps(held: DaemonProcess) -> list[str]:
    """What each device process has mapped."""
    found = []
    for pid in held.device_pids.values():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/maps").read_text())
    return found
