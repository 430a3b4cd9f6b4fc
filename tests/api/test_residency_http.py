"""Load on request and idle unload as a client meets them."""

import httpx

from tests.harness.daemon import DaemonProcess, say

CONFIG = """
[residency]
load_on_request = true
keep_alive_seconds = 1.0
[[models]]
id = "scripted:test/lazy"
at_start = false
aliases = ["small"]
"""
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def test_a_model_comes_with_its_first_request_and_goes_when_nobody_asks() -> None:
    scripts = {"lazy": say("here", {"eos": True}), "other": say("never", {"eos": True})}
    with DaemonProcess(scripts, CONFIG, models=[]) as daemon:
        assert daemon.get("/models") == []
        listed = daemon.get("/v1/models")["data"]
        assert [(entry["id"], entry["status"], entry["capabilities"]) for entry in listed] == [
            ("test/lazy", "unloaded", ["text"])
        ]
        assert daemon.get("/v1/models/scripted:test/lazy") == daemon.get("/v1/models/test/lazy") == listed[0]

        def ask(model: str, content: object = "hi", stream: bool = False) -> httpx.Response:
            body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream}
            with daemon.client() as client:
                return client.post("/v1/chat/completions", json=body)

        assert ask("small").json()["choices"][0]["message"]["content"] == "here"
        assert [entry["id"] for entry in daemon.get("/models")] == ["test/lazy"]
        assert [entry["status"] for entry in daemon.get("/v1/models")["data"]] == ["loaded"]
        assert daemon.wait_for_log("idle model unloaded")["model"] == "test/lazy"
        daemon.wait_for_log("model unloaded")
        # What cannot be answered is refused as ever: loading changes no answer.
        image = [{"type": "image_url", "image_url": {"url": PICTURE}}]
        assert ask("test/lazy", image).json()["error"]["code"] == "vision_unsupported"
        streamed = ask("scripted:test/lazy", stream=True)
        assert (streamed.status_code, "here" in streamed.text) == (200, True)
        assert ask("scripted:test/other").json()["error"]["code"] == "model_not_found"
        assert ask("small/none").status_code == 404
