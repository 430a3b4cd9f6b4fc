"""Asks a scripted model both ways, streamed and not, and holds the two answers against each other."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.harness.daemon import DaemonProcess, scripted_id

EOS: dict[str, Any] = {"eos": True}
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
#: Text is cut into pieces of so many characters; 0 leaves it whole.
SIZES = (0, 1, 2, 3, 5, 8)


@dataclass
class Answer:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)

    def shown(self) -> tuple[str, str, list[tuple[str, Any]], str, dict[str, Any]]:
        """All but what must differ between two answers."""
        return self.content, self.reasoning, self.calls, self.finish, self.usage


def function(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def cut(text: str, size: int) -> list[Any]:
    """Pieces of `size` characters; marker texts stay whole, as their own ids."""
    pieces: list[Any] = []
    while text:
        starts = [(text.find(mark), mark) for mark in MARKS if mark in text]
        start, mark = min(starts, default=(len(text), ""))
        plain, text = text[:start], text[start + len(mark) :]
        pieces += [plain[at : at + size] for at in range(0, len(plain), size)] if size else [plain] * bool(plain)
        pieces += [mark] if mark else []
    return pieces


def script(cases: dict[str, list[Any]], template: str | None = None, **keys: Any) -> dict[str, Any]:
    """One turn for each case; the conversation names it as `case NAME!`."""
    turns = [{"when": f"case {name}!", "emit": [*emit, EOS]} for name, emit in cases.items()]
    return {
        "turns": turns,
        "added_tokens": MARKS,
        "special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": template,
        **keys,
    }


def body_of(model: str, said: str | list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"case {said}!"}] if isinstance(said, str) else said
    return {"model": scripted_id(model), "messages": messages, "temperature": 0, **fields}


def ask(daemon: DaemonProcess, model: str, said: str | list[dict[str, Any]], **fields: Any) -> Answer:
    """The answer, after checking that the stream says the same."""
    body = body_of(model, said, **fields)
    with daemon.client(timeout=60.0) as client:
        whole = read_whole(client.post("/v1/chat/completions", json=body))
        stream = read_stream(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert stream.shown() == whole.shown()
    assert not set(stream.ids) & set(whole.ids)
    return whole


def ask_status(daemon: DaemonProcess, model: str, said: str | list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The error of a request that is refused with the same status in both modes; `status` stands beside its keys."""
    body = body_of(model, said, **fields)
    with daemon.client(timeout=60.0) as client:
        answers = [client.post("/v1/chat/completions", json={**body, "stream": stream}) for stream in (False, True)]
    assert answers[0].status_code == answers[1].status_code >= 400, answers[0].text
    errors: list[dict[str, Any]] = [answer.json()["error"] for answer in answers]
    assert errors[0] == errors[1]
    return {**errors[0], "status": answers[0].status_code}


def read_whole(answer: httpx.Response) -> Answer:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    return Answer(
        message["content"] or "",
        message.get("reasoning_content", ""),
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls],
        choice["finish_reason"],
        _plain(answer.json()["usage"]),
        [call["id"] for call in calls],
    )


def read_stream(answer: httpx.Response) -> Answer:
    assert answer.status_code == 200, answer.text
    blocks = [block for block in answer.text.split("\n\n") if block.startswith("data: ")]
    assert blocks.pop() == "data: [DONE]"
    out = Answer()
    names: list[str] = []
    arguments: list[str] = []
    for block in blocks:
        chunk = json.loads(block.removeprefix("data: "))
        out.usage = _plain(chunk["usage"]) if chunk.get("usage") else out.usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            out.content += delta.get("content", "")
            out.reasoning += delta.get("reasoning_content", "")
            out.finish = choice["finish_reason"] or out.finish
            for entry in delta.get("tool_calls", []):
                if "name" in entry["function"]:
                    assert entry["index"] == len(names)
                    names.append(entry["function"]["name"])
                    arguments.append("")
                    out.ids.append(entry["id"])
                arguments[entry["index"]] += entry["function"]["arguments"]
    out.calls = [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)]
    return out


def _plain(usage: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without what an earlier request left behind for reuse."""
    return {key: value for key, value in usage.items() if key not in ("helexa_timing", "prompt_tokens_details")}
