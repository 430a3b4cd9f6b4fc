"""Guards calls into the native tokenizer library: whatever it throws on a bad file becomes InvalidTokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager

from neuron.actors.errors import InvalidTokenizer
from neuron.runtime.errors import NeuronError


@contextmanager
def native_errors(message: str, model_id: str) -> Iterator[None]:
    """Turns exceptions, and the library's panics (which are no Exception), into InvalidTokenizer."""
    try:
        yield
    except NeuronError:
        raise
    except Exception as error:
        raise InvalidTokenizer(message, model_id=model_id) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidTokenizer(message, model_id=model_id) from error
