"""LoadError: why a model could not be built on a device. Raised by kernels.load; its code is public."""


class LoadError(Exception):
    """`code` is the public error code ("unsupported_architecture", "corrupt_weights", "insufficient_memory", ...)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UnsupportedLoad(LoadError):
    """The files are sound, but this build cannot run them as asked."""


class WeightMismatch(LoadError):
    """Tensors that are missing, left over or of another shape than the config says."""

    def __init__(self, message: str) -> None:
        super().__init__("corrupt_weights", message)


class IndivisibleShard(LoadError):
    """A model that cannot be cut into as many parts as asked."""

    def __init__(self, message: str) -> None:
        super().__init__("indivisible_heads", message)


class OutOfMemory(LoadError):
    """The host has less memory than the weights or the cache need."""

    def __init__(self, message: str) -> None:
        super().__init__("insufficient_memory", message)
