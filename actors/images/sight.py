"""Sight: what a resident model needs to take images; None for one that takes none. Found while loading (blocking)."""

import msgspec

from neuron.actors.device.jobs import ArchHandle, ClearKv, Done, EncodeImage, Sequence
from neuron.actors.images.processor import ImageProcessor, family_processor, projector_processor, read_processor
from neuron.actors.ports import DevicePort
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.failures import typed_failures
from neuron.actors.text.build import TextModel
from neuron.kernels.formats.errors import FormatKind
from neuron.kernels.formats.gguf_header import parse_gguf_header
from neuron.kernels.formats.mapped_file import read_header
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.projector import read_projector
from neuron.runtime.errors import ProtocolError
from neuron.runtime.shm import ByteSegment

VISION = "vision"
PAD_TOKEN = "<|image_pad|>"


class Sight(msgspec.Struct, frozen=True):
    """`pad`: the id that stands in a rendered prompt where an image belongs."""

    processor: ImageProcessor
    pad: int


def find_sight(artifact: ModelArtifact, config: ModelConfig | None, text: TextModel) -> Sight | None:
    """What the files say. `config` is preflight's: its vision tower is one whose tensors are there.

    Raises InvalidConfig for a preprocessor that does not fit the tower.
    """
    if artifact.format is Format.SCRIPTED:
        pad = text.tokenizer.token_id(PAD_TOKEN)
        return Sight(family_processor(), pad) if VISION in text.capabilities and pad is not None else None
    if config is None or config.vision is None or config.image_token_id is None:
        return None
    if artifact.projector is not None:
        with typed_failures(artifact.model_id):
            header = read_header(artifact.projector, FormatKind.INVALID_GGUF, parse_gguf_header)
            processor = projector_processor(read_projector(header), artifact.model_id)
    else:
        processor = read_processor(artifact.directory, config.vision, artifact.model_id)
    return Sight(processor, config.image_token_id)


def with_capability(capabilities: tuple[str, ...], sight: Sight | None) -> tuple[str, ...]:
    """`capabilities` as they are shown: vision exactly when images are taken."""
    others = tuple(name for name in capabilities if name != VISION)
    return others if sight is None else (*others, VISION)


async def check_sight(device: DevicePort, handle: ArchHandle, sight: Sight) -> None:
    """One grey cell through the tower: it pays now what a first image compiles and allocates. Raises ProtocolError."""
    processor = sight.processor
    pixels = ByteSegment.create(3 * processor.factor**2)
    try:
        pixels.view()[:] = 128
        name, grid = pixels.name, (1, processor.merge, processor.merge)
        scale = (processor.rescale, processor.mean, processor.std)
        reply = await device.call(lambda job: EncodeImage(job, handle, 0, name, grid, Sequence(0), *scale))
    finally:
        pixels.close()
    if not isinstance(reply, Done) or reply.value != 1:
        raise ProtocolError("The device process answered the self-check of the vision tower with something else.")
    await device.call(lambda job: ClearKv(job, handle, Sequence(0)))
