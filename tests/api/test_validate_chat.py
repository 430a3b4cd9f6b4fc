"""Chat bodies to InferenceRequest: every field, its range, and what is refused by name."""

from typing import Any

import pytest

from neuron.actors import limits
from neuron.actors.errors import InvalidImage, InvalidValue, RequestError, UnsupportedParameter
from neuron.actors.request import ImagePart, InferenceRequest, TextPart, Thinking, ToolChoice
from neuron.api.validate.chat import ChatCall, read_chat
from neuron.api.validate.ranges import UNSUPPORTED

PNG = "data:image/png;base64,iVBORw0KGgo="
TOOL = {"type": "function", "function": {"name": "sqrt", "parameters": {"type": "object", "properties": {}}}}


def call(**fields: Any) -> ChatCall:
    body = {"model": "org/name", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_chat(body, req_id="r", principal="p")


def request(**fields: Any) -> InferenceRequest:
    return call(**fields).request


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1e-40, 2, None], [-0.1, 2.1, "1", True, [], 1e308]),
        ("top_p", [0, 1e-4, 1, None], [-1, 1.01, "x", False]),
        ("top_k", [-1, 0, 1, 40.0, None], [-2, 1.5, "5", True]),
        ("min_p", [0, 1, None], [-0.1, 1.1]),
        ("seed", [0, -(2**63), 2**63 - 1, None], [2**63, 1.5, "1"]),
        ("presence_penalty", [-2, 2, None], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2, None], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 1, 10, None], [0, -1, 10.1]),
        ("repeat_last_n", [-1, 0, 64, None], [-2, 2.5]),
        ("max_tokens", [1, 2, 2**63 - 1, None], [0, -1, "5", 1.5, True]),
        ("max_completion_tokens", [1, None], [0, -1, "5"]),
        ("stream", [True, False, None], ["true", 1]),
        ("n", [1, None], [0, "1", True]),
        ("logprobs", [True, False, None], [1, "yes"]),
        ("stop", ["x", ["a", "b"], [], None], ["", [""], [1], 5, ["x"] * 17, "x" * 257, ["é" * 129]]),
        (
            "logit_bias",
            [{}, {"5": 1}, {"0": -100}, None],
            [{"x": 1}, {"5": 101}, {"-1": 1}, {"1": "2"}, [1], {"1": None}],
        ),
        ("reasoning_effort", ["none", "low", "high", None], ["very", 5]),
        ("parallel_tool_calls", [True, False, None], ["no"]),
        (
            "response_format",
            [{"type": "text"}, {"type": "json_object"}, None],
            [
                {"type": "xml"},
                "json",
                {"type": "json_schema"},
                {"json_schema": {"name": "x", "schema": {"type": "object"}}},
                {"type": None},
            ],
        ),
        ("stream_options", [{}, {"include_usage": True}, {"include_usage": None}, None], [{"include_usage": "x"}, [1]]),
        ("thinking", [{"type": "enabled", "budget_tokens": 5}, {"type": "disabled"}, None], [{"type": "loud"}, True]),
        (
            "tools",
            [[], [TOOL], None],
            [[1], [{}], [{"type": "function", "function": {"name": "a b"}}], [TOOL, TOOL], {}],
        ),
    ],
)
def test_ranges(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        call(**{field: value})
    for value in bad:
        error = refused(**{field: value})
        assert error.status == 400
        assert error.param is not None
        assert error.param.startswith(field)


def test_max_tokens_rules() -> None:
    assert request().max_tokens is None
    assert request(max_tokens=None).max_tokens is None
    assert request(max_completion_tokens=2).max_tokens == 2
    assert request(max_tokens=9, max_completion_tokens=2).max_tokens == 2


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_changes_the_meaning_is_refused_by_name(name: str) -> None:
    error = refused(**{name: {"some": "thing"}})
    assert isinstance(error, UnsupportedParameter)
    assert error.param == name
    call(**{name: None})
    for neutral in UNSUPPORTED[name]:
        call(**{name: neutral})


def test_n_above_one_is_unsupported() -> None:
    assert refused(n=2).code == "unsupported_parameter"


def test_harmless_and_foreign_keys_are_accepted() -> None:
    assert (
        request(
            user="u",
            metadata={"a": 1},
            store=True,
            service_tier="auto",
            cache_control={"type": "ephemeral"},
            context_management={"edits": []},
            zzz=1,
            system="s",
            betas=["x"],
        )
        == request()
    )


def test_stop_sequences_is_an_alias() -> None:
    assert request(stop_sequences=["a"]).stop == ("a",)
    assert request(stop="b", stop_sequences=["a"]).stop == ("b",)


@pytest.mark.parametrize("content", [None, "", "absent"])
def test_assistant_turns_with_calls_may_lack_content(content: Any) -> None:
    turn = {"role": "assistant", "content": content, "tool_calls": [_tool_call("c1", '{"v":101}')]}
    if content == "absent":
        del turn["content"]
    messages = [
        {"role": "user", "content": "root of 101?"},
        turn,
        {"role": "tool", "tool_call_id": "c1", "content": "10.05"},
    ]
    parsed = request(messages=messages).messages
    assert parsed[1].content == ""
    assert parsed[1].tool_calls[0].arguments == {"v": 101}


def _tool_call(call_id: Any, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "sqrt", "arguments": arguments}}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ('{"city": "Paris", "days": 3}', {"city": "Paris", "days": 3}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("", {}),
        (None, {}),
        ("null", "null"),
        ("[1]", "[1]"),
        ("not json", "not json"),
        ('{"a": NaN}', '{"a": NaN}'),
    ],
)
def test_tool_arguments_as_text_or_object(sent: Any, kept: Any) -> None:
    turn = {"role": "assistant", "tool_calls": [_tool_call(None, sent)]}
    assert request(messages=[turn]).messages[0].tool_calls[0].arguments == kept


def test_null_ids_of_calls_are_accepted() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [_tool_call(None, "{}")]},
        {"role": "tool", "tool_call_id": None, "content": "x"},
    ]
    parsed = request(messages=messages).messages
    assert parsed[0].tool_calls[0].id is None
    assert parsed[1].tool_call_id is None


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_comes_back_under_either_name(key: str) -> None:
    assert request(messages=[{"role": "assistant", "content": "a", key: "t"}]).messages[0].reasoning == "t"


@pytest.mark.parametrize("value", [PNG, None, 5, [PNG], {}, {"url": None}])
def test_an_image_url_is_an_object_with_a_url(value: Any) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": value}]}])
    assert isinstance(error, InvalidImage)
    assert error.param is not None
    assert error.param.startswith("messages[0].content[0].image_url")


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_as_parts(role: str) -> None:
    content = [
        {"type": "text", "text": "alpha", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "omega"},
    ]
    assert request(messages=[{"role": role, "content": content}]).messages[0].content == (
        TextPart("alpha"),
        TextPart("omega"),
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": [{"type": "input_hologram"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "function_call": {"name": "x"}}, "messages[0].function_call"),
        ({"role": "tool", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ("hi", "messages[0]"),
        (None, "messages[0]"),
    ],
)
def test_bad_messages_are_named(message: Any, param: str) -> None:
    assert refused(messages=[message]).param == param


@pytest.mark.parametrize("messages", [None, [], "hi", {}, [{"role": "user", "content": "x"}] * 2049])
def test_bad_message_lists(messages: Any) -> None:
    assert refused(messages=messages).param == "messages"


@pytest.mark.parametrize("model", [None, "", 5, [], "x" * 257, "a\nb", "org/n\0"])
def test_bad_models(model: Any) -> None:
    assert refused(model=model).param == "model"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tools": []}, ToolChoice.AUTO),
        ({"tools": None, "tool_choice": "auto"}, ToolChoice.AUTO),
        ({"tools": None, "tool_choice": None}, ToolChoice.AUTO),
        ({"tool_choice": "none"}, ToolChoice.NONE),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolChoice.REQUIRED),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, ToolChoice.AUTO),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sqrt"}}}, ToolChoice.NAMED),
    ],
)
def test_tool_choices(fields: dict[str, Any], kind: ToolChoice) -> None:
    assert request(**fields).tool_choice is kind


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "sqrt"}}}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ],
)
def test_bad_tool_choices(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking.DEFAULT),
        ({"reasoning_effort": "none"}, Thinking.OFF),
        ({"reasoning_effort": "high"}, Thinking.DEFAULT),
        ({"thinking": {"type": "enabled"}}, Thinking.ON),
        ({"thinking": {"type": "adaptive"}}, Thinking.DEFAULT),
        ({"enable_thinking": False}, Thinking.OFF),
        ({"reasoning_effort": "none", "thinking": {"type": "enabled"}}, Thinking.ON),
        ({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False}}, Thinking.OFF),
    ],
)
def test_thinking_last_one_wins(fields: dict[str, Any], thinking: Thinking) -> None:
    assert request(**fields).thinking is thinking


@pytest.mark.parametrize(
    "name",
    [
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "raise_exception",
        "__class__",
        "tokenize",
        "documents",
        "conversation",
        "continue_final_message",
        "return_dict",
        "a b",
        "",
    ],
)
def test_reserved_template_names_are_refused(name: str) -> None:
    error = refused(chat_template_kwargs={name: 1})
    assert isinstance(error, InvalidValue)
    assert str(error.param).startswith("chat_template_kwargs")


def test_template_kwargs_are_bounded() -> None:
    assert request(chat_template_kwargs={"a": "x" * 16_000}).template_kwargs == {"a": "x" * 16_000}
    deep: Any = 1
    for _ in range(16):
        deep = [deep]
    for kwargs in ({"a": "x" * 17_000}, {"a": [0] * 128}, {"a": deep}, {f"k{i}": 1 for i in range(129)}):
        assert refused(chat_template_kwargs=kwargs).param == "chat_template_kwargs"


def test_images_are_kept_in_order_and_named() -> None:
    content = [{"type": "image_url", "image_url": {"url": PNG}}, {"type": "input_image", "image_url": PNG.upper()}]
    parts = request(messages=[{"role": "user", "content": content}]).messages[0].content
    assert parts == (ImagePart(PNG, "messages[0].content[0]"), ImagePart(PNG.upper(), "messages[0].content[1]"))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/a.png",
        "https://example.com/a.png",
        "file:///etc/hostname",
        "ftp://x/y",
        "//host/x",
        "data:text/html;base64,AAAA",
        " http://x",
        "iVBORw0KGgo=",
        "data:image/png,abc",
        "",
        None,
        5,
        {},
    ],
)
def test_only_base64_data_uris_are_images(url: Any) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    assert isinstance(error, InvalidImage)


def test_an_image_may_be_labelled_as_bytes() -> None:
    url = "data:application/octet-stream;base64,AAAA"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    assert request(messages=[{"role": "user", "content": content}]).messages[0].content == (
        ImagePart(url, "messages[0].content[0]"),
    )


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_images_in_unsupported_places_are_named(role: str) -> None:
    error = refused(messages=[{"role": role, "content": [{"type": "image_url", "image_url": {"url": PNG}}]}])
    assert error.param == "messages[0].content[0]"


def _images(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}] * count}]


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (limits.MESSAGES, lambda n: {"messages": [{"role": "user", "content": "x"}] * n}),
        (
            limits.CONTENT_PARTS,
            lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * n}]},
        ),
        (limits.TOOLS, lambda n: {"tools": [{"function": {"name": f"t{i}"}} for i in range(n)]}),
        (limits.TOOL_CALLS, lambda n: {"messages": [{"role": "assistant", "tool_calls": [_tool_call("i", {})] * n}]}),
        (limits.TOOL_NAME_CHARS, lambda n: {"tools": [{"function": {"name": "t" * n}}]}),
        (limits.MODEL_ID_CHARS, lambda n: {"model": "m" * n}),
        (limits.IMAGES, lambda n: {"messages": _images(n)}),
        (limits.STOP_STRINGS, lambda n: {"stop": [f"s{i}" for i in range(n)]}),
        (limits.STOP_BYTES, lambda n: {"stop": "s" * n}),
        (limits.LOGIT_BIAS_ENTRIES, lambda n: {"logit_bias": {str(i): 1 for i in range(n)}}),
        (limits.TOP_LOGPROBS, lambda n: {"logprobs": True, "top_logprobs": n}),
        (limits.CHOICES, lambda n: {"n": n}),
    ],
    ids=lambda value: value.name if isinstance(value, limits.Limit) else "",
)
def test_limits_at_the_limit_beyond_and_far_beyond(limit: limits.Limit, make: Any) -> None:
    call(**make(limit.value))
    assert refused(**make(limit.value + 1)).status == 400
    assert refused(**make(limit.value * 100)).status == 400


def test_schema_size_is_limited() -> None:
    def tool(size: int) -> dict[str, Any]:
        return {"tools": [{"function": {"name": "t", "parameters": {"d": "x" * size}}}]}

    call(**tool(limits.SCHEMA_BYTES.value - 100))
    assert refused(**tool(limits.SCHEMA_BYTES.value)).param == "tools[0].function"


def test_top_logprobs_needs_logprobs() -> None:
    assert refused(top_logprobs=2).param == "top_logprobs"


def test_the_arguments_of_all_calls_together_hold_so_many_values() -> None:
    """Each would be within the limit of a body: text within text is parsed as well."""

    def calls(values: int) -> dict[str, Any]:
        arguments = '{"a":[' + ",".join(["1"] * values) + "]}"
        entries = [{"id": None, "function": {"name": "f", "arguments": arguments}} for _ in range(2)]
        return {"messages": [{"role": "assistant", "content": None, "tool_calls": entries}]}

    half = limits.JSON_VALUES.value // 2
    assert len(request(**calls(half - 2)).messages[0].tool_calls) == 2
    error = refused(**calls(half))
    assert (error.status, error.param) == (400, "messages[0].tool_calls[1].function.arguments")
