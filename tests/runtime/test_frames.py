"""Framing: whatever the bytes and however they are split, a decoder gives messages or ProtocolError."""

import itertools
import pickle
import random
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.runtime.errors import ProtocolError
from neuron.runtime.frames import FrameDecoder, FrameEncoder
from tests.runtime.programs import Message, Number, Text

messages = st.one_of(
    st.builds(Text, st.text(max_size=50)),
    st.builds(Number, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=200)),
)


def _split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _drain(decoder: FrameDecoder[Message]) -> list[Message]:
    found: list[Message] = []
    while (message := decoder.next()) is not None:
        found.append(message)
    return found


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 10_000), max_size=10))
def test_any_split_gives_the_same_messages(sent: list[Message], cuts: list[int]) -> None:
    encoder = FrameEncoder()
    stream = b"".join(bytes(encoder.encode(message)) for message in sent)
    decoder: FrameDecoder[Message] = FrameDecoder(Message)
    received: list[Message] = []
    for piece in _split(stream, cuts):
        decoder.feed(piece)
        received += _drain(decoder)
    assert received == sent
    assert not decoder.partial


@given(st.lists(messages, min_size=1, max_size=4), st.integers(0, 10_000))
def test_a_cut_stream_is_seen_as_partial(sent: list[Message], cut: int) -> None:
    encoder = FrameEncoder()
    frames = [bytes(encoder.encode(message)) for message in sent]
    stream = b"".join(frames)
    decoder: FrameDecoder[Message] = FrameDecoder(Message)
    decoder.feed(stream[: cut % len(stream)])
    received = _drain(decoder)
    assert received == sent[: len(received)]
    at_edge = cut % len(stream) == sum(len(frame) for frame in frames[: len(received)])
    assert decoder.partial is not at_edge


@given(st.binary(max_size=300), st.lists(st.integers(0, 10_000), max_size=5))
def test_garbage_gives_only_protocol_errors(garbage: bytes, cuts: list[int]) -> None:
    decoder: FrameDecoder[Message] = FrameDecoder(Message, 1000)
    try:
        for piece in _split(garbage, cuts):
            decoder.feed(piece)
            _drain(decoder)
    except ProtocolError:
        pass


@given(st.binary(min_size=1, max_size=300))
def test_a_garbage_body_is_a_message_or_a_protocol_error(body: bytes) -> None:
    decoder: FrameDecoder[Message] = FrameDecoder(Message)
    decoder.feed(struct.pack(">I", len(body)) + body)
    try:
        assert isinstance(decoder.next(), (Text, Number))
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [0, 1001, 2**31, 2**32 - 1])
def test_a_bad_length_is_refused_before_the_body_comes(length: int) -> None:
    decoder: FrameDecoder[Message] = FrameDecoder(Message, 1000)
    decoder.feed(struct.pack(">I", length))
    with pytest.raises(ProtocolError):
        decoder.next()


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000,  # nested for ever
        pickle.dumps(print),
        msgspec.msgpack.encode(["Text", 3]),
        msgspec.msgpack.encode(["Other", "x"]),
        msgspec.msgpack.encode(["Number", 2**64 - 1, b"", 1]) + b"tail",
        b"\x92\xa4Text\xa2\xff\xff",  # not UTF-8
        b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1 entries
    ],
)
def test_hostile_bodies_are_protocol_errors(body: bytes) -> None:
    decoder: FrameDecoder[Message] = FrameDecoder(Message)
    decoder.feed(struct.pack(">I", len(body)) + body)
    with pytest.raises(ProtocolError):
        decoder.next()


def test_a_message_over_the_cap_is_refused_by_the_sender() -> None:
    encoder = FrameEncoder(100)
    with pytest.raises(ProtocolError):
        encoder.encode(Number(1, b"x" * 200))
    assert len(encoder.encode(Number(1, b"x" * 50))) < 104


def mutate(random_source: random.Random, stream: bytes) -> bytes:
    """A few random edits: bytes set, cut out, doubled or put in."""
    data = bytearray(stream)
    for _ in range(random_source.randint(1, 4)):
        at = random_source.randrange(len(data) + 1)
        match random_source.randrange(4):
            case 0:
                data[at : at + 1] = random_source.randbytes(1)
            case 1:
                del data[at : at + random_source.randint(1, 8)]
            case 2:
                data[at:at] = data[max(0, at - random_source.randint(1, 16)) : at]
            case _:
                data[at:at] = random_source.randbytes(random_source.randint(1, 8))
    return bytes(data)


def fuzz(seed: int, count: int) -> int:
    """Feed `count` mutated streams; gives how many were refused. Anything but ProtocolError comes out."""
    source, encoder, refused = random.Random(seed), FrameEncoder(), 0
    corpus = [Text(""), Text("héllo"), Number(-1, b"\0" * 9), Number(2**62, b"x" * 40), Text("y" * 300)]
    frames = [bytes(encoder.encode(message)) for message in corpus]
    for _ in range(count):
        decoder: FrameDecoder[Message] = FrameDecoder(Message, 4096)
        decoder.feed(mutate(source, b"".join(source.choices(frames, k=source.randint(1, 3)))))
        try:
            for message in _drain(decoder):
                assert isinstance(message, (Text, Number))
        except ProtocolError:
            refused += 1
    return refused


def test_ten_thousand_mutated_streams() -> None:
    refused = fuzz(seed=1, count=10_000)
    assert 1_000 < refused < 10_000  # else the edits test nothing
