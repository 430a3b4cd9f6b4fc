"""The ranges of every plain request field, shared by both front doors and by the OpenAPI document."""

from neuron.actors import limits
from neuron.api.validate.reader import Number

INT64 = 2**63 - 1

SAMPLING: dict[str, Number] = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1),
    "top_k": Number(-1, 2**31 - 1, integer=True),
    "min_p": Number(0, 1),
    "seed": Number(-INT64 - 1, INT64, integer=True),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "repetition_penalty": Number(0, 10, above=True),
    "repeat_last_n": Number(-1, 2**20, integer=True),
}
MAX_TOKENS = Number(1, INT64, integer=True)
TOP_LOGPROBS = Number(0, limits.TOP_LOGPROBS.value, integer=True)
BIAS = Number(-100, 100)

#: Accepted and without effect; every key that is in no list here is treated alike.
IGNORED: tuple[str, ...] = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_control",
    "context_management",
    "prediction",
    "verbosity",
    "system",
    "betas",
)

#: What changes the meaning of an answer and is not supported, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"], []),
    "audio": (),
    "web_search_options": (),
    "best_of": (0, 1),
    "echo": (False,),
    "suffix": ("",),
    "chat_template": (),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "logit_processors": ([],),
    "prompt_logprobs": (0, False),
    "use_beam_search": (False,),
    "length_penalty": (1, 0),
    "typical_p": (0, 1),
    "tfs_z": (0, 1),
    "top_a": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "prompt_embeds": (),
    "lora": ([],),
    "lora_request": (),
}

RESPONSES_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "logprobs": (False,),
}
