"""Framing of a link: 4-byte big-endian length, then one MessagePack message. For both ends of `runtime.link`."""

import struct
from typing import Any, Generic, TypeVar

import msgspec

from neuron.runtime.errors import ProtocolError

In = TypeVar("In")

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Longest body, in bytes, that either end accepts or sends."""

_HEADER = struct.Struct(">I")
_HEADER_BYTES = _HEADER.size


class FrameEncoder:
    """Turns messages into frames. Not for use by two threads at once."""

    __slots__ = ("_encoder", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._max_bytes = max_bytes

    def encode(self, message: msgspec.Struct) -> bytearray:
        """One whole frame. Raises ProtocolError when the message is too long; nothing is sent then."""
        frame = bytearray(_HEADER_BYTES)
        self._encoder.encode_into(message, frame, _HEADER_BYTES)
        length = len(frame) - _HEADER_BYTES
        if length > self._max_bytes:
            raise ProtocolError(f"A message of {length} bytes does not fit a frame of {self._max_bytes}.")
        _HEADER.pack_into(frame, 0, length)
        return frame


class FrameDecoder(Generic[In]):
    """Cuts a byte stream, however it is split, into messages of the type `decode` (a struct or a tagged union)."""

    __slots__ = ("_buffer", "_decoder", "_max_bytes")

    def __init__(self, decode: Any, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[In] = msgspec.msgpack.Decoder(decode)
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    @property
    def partial(self) -> bool:
        """True inside a frame: an end of the stream here has lost a message."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> In | None:
        """The next whole message, None when more bytes are needed.

        Raises ProtocolError on a bad length (before the body is waited for) or a body that is not such a message.
        """
        buffer = self._buffer
        if len(buffer) < _HEADER_BYTES:
            return None
        (length,) = _HEADER.unpack_from(buffer)
        if not 0 < length <= self._max_bytes:
            raise ProtocolError(f"A frame announces {length} bytes; 1 to {self._max_bytes} are allowed.")
        end = _HEADER_BYTES + length
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[_HEADER_BYTES:end])
        del buffer[:end]
        try:
            return self._decoder.decode(body)
        # A nested bomb ends in RecursionError, bad UTF-8 in UnicodeDecodeError; neither may pass as anything else.
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise ProtocolError("A frame holds no message of this protocol.") from error
