"""Every code of the error tree in OpenAI's shape, from routes, from the framework and from our own defects."""

import inspect
import re
from collections.abc import Iterator

import pytest

from neuron.actors import errors as domain
from neuron.actors.request import InferenceRequest
from neuron.api.errors import MalformedHttp, error_body
from neuron.runtime import errors as root
from neuron.runtime.errors import NeuronError
from tests.api.fake_daemon import FakeDaemon, FakeServer, FakeStream, chat_body

_LEAK = re.compile(r"Traceback|0x[0-9a-f]{6}|psm_|\.py\b|/(home|usr|work|tmp)/|<class|Error\(")


def _classes() -> list[type[NeuronError]]:
    found: set[type[NeuronError]] = {MalformedHttp}
    for module in (root, domain):
        found |= {each for _, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, NeuronError)}
    return sorted(found, key=lambda each: each.__name__)


def make(kind: type[NeuronError]) -> NeuronError:
    if kind is domain.ContextLengthExceeded:
        return domain.ContextLengthExceeded(9000, 4096)
    if kind is domain.ModelNotFound:
        return domain.ModelNotFound("org/name")
    if issubclass(kind, domain.PreflightError):
        return kind("A sentence.", model_id="org/name", suggestion="Another.", available=["a"])
    return kind("A sentence.")


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_status_body_and_headers(server: FakeServer, kind: type[NeuronError]) -> None:
    error = make(kind)

    def refuse(_request: InferenceRequest) -> FakeStream:
        raise error

    server.daemon.on_submit = refuse
    response = server.chat()
    assert response.status_code == error.status
    assert response.headers["content-type"] == "application/json"
    body = response.json()["error"]
    assert (body["message"], body["type"], body["code"], body["param"]) == (
        error.message,
        error.type,
        error.code,
        error.param,
    )
    assert body["type"] in ("invalid_request_error", "authentication_error", "rate_limit_error", "api_error")
    expected = None if error.retry_after is None else str(error.retry_after)
    assert response.headers.get("retry-after") == expected
    should_retry = {None: None, False: "false", True: "true"}[error.should_retry]
    assert response.headers.get("x-should-retry") == should_retry
    assert response.headers["x-request-id"]


def test_agents_recognise_a_prompt_that_is_too_long() -> None:
    body = error_body(domain.ContextLengthExceeded(9000, 4096))["error"]
    assert body["code"] == "context_length_exceeded"
    assert body["kind"] == "prompt_too_long"
    assert (body["prompt_len"], body["max"]) == (9000, 4096)
    assert "9000" in body["message"]
    assert "maximum context length is 4096 tokens" in body["message"]


def test_no_error_holds_the_words_that_gateways_meter_by() -> None:
    for kind in _classes():
        text = str(error_body(make(kind)))
        assert not re.search(r"prompt_tokens|completion_tokens|cached_tokens", text)


def test_extras_never_replace_the_four_keys() -> None:
    error = domain.InvalidValue("m", param="p", message_count=1)
    error.extra = {"code": "other", "param": "other", "type": "x"}
    assert error_body(error)["error"] == {
        "message": "m",
        "type": "invalid_request_error",
        "param": "p",
        "code": "invalid_value",
    }


@pytest.mark.parametrize("streamed", [True, False])
def test_a_defect_says_nothing_of_its_cause(server: FakeServer, streamed: bool) -> None:
    def explode(_request: InferenceRequest) -> FakeStream:
        raise RuntimeError("/usr/lib/secret.py 0xdeadbeef hunter2")

    server.daemon.on_submit = explode
    response = server.chat(stream=streamed)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "hunter2" not in response.text
    assert not _LEAK.search(response.text)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/page/index.html", 404, "not_found"),
        ("GET", "/v1/completions", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/none/such", 404, "model_not_found"),
        ("GET", "/models/none%2Fsuch/endpoint", 404, "model_not_found"),
        ("GET", "/models/none%2Fsuch/capabilities", 404, "model_not_found"),
        ("GET", "/models/..%2F..%2Fetc%2Fpasswd/endpoint", 404, "model_not_found"),
        ("GET", "/models//endpoint", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/models", 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
        ("TRACE", "/health", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_framework_errors_have_the_apis_shape(
    server: FakeServer, method: str, path: str, status: int, code: str
) -> None:
    with server.client() as client:
        response = client.request(method, path, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert not _LEAK.search(response.text)
    if status == 405:
        assert response.headers["allow"]


def test_head_has_no_body(server: FakeServer) -> None:
    with server.client() as client:
        for path, status in (("/health", 200), ("/nope", 404)):
            response = client.head(path)
            assert (response.status_code, response.content) == (status, b"")


@pytest.mark.parametrize("sent", ["abc-123", "A.b:c/d+e=f@g", "x" * 128])
def test_sane_request_ids_are_kept(server: FakeServer, sent: str) -> None:
    with server.client() as client:
        for path in ("/health", "/nope"):
            assert client.get(path, headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "x" * 5000, "a b", "a\tb", 'x","level":"info', "é", "a;b"])
def test_odd_request_ids_are_replaced(server: FakeServer, sent: str) -> None:
    with server.client() as client:
        response = client.get("/health", headers={b"x-request-id": sent.encode("utf-8")})
    assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["x-request-id"])


def test_pictures_for_a_text_model(server: FakeServer) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with server.client() as client:
        chat = client.post("/v1/chat/completions", json=chat_body(messages=[{"role": "user", "content": [part]}]))
        item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
        responses = client.post("/v1/responses", json={"model": "org/name", "input": [item]})
    for response, field in ((chat, "messages"), (responses, "input")):
        body = response.json()["error"]
        assert (response.status_code, body["code"], body["model_id"]) == (400, "vision_unsupported", "org/name")
        assert body["suggestion"]
        assert body["param"] == field


@pytest.mark.parametrize(("chat", "responses"), [("response_format", "text.format"), ("tools", "tools"), (None, None)])
def test_responses_names_its_own_fields(chat: str | None, responses: str | None) -> None:
    def refuse(request: InferenceRequest) -> FakeStream:
        raise domain.InvalidValue("No.", param=chat)

    with FakeServer() as server, server.client() as client:
        server.daemon.on_submit = refuse
        asked = client.post("/v1/chat/completions", json=chat_body())
        answered = client.post("/v1/responses", json={"model": "org/name", "input": "hi"})
    assert [reply.json()["error"]["param"] for reply in (asked, answered)] == [chat, responses]


def test_thinking_follows_the_header_where_configured() -> None:
    from neuron.actors.settings import DefaultsSettings, Settings, ThinkingDefault

    daemon = FakeDaemon(Settings(defaults=DefaultsSettings(thinking=ThinkingDefault.HEADER)))
    with FakeServer(daemon) as server, server.client() as client:
        for headers, fields in (({}, {}), ({"x-include-thinking": "yes"}, {}), ({}, {"enable_thinking": True})):
            client.post("/v1/chat/completions", json=chat_body(**fields), headers=headers)
        client.post("/v1/responses", json={"model": "org/name", "input": "hi"})
    assert [request.thinking.value for request in daemon.requests] == ["off", "on", "on", "default"]
