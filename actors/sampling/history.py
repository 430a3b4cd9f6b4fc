"""History: which tokens a sequence holds, for the penalties. Owned by one sampler."""

import numpy as np
import numpy.typing as npt


class History:
    """`prompt` counts for the repetition penalty only; presence and frequency look at the answer."""

    def __init__(self, prompt: list[int], vocab_size: int) -> None:
        self._sequence = np.empty(max(1024, 2 * len(prompt)), np.int64)
        self._sequence[: len(prompt)] = prompt
        self._length = len(prompt)
        self._counts = np.zeros(vocab_size, np.float32)
        self._answer: list[int] = []
        self._answer_ids = np.empty(0, np.int64)

    def add(self, token_id: int) -> None:
        if self._length == self._sequence.size:
            self._sequence = np.concatenate([self._sequence, np.empty_like(self._sequence)])
        self._sequence[self._length] = token_id
        self._length += 1
        if self._counts[token_id] == 0.0:
            self._answer.append(token_id)
        self._counts[token_id] += 1.0

    def recent(self, last_n: int) -> npt.NDArray[np.int64]:
        """Distinct ids among the last `last_n` tokens of prompt and answer; all of them for -1."""
        begin = 0 if last_n < 0 else max(0, self._length - last_n)
        return np.unique(self._sequence[begin : self._length])

    def answer(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Distinct ids of the answer so far and how often each came."""
        if self._answer_ids.size != len(self._answer):
            self._answer_ids = np.array(self._answer, np.int64)
        return self._answer_ids, self._counts[self._answer_ids]
