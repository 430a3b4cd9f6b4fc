"""Images through the real daemon over HTTP, with a scripted model that looks at nothing: section H of the cases."""

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.actors.images.files import BOMB, RED_DOT, encoded, textured, uri
from tests.actors.images.test_data_uri import FORMS, TEXT
from tests.actors.images.test_raster import unreadable
from tests.harness.daemon import DaemonProcess, say

TOKENS = ["<|im_start|>", "<|im_end|>"]
SCRIPTS = {
    "eyes": {
        **say("I ", "see ", "it ", "very ", "well."),
        "capabilities": ["text", "vision"],
        "special_tokens": TOKENS,
    },
    "blind": {**say("no"), "special_tokens": TOKENS},
}
RED = f"data:image/png;base64,{RED_DOT}"
#: One pixel becomes 256 x 256: 64 places, between a start and an end.
RED_TOKENS = 64 + 2


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as running:
        yield running


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def chat(daemon: DaemonProcess, messages: list[dict[str, Any]], name: str = "eyes", **fields: Any) -> httpx.Response:
    with daemon.client() as client:
        return client.post("/v1/chat/completions", json=daemon.chat_body(name, **{"messages": messages, **fields}))


def prompt_tokens(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    found: int = response.json()["usage"]["prompt_tokens"]
    return found


def refused(response: httpx.Response, code: str = "invalid_image") -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    for leak in ("Traceback", "/work", "/tmp", "/usr", "PIL", "0x", "Error", "psm_"):
        assert leak not in error["message"]
    return error


@pytest.mark.parametrize("form", FORMS)
def test_img_01_forms_that_are_the_same_image(daemon: DaemonProcess, form: str) -> None:
    url = FORMS[form].replace(TEXT, RED_DOT)
    if url == FORMS[form]:
        # Forms that spell the payload in their own way.
        padded = RED_DOT
        url = {
            "url-safe": "data:image/png;base64," + padded.replace("+", "-").replace("/", "_"),
            "no padding": "data:image/png;base64," + padded.rstrip("="),
            "lines": "data:image/png;base64," + padded[:76] + "\n" + padded[76:],
            "percent": "data:image/png;base64," + padded.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        }[form]
    bare = prompt_tokens(chat(daemon, user(text("what?"))))
    response = chat(daemon, user(text("what?"), image(url.lstrip())))
    assert prompt_tokens(response) == bare + RED_TOKENS


@pytest.mark.parametrize(
    "value",
    [
        {"url": "data:image/png," + RED_DOT},
        {"url": RED_DOT},
        {"url": "data:image/png;base64,"},
        {"url": "data:image/png;base64,%%%"},
        {"url": ""},
        {},
        RED,
        None,
    ],
)
def test_img_01_forms_that_are_none(daemon: DaemonProcess, value: Any) -> None:
    refused(chat(daemon, user({"type": "image_url", "image_url": value})))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (449, 447), (1, 200), (2000, 15)])
def test_img_02_usage_counts_places(daemon: DaemonProcess, width: int, height: int) -> None:
    content = encoded(textured(width, height))
    bare = prompt_tokens(chat(daemon, user(text("x"))))
    places = prompt_tokens(chat(daemon, user(text("x"), image(uri(content))))) - bare - 2
    assert 64 <= places <= 1024


@pytest.mark.parametrize(("width", "height"), [(1, 2000), (2000, 1), (690, 3)])
def test_img_07_extreme_shapes(daemon: DaemonProcess, width: int, height: int) -> None:
    error = refused(chat(daemon, user(image(uri(encoded(Image.new("RGB", (width, height))))))))
    assert error["param"] == "messages[0].content[0]"


def test_img_05_bombs(daemon: DaemonProcess) -> None:
    refused(chat(daemon, user(image(f"data:image/png;base64,{BOMB}"))))
    refused(chat(daemon, user(image(uri(encoded(Image.new("1", (12000, 12000))))))))
    refused(chat(daemon, user(*[image(RED)] * 200)))
    frames = [Image.new("P", (4, 4), index % 2) for index in range(2000)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert prompt_tokens(chat(daemon, user(image(uri(gif))))) > RED_TOKENS
    assert prompt_tokens(chat(daemon, user(*[image(RED)] * 8))) > 8 * RED_TOKENS


@pytest.mark.parametrize("name", ["nothing", "random bytes", "svg", "PNG cut", "JPEG cut", "tiff", "psd header"])
def test_img_08_no_image_at_all(daemon: DaemonProcess, name: str) -> None:
    refused(chat(daemon, user(image(uri(unreadable()[name])))))


def test_img_08_a_wrong_label(daemon: DaemonProcess) -> None:
    assert chat(daemon, user(image(uri(encoded(textured(40, 40), "WEBP"), "image/png")))).status_code == 200


def test_img_09_no_address_is_fetched(daemon: DaemonProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(0.2)
        for url in (
            f"http://127.0.0.1:{port}/a.png",
            f" http://127.0.0.1:{port}/a.png",
            f"https://127.0.0.1:{port}/a.png",
            f"ftp://127.0.0.1:{port}/a.png",
            f"//127.0.0.1:{port}/x",
            "file:///etc/hostname",
            f"data:text/html;base64,{RED_DOT}",
            f"http://127.0.0.1:{port}\\@data:image/png;base64,{RED_DOT}",
        ):
            response = chat(daemon, user(image(url)))
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "invalid_image"
            assert socket.gethostname() not in response.text
            with daemon.client() as client:
                item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
                body = {"model": "test/eyes", "input": [item]}
                assert client.post("/v1/responses", json=body).status_code == 400
        with pytest.raises(TimeoutError):
            listener.accept()


def test_img_10_images_in_user_and_tool_turns(daemon: DaemonProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        *user(image(RED), text("first")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("seen"), image(RED)]},
        *user(text("and?")),
    ]
    without = json.loads(json.dumps(messages))
    for message in without:
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part["type"] == "text"]
    assert prompt_tokens(chat(daemon, messages)) == prompt_tokens(chat(daemon, without)) + 2 * RED_TOKENS


@pytest.mark.parametrize("role", ["assistant", "system", "developer"])
def test_img_10_places_that_take_none_are_named(daemon: DaemonProcess, role: str) -> None:
    messages = [{"role": role, "content": [image(RED)]}, *user(text("x"))]
    assert refused(chat(daemon, messages))["param"].startswith("messages[0].content[0]")


def test_img_10_a_model_that_sees_nothing(daemon: DaemonProcess) -> None:
    error = refused(chat(daemon, user(image(RED)), name="blind"), "vision_unsupported")
    assert error["model_id"] == "test/blind"
    assert error["suggestion"]
    with daemon.client() as client:
        item = {"role": "user", "content": [{"type": "input_image", "image_url": RED}]}
        response = client.post("/v1/responses", json={"model": "test/blind", "input": [item]})
    refused(response, "vision_unsupported")


def test_responses_take_input_image(daemon: DaemonProcess) -> None:
    with daemon.client() as client:

        def tokens(*parts: dict[str, Any]) -> int:
            body = {"model": "test/eyes", "input": [{"role": "user", "content": list(parts)}]}
            response = client.post("/v1/responses", json=body)
            assert response.status_code == 200, response.text
            found: int = response.json()["usage"]["input_tokens"]
            return found

        words = {"type": "input_text", "text": "x"}
        assert tokens(words, {"type": "input_image", "image_url": RED}) == tokens(words) + RED_TOKENS
        output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": RED}]}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        response = client.post("/v1/responses", json={"model": "test/eyes", "input": [call, output]})
        assert response.json()["usage"]["input_tokens"] > RED_TOKENS


def test_chat_11_usage_is_one_thing(daemon: DaemonProcess) -> None:
    messages = user(text("count"), image(RED), image(uri(encoded(textured(300, 200)))))
    buffered = chat(daemon, messages, max_tokens=3).json()["usage"]
    body = daemon.chat_body("eyes", messages=messages, max_tokens=3, stream=True)
    body["stream_options"] = {"include_usage": True}
    with daemon.client() as client:
        lines = client.post("/v1/chat/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = next(chunk["usage"] for chunk in chunks if chunk.get("usage"))
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert streamed[key] == buffered[key]
    assert buffered["total_tokens"] == buffered["prompt_tokens"] + buffered["completion_tokens"]


def test_an_image_in_a_stream_is_refused_with_its_status(daemon: DaemonProcess) -> None:
    refused(chat(daemon, user(image("data:image/png;base64,AAAA")), stream=True))


def test_a_typed_placeholder_is_text(daemon: DaemonProcess) -> None:
    typed = "<|vision_start|><|image_pad|><|vision_end|>"
    bare = prompt_tokens(chat(daemon, user(text("ab"))))
    assert prompt_tokens(chat(daemon, user(text("ab" + typed)))) == bare + len(typed)
    assert prompt_tokens(chat(daemon, user(text("ab" + typed), image(RED)))) == bare + len(typed) + RED_TOKENS


def test_capabilities_are_told(daemon: DaemonProcess) -> None:
    listed = {entry["id"]: entry["capabilities"] for entry in daemon.get("/models")}
    assert listed == {"test/eyes": ["text", "vision"], "test/blind": ["text"]}
    models = {entry["id"]: entry["capabilities"] for entry in daemon.get("/v1/models")["data"]}
    assert models == listed
    assert daemon.get("/models/test%2Feyes/capabilities")["capabilities"] == ["text", "vision"]


def test_images_count_against_the_context(daemon: DaemonProcess) -> None:
    large = uri(encoded(textured(1024, 1024)))
    error = refused(chat(daemon, user(*[image(large)] * 5)), "context_length_exceeded")
    assert error["prompt_len"] > 5 * 1024
    assert error["max"] == 4096


def test_no_image_is_ever_logged(daemon: DaemonProcess) -> None:
    bad = base64.b64encode(b"\x89PNG" + bytes(range(256)) * 400).decode()
    refused(chat(daemon, user(image(f"data:image/png;base64,{bad}"))))
    assert chat(daemon, user(image(RED))).status_code == 200
    log = "\n".join(daemon.raw_log())
    assert bad[40:80] not in log
    assert RED_DOT[20:60] not in log


def test_kept_prefixes_tell_images_apart(daemon: DaemonProcess) -> None:
    """The same conversation is reused; another image in the same place is not taken for the first."""
    long = "tell me everything about it, and then some more. " * 30
    one, two = uri(encoded(textured(256, 256, 11))), uri(encoded(textured(256, 256, 12)))

    def cached(url: str) -> int:
        messages = [*user(image(url), text(long)), {"role": "assistant", "content": "well"}, *user(text("go on"))]
        usage = chat(daemon, messages).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    first, again, other = cached(one), cached(one), cached(two)
    assert first == 0
    assert again > 64
    assert other < 64


@pytest.fixture
def control(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("failpoints") / "control.json"


def test_a_device_lost_while_it_looks(control: Any) -> None:
    """Rows 4 and 26 of the fault table: death in the vision phase poisons; a host error there does not."""
    control.write_text("[]")
    with DaemonProcess({"eyes": SCRIPTS["eyes"]}, environment={"NEURON_FAILPOINTS": str(control)}) as daemon:
        point = {"point": "worker.vision.encode"}
        control.write_text(json.dumps([{**point, "action": "raise", "error": "value", "text": "no such shape"}]))
        response = chat(daemon, user(image(RED)))
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert chat(daemon, user(image(RED))).status_code == 200
        # The client goes while the device looks: that job ends, no other follows, and the next request is served.
        control.write_text(json.dumps([{**point, "action": "sleep", "seconds": 0.7}]))
        leaving = daemon.chat_body("eyes", messages=user(image(uri(encoded(textured(90, 90))))), stream=True)
        with daemon.client() as client, client.stream("POST", "/v1/chat/completions", json=leaving) as answer:
            assert answer.status_code == 200
        daemon.wait_for_log("failed", error_code="client_disconnected", phase="prefill")
        assert prompt_tokens(chat(daemon, user(image(RED)))) > RED_TOKENS
        control.write_text(json.dumps([{**point, "action": "signal"}]))
        fresh = image(uri(encoded(textured(64, 64))))
        assert chat(daemon, user(fresh)).status_code in (500, 503)
        control.write_text("[]")
        response = chat(daemon, user(text("x")))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_poisoned")
        assert daemon.unload("eyes").status_code == 200
        assert daemon.load("eyes").status_code == 200
        assert chat(daemon, user(image(RED))).status_code == 200
