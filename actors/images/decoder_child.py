"""The process that decodes images: untrusted bytes with bounded memory and time, and no files.

Started by a ConfinedPool as `python -m neuron.actors.images.decoder_child --fd N`.
"""

import msgspec

from neuron.actors.images.raster import decode, prepare
from neuron.actors.images.wire import DecodeJob, DecodeReply, Refusal
from neuron.runtime.confined import confine, inherited_link, send_frame, serve

#: The interpreter and its libraries, the file itself, and the largest raster in four forms at four bytes a pixel.
ADDRESS_SPACE = 640 << 20
CPU_SECONDS = 8


def answer(frame: bytearray) -> bytes:
    try:
        reply = decode(msgspec.msgpack.decode(frame, type=DecodeJob))
    except msgspec.MsgspecError:
        reply = DecodeReply(refusal=Refusal.UNREADABLE)
    return msgspec.msgpack.encode(reply)


def main() -> None:
    link = inherited_link()
    prepare()
    send_frame(link, msgspec.msgpack.encode(DecodeReply()))
    confine(ADDRESS_SPACE)
    no_memory = msgspec.msgpack.encode(DecodeReply(refusal=Refusal.NO_MEMORY))
    serve(link, answer, cpu_seconds=CPU_SECONDS, no_memory=no_memory)


if __name__ == "__main__":
    main()
