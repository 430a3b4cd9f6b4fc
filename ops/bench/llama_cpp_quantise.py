"""`PYTHON ops/bench/llama_cpp_quantise.py MODEL-bf16.gguf Q4_K_M Q8_0 ...`: the file as others, by llama.cpp.

Run by an interpreter that has llama-cpp-python, so it imports nothing else. MODEL-Q4_K_M.gguf is written beside it.
"""

import ctypes
import os
import sys

import llama_cpp


def main() -> None:
    source, names = sys.argv[1], sys.argv[2:]
    for name in names:
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
        target = source.removesuffix(".gguf").removesuffix("-bf16") + f"-{name}.gguf"
        part = target + ".part"
        if llama_cpp.llama_model_quantize(source.encode(), part.encode(), ctypes.byref(parameters)) != 0:
            raise SystemExit(f"llama.cpp could not make {target}")
        os.replace(part, target)


if __name__ == "__main__":
    main()
