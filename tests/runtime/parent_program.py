"""A stand-in for the daemon: starts one worker for each mode given, attaches shared memory, then waits to be killed."""

import sys

import anyio

from neuron.runtime.link import Link
from neuron.runtime.process import ChildProcess
from neuron.runtime.shm import SlotSegment
from tests.runtime.linked import spawn_linked
from tests.runtime.programs import Message, Text


async def main() -> None:
    ready = 0
    everyone = anyio.Event()

    def count(_message: Message) -> None:
        nonlocal ready
        ready += 1
        if ready == len(modes):
            everyone.set()

    modes = sys.argv[1:]
    children: list[ChildProcess] = []
    segments: list[SlotSegment] = []
    async with anyio.create_task_group() as tasks:
        for mode in modes:
            child, sock = await spawn_linked([mode])
            link: Link[Message] = Link(sock, Message)
            children.append(child)
            tasks.start_soon(link.run, count)
            segment = SlotSegment.create(2, 4096)
            segments.append(segment)
            SlotSegment.attach(segment.name, 2, 4096)
            segment.unlink()
            if mode.rpartition(":")[2] == "echo":
                link.post(Text("hello"))
        await everyone.wait()
        sys.stdout.write(" ".join(str(child.pid) for child in children) + "\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
