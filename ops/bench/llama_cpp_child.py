"""llama.cpp's side, run as a script by any interpreter that has llama-cpp-python and numpy; needs nothing of neuron.

Line in: {"do": "prefill" | "decode", "tokens": [...]} or {"do": "logits", "path": ...}. Line out: {"seconds": [...]}.
"""

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

    def forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.held = 0

    def run(self, tokens: list) -> float:
        start = time.perf_counter()
        for first in range(0, len(tokens), 512):
            self._decode(tokens[first : first + 512], first + 512 >= len(tokens))
        llama_cpp.llama_get_logits_ith(self.context, self.last)
        return time.perf_counter() - start

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
        seconds = []
        if order["do"] == "prefill":
            runner.forget()
            seconds = [runner.run(order["tokens"])]
        elif order["do"] == "decode":
            seconds = [runner.run([token]) for token in order["tokens"]]
        else:
            np.save(order["path"], runner.logits())
        sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
