"""Text models and tokenizers for the tests of templates, made from scripts and small vocabularies."""

import json
from collections.abc import Sequence
from pathlib import Path

from neuron.actors.request import SamplingParams
from neuron.actors.scripted import parse_script
from neuron.actors.text.build import TextModel
from neuron.actors.text.markers import REASONING_PAIRS, TOOL_CALL_PAIRS, find_markers
from neuron.actors.text.scripted_tokenizer import scripted_tokenizer
from neuron.actors.text.template import ChatTemplate
from neuron.actors.text.tokenizer import SegmentTokenizer

SHARED = Path(__file__).parents[4] / "shared" / "fixtures"
DATA = Path(__file__).parents[2] / "data"
SPECIAL = ("<|im_start|>", "<|im_end|>", "</s>", "[INST]", "<|eot_id|>", "<|endoftext|>")
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def byte_tokenizer(special: Sequence[str] = SPECIAL, added: Sequence[str] = ADDED) -> SegmentTokenizer:
    script = {"turns": [], "special_tokens": list(special), "added_tokens": list(added)}
    return scripted_tokenizer(parse_script(json.dumps(script).encode()))


def text_model(template: str | ChatTemplate, tokenizer: SegmentTokenizer | None = None) -> TextModel:
    tokenizer = tokenizer or byte_tokenizer()
    return TextModel(
        model_id="test/model",
        tokenizer=tokenizer,
        template=ChatTemplate(default=template) if isinstance(template, str) else template,
        reasoning=find_markers(tokenizer, REASONING_PAIRS),
        tool_call=find_markers(tokenizer, TOOL_CALL_PAIRS),
        defaults=SamplingParams(),
        own_template=True,
        capabilities=("text",),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )
