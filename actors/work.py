"""Work: what the gates made of a request. Handed to the session that runs it."""

import time
from dataclasses import dataclass, field

from neuron.actors.images.prompt import PromptImages
from neuron.actors.sampling.sampler import Sampler
from neuron.actors.text.types import Detokenizer, OutputParser


@dataclass(slots=True)
class Work:
    """Everything a session needs, nothing left to be found wrong.

    The request itself is not kept: a conversation of megabytes, of which a template may use little, would wait in the
    queue with it.
    """

    req_id: str
    prompt: list[int]
    max_new_tokens: int
    parser: OutputParser
    detokenizer: Detokenizer
    sampler: Sampler
    images: PromptImages | None = None
    submitted_at: float = field(default_factory=time.monotonic)
