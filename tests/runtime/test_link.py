"""Links: order, wholeness, back-pressure and the end of either side."""

import socket
import threading

import anyio
import anyio.lowlevel
import pytest

from neuron.runtime.errors import LinkClosed, ProtocolError, WorkerUnresponsive
from neuron.runtime.frames import FrameEncoder
from neuron.runtime.link import BlockingLink, Link
from tests.runtime.programs import Message, Number, Text

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


def _pair() -> tuple[Link[Message], BlockingLink[Message]]:
    ours, theirs = socket.socketpair()
    return Link(ours, Message), BlockingLink(theirs, Message)


async def test_messages_go_both_ways_in_order() -> None:
    link, child = _pair()

    def echo() -> None:
        for _ in range(500):
            message = child.receive()
            assert message is not None
            child.send(message)
        child.close()

    thread = threading.Thread(target=echo)
    thread.start()
    received: list[Message] = []
    for number in range(250):  # before run: waits for it
        link.post(Number(number, b"x" * (number % 7) * 1000))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run, received.append)
        for number in range(250, 500):
            link.post(Number(number))
    await anyio.to_thread.run_sync(thread.join)
    assert [message.number for message in received if isinstance(message, Number)] == list(range(500))
    assert link.closed


async def test_a_frame_larger_than_the_socket_buffer_arrives_whole() -> None:
    link, child = _pair()
    big = Number(1, bytes(range(256)) * 40_000)
    link.post(big)
    link.post(Text("after"))
    received: list[Message | None] = []

    def read() -> None:
        received.extend((child.receive(), child.receive()))
        child.close()

    thread = threading.Thread(target=read)
    thread.start()
    await link.run(lambda message: None)
    await anyio.to_thread.run_sync(thread.join)
    assert received == [big, Text("after")]
    assert link._queued_bytes == 0


async def test_a_peer_that_does_not_read_never_blocks_the_loop() -> None:
    ours, theirs = socket.socketpair()
    link: Link[Message] = Link(ours, Message, max_queued_bytes=1_000_000)
    turns = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run, lambda message: None)
        await anyio.lowlevel.checkpoint()
        frame = Number(1, b"x" * 10_000)
        while link._queued_bytes < 980_000:
            link.post(frame)
        with pytest.raises(WorkerUnresponsive):
            link.post(Number(1, b"x" * 30_000))
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
            turns += 1
        link.close()
    assert turns == 10
    theirs.close()


async def test_what_a_dead_peer_sent_before_is_still_delivered() -> None:
    link, child = _pair()
    child.send(Text("fault"))
    child.close()
    link.post(Number(1))  # meets a closed socket
    received: list[Message] = []
    await link.run(received.append)
    assert received == [Text("fault")]
    with pytest.raises(LinkClosed):
        link.post(Number(2))


async def test_an_end_inside_a_frame_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(bytes(FrameEncoder().encode(Text("whole"))) + b"\0\0\0\x10half")
    theirs.close()
    received: list[Message] = []
    with pytest.raises(LinkClosed):
        await Link[Message](ours, Message).run(received.append)
    assert received == [Text("whole")]


async def test_garbage_ends_the_link() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\0\0\0\x03abc")
    link: Link[Message] = Link(ours, Message)
    with pytest.raises(ProtocolError):
        await link.run(lambda message: None)
    assert link.closed
    theirs.close()


async def test_an_error_of_the_receiver_ends_the_run_with_it() -> None:
    link, child = _pair()
    child.send(Text("x"))

    def refuse(message: Message) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await link.run(refuse)
    child.close()


async def test_close_ends_run_and_cancel_closes() -> None:
    link, child = _pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run, lambda message: None)
        await anyio.lowlevel.checkpoint()
        link.close()
        link.close()
    with pytest.raises(LinkClosed):
        child.receive()
    child.close()

    link, child = _pair()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await link.run(lambda message: None)
    assert link.closed
    child.close()


async def test_a_receiver_may_close_the_link() -> None:
    link, child = _pair()
    child.send(Text("one"))
    child.send(Text("two"))
    received: list[Message] = []

    def take(message: Message) -> None:
        received.append(message)
        link.close()

    await link.run(take)
    assert received == [Text("one")]
    child.close()


def test_receive_with_a_time_limit_keeps_a_begun_frame() -> None:
    ours, theirs = socket.socketpair()
    child: BlockingLink[Message] = BlockingLink(theirs, Message)
    frame = bytes(FrameEncoder().encode(Text("slow")))
    assert child.receive(0.0) is None
    ours.sendall(frame[:6])
    assert child.receive(0.01) is None
    ours.sendall(frame[6:])
    assert child.receive(5.0) == Text("slow")
    ours.close()
    with pytest.raises(LinkClosed):
        child.receive(5.0)
    with pytest.raises(LinkClosed):
        child.send(Text("x"))
    child.close()


def test_frames_of_several_threads_stay_whole() -> None:
    ours, theirs = socket.socketpair()
    sender: BlockingLink[Message] = BlockingLink(theirs, Message)
    reader: BlockingLink[Message] = BlockingLink(ours, Message)

    def send(number: int) -> None:
        for _ in range(50):
            sender.send(Number(number, bytes([number]) * 20_000))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    counts = [0, 0, 0, 0]
    for _ in range(200):
        message = reader.receive(30)
        assert isinstance(message, Number)
        assert message.data == bytes([message.number]) * 20_000
        counts[message.number] += 1
    for thread in threads:
        thread.join()
    assert counts == [50] * 4
    sender.close()
    reader.close()


def test_what_has_arrived_can_be_looked_at_and_is_still_received() -> None:
    ours, theirs = socket.socketpair()
    child: BlockingLink[Message] = BlockingLink(theirs, Message)
    assert list(child.arrived()) == []
    frame = bytes(FrameEncoder().encode(Text("second")))
    ours.sendall(bytes(FrameEncoder().encode(Text("first"))) + frame[:6])
    assert list(child.arrived()) == [Text("first")]
    ours.sendall(frame[6:])
    assert list(child.arrived()) == [Text("first"), Text("second")]
    assert child.receive(5.0) == Text("first")
    assert list(child.arrived()) == [Text("second")]
    assert child.receive(5.0) == Text("second")
    ours.close()
    with pytest.raises(LinkClosed):
        child.arrived()
    child.close()
