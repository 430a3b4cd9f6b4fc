"""llama.cpp's side, run as a script by any interpreter that has llama-cpp-python and numpy; needs nothing of neuron.

Line in: {"do": "prefill" | "extend" | "decode", "tokens": [...]}, {"do": "turn", "tokens": [...], "tail": n} or
{"do": "logits", "path": ...}. Line out: {"seconds": [...]}, of a turn also {"reused": n}.
"""

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


class Runner:
    def __init__(self, path: str, context: int, threads: int) -> None:
        llama = llama_cpp.Llama(
            path, n_ctx=context, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.llama, self.context = llama, llama._ctx.ctx
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.vocab = llama.n_vocab()
        self.held = 0
        self.last = 0
        self.tokens: list = []
        self.checkpoint: tuple = (None, [])
        model = llama._model.model
        self.recurrent = llama_cpp.llama_model_is_hybrid(model) or llama_cpp.llama_model_is_recurrent(model)

    def forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.held = 0

    def run(self, tokens: list) -> float:
        start = time.perf_counter()
        for first in range(0, len(tokens), 512):
            self._decode(tokens[first : first + 512], first + 512 >= len(tokens))
        llama_cpp.llama_get_logits_ith(self.context, self.last)
        return time.perf_counter() - start

    def turn(self, tokens: list, tail: int) -> int:
        """The prompt with what is kept of the one before; tokens that were reused.

        As its server does: memory is cut back where it can be, and for a recurrent model a checkpoint is made before
        the last `tail` tokens and restored.
        """
        reused = self._go_back(tokens)
        self.run(tokens[reused : len(tokens) - tail])
        if self.recurrent:
            self.checkpoint = self._save(), tokens[: len(tokens) - tail]
        self.run(tokens[len(tokens) - tail :])
        self.tokens = tokens
        return reused

    def _go_back(self, tokens: list) -> int:
        memory = llama_cpp.llama_get_memory(self.context)
        if not self.recurrent:
            pairs = zip(self.tokens, tokens[:-1], strict=False)
            keep = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(tokens) - 1))
        else:
            state, prefix = self.checkpoint
            keep = len(prefix) if prefix and tokens[: len(prefix)] == prefix else 0
            if keep:
                llama_cpp.llama_state_seq_set_data_ext(
                    self.context, state, len(state), 0, llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
                )
        if keep and llama_cpp.llama_memory_seq_rm(memory, 0, keep, -1):
            self.held = keep
            return keep
        self.forget()
        return 0

    def _save(self) -> object:
        partial = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = llama_cpp.llama_state_seq_get_size_ext(self.context, 0, partial)
        state = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data_ext(self.context, state, size, 0, partial)
        return state

    def logits(self) -> np.ndarray:
        pointer = llama_cpp.llama_get_logits_ith(self.context, self.last)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab,)).copy()

    def _decode(self, tokens: list, wants_logits: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = self.held + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = False
        self.last = len(tokens) - 1
        batch.logits[self.last] = wants_logits
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self.held += len(tokens)


def main() -> None:
    path, context, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    runner = Runner(path, context, threads)
    sys.stdout.write(json.dumps({"version": llama_cpp.__version__}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        seconds: list = []
        reused = 0
        if order["do"] == "prefill":
            runner.forget()
            seconds = [runner.run(order["tokens"])]
        elif order["do"] == "extend":
            seconds = [runner.run(order["tokens"])]
        elif order["do"] == "decode":
            seconds = [runner.run([token]) for token in order["tokens"]]
        elif order["do"] == "turn":
            start = time.perf_counter()
            reused = runner.turn(order["tokens"], order["tail"])
            seconds = [time.perf_counter() - start]
        else:
            np.save(order["path"], runner.logits())
        sys.stdout.write(json.dumps({"seconds": seconds, "reused": reused}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
