"""Field cases of section C over HTTP: items, events, identities, cuts, arguments. Named after the case."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.contract.asking import EOS, MARKS, script
from tests.harness.daemon import DaemonProcess, scripted_id

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]"
    "{% endfor %}{% endfor %}<assistant>"
)
EASY = "<system>s<assistant>B<user>C<assistant>"
SHOWN = {
    "turns": [{"when": EASY, "emit": ["saw it", EOS]}, {"emit": ["saw something else", EOS]}],
    "chat_template": TEMPLATE,
    "added_tokens": MARKS,
}
ARGUMENTS = '{"a":"x","n":[1,2]}'
CASES: dict[str, list[Any]] = {
    "text": ["Hello", " there"],
    "all": ["<think>", "hm", "</think>", "Text. ", "<tool_call>", '{"name":"f","arguments":{}}', "</tool_call>"],
    "two": [
        "Text.",
        *["<tool_call>", f'{{"name":"f","arguments":{ARGUMENTS}}}', "</tool_call>"],
        *["<tool_call>", '{"name":"g","arguments":{}}', "</tool_call>"],
    ],
    "thinks": ["<think>", "a", "b", "c", "d", "e", "f"],
    "cut call": ["<tool_call>", '{"name":"f",', '"arguments":', "{}}", "</tool_call>"],
}
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in "fg"]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[httpx.Client]:
    with DaemonProcess({"shown": SHOWN, "cases": script(CASES)}) as daemon, daemon.client() as client:
        yield client


def post(client: httpx.Client, model: str, said: Any, **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", json={"model": scripted_id(model), "input": said, "temperature": 0, **fields})


def events_of(client: httpx.Client, name: str, **fields: Any) -> list[dict[str, Any]]:
    """The stream, after checking what holds for every one: names, numbers, order, the client's own types."""
    answer = post(client, "cases", f"case {name}!", stream=True, **fields)
    assert answer.status_code == 200, answer.text
    events = []
    for frame in answer.text.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if lines:
            assert lines[0].startswith("event: "), lines
            events.append(json.loads(lines[1].removeprefix("data: ")))
            assert events[-1]["type"] == lines[0].removeprefix("event: ")
            EVENTS.validate_python(events[-1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    return events


def whole(client: httpx.Client, name: str, **fields: Any) -> dict[str, Any]:
    answer = post(client, "cases", f"case {name}!", **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    Response.model_validate(body)
    return body


def plain(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without their ids."""
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


@pytest.mark.parametrize("typed", [(), (0,), (1, 2), (0, 1, 2)])
def test_resp_01_items_without_type(client: httpx.Client, typed: tuple[int, ...]) -> None:
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "C"},
    ]
    for index in typed:
        items[index]["type"] = "message"
    body = post(client, "shown", items).json()
    assert body["output"][0]["content"][0]["text"] == "saw it"
    parts = [{**item, "content": [{"type": "input_text", "text": item["content"]}]} for item in items]
    assert post(client, "shown", parts).json()["output"][0]["content"][0]["text"] == "saw it"
    split = post(client, "shown", items[1:], instructions="s").json()
    assert split["output"][0]["content"][0]["text"] == "saw it"


@pytest.mark.parametrize("item", [{}, {"content": "x"}, {"type": None}, {"type": "hologram"}, "text", None])
def test_resp_01_items_of_no_kind(client: httpx.Client, item: Any) -> None:
    answer = post(client, "shown", [{"role": "user", "content": "a"}, item])
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, "input[1]")


@pytest.mark.parametrize("name", ["text", "all", "two"])
def test_resp_02_fields_and_order(client: httpx.Client, name: str) -> None:
    events = events_of(client, name, tools=TOOLS)
    assert events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    assert final["status"] == "completed"
    assert final["usage"]["total_tokens"] == final["usage"]["input_tokens"] + final["usage"]["output_tokens"]
    opened: list[int] = []
    for event in events:
        if "response" in event:
            assert {"id", "object", "created_at", "model", "status", "output"} <= event["response"].keys()
        if event["type"] == "response.output_item.added":
            assert event["item"]["status"] == "in_progress"
            opened.append(event["output_index"])
        if event["type"] == "response.output_item.done":
            assert event["item"]["status"] == "completed"
            assert event["output_index"] == opened[-1], "one item after the other"
    assert opened == list(range(len(final["output"])))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert plain(whole(client, name, tools=TOOLS)["output"]) == plain(final["output"])


def test_resp_03_one_identity_per_item(client: httpx.Client) -> None:
    seen: set[str] = set()
    for _ in range(2):
        events = events_of(client, "two", tools=TOOLS)
        final = events[-1]["response"]["output"]
        assert [item["type"] for item in final] == ["message", "function_call", "function_call"]
        for event in events:
            if "output_index" in event:
                item = final[event["output_index"]]
                assert event.get("item_id", item["id"]) == item["id"]
                assert event.get("item", item)["id"] == item["id"]
        calls = [item for item in final if item["type"] == "function_call"]
        ids = [item["id"] for item in final] + [call["call_id"] for call in calls] + [events[0]["response"]["id"]]
        assert len(set(ids)) == len(ids)
        assert not seen & set(ids)
        seen.update(ids)


@pytest.mark.parametrize(
    ("name", "limit", "kinds"),
    [("thinks", 3, ["reasoning"]), ("text", 1, ["message"]), ("cut call", 3, ["message"]), ("all", 1, [])],
)
def test_resp_05_cut_by_the_limit(client: httpx.Client, name: str, limit: int, kinds: list[str]) -> None:
    events = events_of(client, name, max_output_tokens=limit, tools=TOOLS)
    last = events[-1]
    assert last["type"] == "response.incomplete"
    for body in (last["response"], whole(client, name, max_output_tokens=limit, tools=TOOLS)):
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["usage"]["output_tokens"] == limit
        assert [item["type"] for item in body["output"]] == kinds
        assert all(item["status"] == "incomplete" for item in body["output"][-1:])
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert len(added) == len(done) == len(kinds)


def test_resp_07_arguments_agree_everywhere(client: httpx.Client) -> None:
    events = events_of(client, "two", tools=TOOLS)
    for index, expected in ((1, ARGUMENTS), (2, "{}")):
        mine = [event for event in events if event.get("output_index") == index]
        deltas = [event["delta"] for event in mine if event["type"] == "response.function_call_arguments.delta"]
        [done] = [event for event in mine if event["type"] == "response.function_call_arguments.done"]
        item = mine[-1]["item"]
        assert deltas
        assert "".join(deltas) == done["arguments"] == item["arguments"]
        assert events[-1]["response"]["output"][index]["arguments"] == item["arguments"]
        assert json.loads(item["arguments"]) == json.loads(expected)
        assert mine[0]["item"]["arguments"] == ""
