"""The image jobs of a device process: pixels from shared memory to the tower, and steps with images spliced in."""

import numpy as np
import numpy.typing as npt

from neuron.actors.device import jobs
from neuron.actors.device.worker.classify import RequestFault
from neuron.kernels.engine import DeviceModel, PixelScale, SeeingModel
from neuron.runtime.shm import ByteSegment

Tokens = npt.NDArray[np.int32]
Row = npt.NDArray[np.float32]


def seeing(model: DeviceModel) -> SeeingModel:
    """The model, if it takes images. Raises RequestFault."""
    if not isinstance(model, SeeingModel):
        raise RequestFault("unsupported", "the model takes no images")
    return model


def encode_image(model: DeviceModel, job: jobs.EncodeImage) -> int:
    """Places that the image fills. Raises RequestFault, ProtocolError, ValueError for pixels that do not fit."""
    able = seeing(model)
    segment = ByteSegment.attach(job.pixels)
    try:
        _, height, width = job.grid
        pixels = segment.view()
        if height <= 0 or width <= 0 or pixels.size % (height * width):
            raise ValueError(f"{pixels.size} bytes of pixels for a grid of {list(job.grid)}")
        patches = pixels.reshape(height * width, -1)
        scale = PixelScale(job.rescale, job.mean, job.std)
        return able.encode_image(job.sequence, job.image, patches, job.grid, scale)
    finally:
        segment.close()


def forward(
    model: DeviceModel, job: jobs.ForwardLogits | jobs.ForwardLogitsWithImages, tokens: Tokens, row: Row | None
) -> None:
    """Run one step of either kind."""
    if isinstance(job, jobs.ForwardLogits):
        model.forward(job.sequence, tokens, job.position, row)
        return
    positions = np.frombuffer(job.positions, dtype="<i4").astype(np.int32, copy=False)
    if positions.size != 3 * len(tokens):
        raise ValueError(f"{positions.size} rotary positions for {len(tokens)} tokens")
    seeing(model).forward_with_images(
        job.sequence, tokens, job.position, row, job.spans, positions.reshape(3, -1), job.rope_delta
    )
