"""compiled: the Numba decorator of this package. Nopython, without the GIL, kept between processes (compile_cache)."""

from collections.abc import Callable
from typing import Any

import numba

from neuron.kernels.compile_cache import attach


def compiled(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call; the machine code is reused by later processes."""
    dispatcher = numba.njit(function, nogil=True, error_model="numpy", boundscheck=False)
    attach(dispatcher, function)
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """A helper of compiled functions, with no entry point and no cache of its own."""
    return numba.njit(function, nogil=True, error_model="numpy", boundscheck=False)


def spliced(function: Callable[..., Any]) -> Any:
    """A helper whose body Numba copies into its callers, so that it is optimised once there and not for itself too."""
    return numba.njit(function, nogil=True, error_model="numpy", boundscheck=False, inline="always")
