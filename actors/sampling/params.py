"""ResolvedSampling: the numbers a sampler runs on, from the request, the model's defaults and the daemon's."""

import msgspec

from neuron.actors.request import SamplingParams

DEFAULT_TEMPERATURE = 0.7
#: Tokens that the repetition penalty looks back over when the request does not say.
DEFAULT_REPEAT_LAST_N = 64
#: At and below this temperature the distribution is a point: the largest logit is taken.
GREEDY_TEMPERATURE = 1e-3


class ResolvedSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Every field set. `top_k` 0 and `top_p` 1 cut nothing; `repeat_last_n` -1 means the whole sequence."""

    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last_n: int = DEFAULT_REPEAT_LAST_N
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p <= 0.0

    @property
    def penalises(self) -> bool:
        repeats = self.repetition_penalty != 1.0 and self.repeat_last_n != 0
        return repeats or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def resolve_sampling(request: SamplingParams, model: SamplingParams) -> ResolvedSampling:
    """The request's value, else the model's generation_config, else the daemon's default. Bounds are the edge's."""

    def pick(name: str, default: float) -> float:
        for source in (request, model):
            value = getattr(source, name)
            if value is not None:
                return float(value)
        return default

    return ResolvedSampling(
        temperature=pick("temperature", DEFAULT_TEMPERATURE),
        top_p=pick("top_p", 1.0),
        top_k=max(0, int(pick("top_k", 0))),
        min_p=pick("min_p", 0.0),
        seed=request.seed,
        presence_penalty=pick("presence_penalty", 0.0),
        frequency_penalty=pick("frequency_penalty", 0.0),
        repetition_penalty=pick("repetition_penalty", 1.0),
        repeat_last_n=int(pick("repeat_last_n", DEFAULT_REPEAT_LAST_N)),
        logit_bias=request.logit_bias,
    )
