"""Fuzz targets: one function for each reader of bytes that others wrote. Only the reader's typed error may leave it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from neuron.actors.device import jobs
from neuron.api.json_body import decode_object
from neuron.api.validate.chat import read_chat
from neuron.api.validate.load import read_load
from neuron.api.validate.responses import read_responses
from neuron.kernels.formats.dequant import dequantise
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.gguf_config import config_from_gguf
from neuron.kernels.formats.gguf_header import parse_gguf_header
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.safetensors_header import parse_safetensors_header
from neuron.kernels.formats.shard_index import parse_index
from neuron.runtime.errors import NeuronError, ProtocolError
from neuron.runtime.frames import MAX_FRAME_BYTES, FrameDecoder
from tests.actors.parser.harness import cut, run

CORPUS = Path(__file__).parent / "corpus"
SMALL_TENSOR = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """`run` returns True when the input was accepted, False when it was refused as it should be."""

    name: str
    run: Callable[[bytes], bool]
    tokens: Sequence[bytes] = ()

    @property
    def corpus(self) -> list[bytes]:
        """The committed inputs: sound ones, and every one that once broke something."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def gguf(data: bytes) -> bool:
    """Header, places of tensors, the small tensors' values, and the model's configuration."""
    try:
        header = parse_gguf_header(memoryview(data), len(data), "fuzz.gguf")
        for tensor in header.tensors.values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= len(data)
            if tensor.nbytes <= SMALL_TENSOR:
                raw = memoryview(data)[tensor.offset : tensor.offset + tensor.nbytes]
                dequantise(np.frombuffer(raw, np.uint8), tensor.ggml_type, tensor.shape)
        config_from_gguf(header)
    except FormatError:
        return False
    return True


def safetensors(data: bytes) -> bool:
    try:
        tensors = parse_safetensors_header(memoryview(data), len(data), "fuzz.safetensors")
    except FormatError:
        return False
    for tensor in tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= len(data)
    return True


def index(data: bytes) -> bool:
    try:
        found = parse_index(data)
    except FormatError:
        return False
    assert all("/" not in shard and shard not in (".", "..") for shard in found.shards)
    return True


def config(data: bytes) -> bool:
    try:
        parse_config(data)
    except FormatError:
        return False
    return True


def frames(data: bytes) -> bool:
    """Both ends of a link; however the bytes are cut, the same messages come out."""
    return _cut_frames(data, jobs.Reply) | _cut_frames(data, jobs.Job)


def _cut_frames(data: bytes, kind: object) -> bool:
    whole, messages = _decode(kind, [data])
    size = 1 + len(data) % 7
    assert _decode(kind, [data[at : at + size] for at in range(0, len(data), size)]) == (whole, messages)
    return whole and bool(messages)


def _decode(kind: object, pieces: Sequence[bytes]) -> tuple[bool, list[bytes]]:
    decoder: FrameDecoder[msgspec.Struct] = FrameDecoder(kind, MAX_FRAME_BYTES)
    messages: list[bytes] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (message := decoder.next()) is not None:
                messages.append(msgspec.msgpack.encode(message))
    except ProtocolError:
        return False, messages
    return True, messages


def chat_body(data: bytes) -> bool:
    return _body(data, lambda body: read_chat(body, req_id="r", principal="p"))


def responses_body(data: bytes) -> bool:
    return _body(data, lambda body: read_responses(body, req_id="r", principal="p"))


def load_body(data: bytes) -> bool:
    return _body(data, read_load)


def _body(data: bytes, read: Callable[..., object]) -> bool:
    """A refusal is a 4xx whose text can be sent."""
    try:
        read(decode_object(data))
    except NeuronError as error:
        refusal = error
    else:
        return True
    assert 400 <= refusal.status < 500, refusal
    refusal.message.encode("utf-8")
    return False


def parser(data: bytes) -> bool:
    """The output parser: any text, cut anywhere, gives the same answer, and never an error."""
    text = data.decode("utf-8", "replace")
    whole = run(text)
    assert run(cut(text, 1 + len(text) % 5)).same(whole)
    return True


JSON_TOKENS = [
    b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e400", b"NaN", b"1e-400", b"99999999999999999999", b"\\ud800",
    b'"\\u0000"', b"[[[[[[[[", b'{"a":', b"\xff", b"\xef\xbb\xbf", b",", b":", b'"', b"-0", b"0.5", b"\x00",
]  # fmt: skip
GGUF_TOKENS = [
    (number).to_bytes(8, "little") for number in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)
] + [bytes([kind, 0, 0, 0]) for kind in range(16)] + [b"general.alignment", b"split.count", b"GGUF"]  # fmt: skip
PARSER_TOKENS = [
    b"<tool_call>", b"</tool_call>", b"<function=", b"<function=say>", b"</function>", b"<parameter=t>",
    b"</parameter>", b"<think>", b"</think>", b'{"name":"say","arguments":{', b"}}", b"\\", b"<", "\u2028".encode(),
    b"\xf0\x9f", b"{" * 50, b"[" * 50, b'"' * 9, b"<tool_call",
]  # fmt: skip
FRAME_TOKENS = [b"\0\0\0\1", b"\xff\xff\xff\xff", b"\x01\0\0\0", b"\x90", b"\x91" * 40, b"\xdd\xff\xff\xff\xff",
                b"\xc1", b"\xdb\x7f\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\xd3" + b"\x80" + b"\0" * 7]  # fmt: skip

TARGETS = {
    target.name: target
    for target in (
        Target("gguf", gguf, GGUF_TOKENS),
        Target("safetensors", safetensors, JSON_TOKENS),
        Target("index", index, [*JSON_TOKENS, b"../", b"a.safetensors"]),
        Target("config", config, JSON_TOKENS),
        Target("frames", frames, FRAME_TOKENS),
        Target("chat_body", chat_body, JSON_TOKENS),
        Target("responses_body", responses_body, JSON_TOKENS),
        Target("load_body", load_body, JSON_TOKENS),
        Target("parser", parser, PARSER_TOKENS),
    )
}
