"""Finds a vocabulary's reasoning and tool-call markers: pairs that are single ids each."""

from neuron.actors.text.types import Markers, Tokenizer

REASONING_PAIRS = (
    ("<think>", "</think>"),
    ("<|think|>", "<|/think|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
TOOL_CALL_PAIRS = (
    ("<tool_call>", "</tool_call>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
)


def find_markers(tokenizer: Tokenizer, pairs: tuple[tuple[str, str], ...]) -> Markers | None:
    """The first pair of which both texts are single ids; None where the format has none."""
    for open_text, close_text in pairs:
        open_id, close_id = tokenizer.token_id(open_text), tokenizer.token_id(close_text)
        if open_id is not None and close_id is not None:
            return Markers(open_id=open_id, close_id=close_id, open_text=open_text, close_text=close_text)
    return None
