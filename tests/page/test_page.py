"""The status page in a headless Chromium: what it shows, its keyboard, its themes, and that it asks nobody else.

With NEURON_SCREENSHOTS=DIR the two themes are saved there (ops/docs/images holds the ones of the documents).
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from neuron.api.page_files import PAGE_PATHS
from tests.harness.browser import Browser, find_chromium
from tests.harness.daemon import DaemonProcess, say

CHROMIUM = find_chromium()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

THINKER: dict[str, Any] = {
    "added_tokens": ["<think>", "</think>"],
    "turns": [
        {
            "emit": [
                "<think>",
                "The user wants a capital. ",
                "France's capital is Paris.",
                "</think>",
                "The capital of France ",
                "is Paris",
                ", on the Seine.",
                {"eos": True},
            ],
            "delay_ms": 30,
        }
    ],
}
ENDLESS = say("tick ", repeat=True, delay_ms=50)
BROKEN: dict[str, Any] = {
    "turns": [{"emit": ["x"], "fault": {"at": 0, "phase": "decode", "kind": "device", "text": "illegal address"}}]
}
SEEING = {"capabilities": ["text", "vision"], **say("a picture", {"eos": True})}
SCRIPTS = {
    "example/thinker": THINKER,
    "example/endless": ENDLESS,
    "example/spare": say("spare"),
    "example/seeing": SEEING,
}
THINKER_ID = "example/thinker"


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    config = '[[models]]\nid = "scripted:example/broken"\ndevices = ["cpu:1"]\n[server]\nshutdown_seconds = 0.2\n'
    with DaemonProcess({**SCRIPTS, "example/broken": BROKEN}, config, models=list(SCRIPTS)[:2]) as daemon:
        assert daemon.chat("example/broken").status_code == 500
        yield daemon


@pytest.fixture(name="browser", scope="module")
def _browser(daemon: DaemonProcess) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as browser:
        browser.open(daemon.url + "/")
        browser.wait("document.querySelectorAll('#models .card').length === 3")
        yield browser


def test_the_files_need_no_key_and_hold_a_strict_policy(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-key\n")
    with DaemonProcess({}, f'[server]\napi_keys_file = "{keys}"\n', models=[], wait=False) as daemon:
        with daemon.client() as client:
            for path in sorted(PAGE_PATHS):
                answer = client.get(path)
                assert answer.status_code == 200
                policy = answer.headers["content-security-policy"]
                assert policy.startswith("default-src 'none'")
                assert "unsafe" not in policy
                assert "http" not in policy
            assert client.get("/page/other.js").status_code == 401
            assert client.get("/requests").status_code == 401
            assert "style=" not in client.get("/").text
        assert httpx.get(daemon.url + "/", headers={"host": "evil.example"}, trust_env=False).status_code == 403


@needs_browser
def test_it_shows_devices_models_and_reasons(browser: Browser) -> None:
    assert browser.value("document.querySelector('#devices').textContent").startswith("cpu")
    browser.wait("document.querySelector('#overall').textContent === 'degraded'")
    broken = browser.value("document.querySelector('[data-model=\"example/broken\"]').textContent")
    assert "poisoned" in broken
    assert "Load anew" in broken
    assert browser.value("document.querySelector('#requests').textContent").count("device_fault") == 1


@needs_browser
def test_a_chat_by_keyboard_shows_thinking_apart(browser: Browser) -> None:
    browser.value(f"document.querySelector('#chat-model').value = '{THINKER_ID}'")
    browser.tab_to("#prompt")
    browser.type("What is the capital of France?")
    browser.press("Enter")
    browser.wait("document.querySelector('.turn.assistant .note')?.textContent.includes('tokens/s')")
    assert browser.value("document.querySelector('.turn.assistant .text').textContent").startswith(
        "The capital of France"
    )
    details = "document.querySelector('.turn.assistant details')"
    assert browser.value(f"{details}.hidden || {details}.open") is False
    assert browser.value(f"{details}.querySelector('summary').textContent").startswith("Thought for")
    assert "wants a capital" in browser.value(f"{details}.textContent")
    browser.wait("document.querySelector('#requests').textContent.includes('stop')")


@needs_browser
def test_a_running_request_shows_its_rate_and_can_be_stopped(browser: Browser) -> None:
    browser.value("document.querySelector('#chat-model').value = 'example/endless'")
    browser.tab_to("#prompt")
    browser.type("go on")
    browser.press("Enter")
    card = "document.querySelector('[data-model=\"example/endless\"]').textContent"
    browser.wait(f"{card}.includes('busy for')")
    browser.wait("document.querySelector('#requests tr td:last-child').textContent.match(/^[0-9.]+$/) !== null")
    browser.tab_to("#stop")
    browser.press("Enter")
    browser.wait(f"!{card}.includes('busy for')")
    browser.wait("document.querySelector('#requests').textContent.includes('client_disconnected')")


@needs_browser
def test_load_and_unload_by_keyboard(browser: Browser) -> None:
    browser.tab_to("#load-id")
    browser.type("scripted:example/spare")
    browser.press("Enter")
    browser.wait("document.querySelector('#load-progress').textContent.includes('is loaded')")
    browser.tab_to('[data-model="example/spare"] [data-act="unload"]')
    browser.press("Enter")
    browser.wait("!document.querySelector('[data-model=\"example/spare\"]')")
    browser.tab_to("#load-id")
    browser.value("document.querySelector('#load-id').value = 'no-slash'")
    browser.press("Enter")
    browser.wait("document.querySelector('#load-progress .problem')?.textContent.includes('org/name')")


@needs_browser
def test_a_picture_goes_along_where_the_model_sees(browser: Browser, daemon: DaemonProcess, tmp_path: Path) -> None:
    assert browser.value("document.querySelector('#image-place').hidden") is True
    picture = tmp_path / "picture.png"
    picture.write_bytes(png())
    assert daemon.load("example/seeing").status_code == 200
    option = "document.querySelector('#chat-model option[value=\"example/seeing\"]')"
    browser.wait(f"{option} !== null")
    browser.value(
        "document.querySelector('#chat-model').value = 'example/seeing';"
        "document.querySelector('#chat-model').dispatchEvent(new Event('change'))"
    )
    browser.wait("!document.querySelector('#image-place').hidden")
    browser.choose_file("#image", picture)
    browser.wait("document.querySelector('#attached').textContent === 'picture.png'")
    browser.tab_to("#prompt")
    browser.type("What is this?")
    browser.press("Enter")
    browser.wait("document.querySelector('.turn.user:nth-last-of-type(2) img')?.naturalWidth === 8")
    browser.wait("document.querySelector('.turn.assistant:last-of-type').textContent.includes('a picture')")
    assert browser.value("document.querySelector('#attached').textContent") == ""
    assert daemon.unload("example/seeing").status_code == 200


def png() -> bytes:
    """8 by 8 pixels of one colour."""
    target = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(target, "PNG")
    return target.getvalue()


@needs_browser
def test_every_control_has_a_name(browser: Browser) -> None:
    """As a screen reader gets them: from the browser's own accessibility tree."""
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "checkbox", "meter", "progressbar", "link"}
    controls = [node for node in nodes if not node.get("ignored") and node["role"]["value"] in roles]
    assert len(controls) > 8
    assert [node for node in controls if not node.get("name", {}).get("value")] == []


CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (el) => {
    for (; el; el = el.parentElement) {
      const c = parse(getComputedStyle(el).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const el = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !el.checkVisibility()) continue;
    if (el.closest(":disabled, dialog, noscript")) continue;
    const [a, b] = [light(parse(getComputedStyle(el).color)), light(ground(el))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${walker.currentNode.textContent.trim()}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_readable(browser: Browser, theme: str, tmp_path: Path) -> None:
    browser.theme(theme)
    assert browser.value(CONTRAST) == []
    folder = Path(os.environ.get("NEURON_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    browser.resize(1360, 1120)
    browser.value(
        "document.querySelector('#load-form').reset(); document.querySelector('#load-progress').textContent = ''"
    )
    browser.value("scrollTo(0, 0); document.activeElement.blur()")
    browser.screenshot(folder / f"page-{theme}.png")
    assert (folder / f"page-{theme}.png").stat().st_size > 20_000


@needs_browser
def test_a_narrow_window_scrolls_down_only(browser: Browser) -> None:
    browser.resize(400, 800)
    assert browser.value("document.documentElement.scrollWidth") <= 400
    browser.resize(1360, 900)


@needs_browser
def test_it_asked_nobody_else_and_the_console_is_clean(browser: Browser, daemon: DaemonProcess) -> None:
    browser.value("1")
    assert {url for url in browser.requested if not url.startswith((daemon.url, "about:", "data:"))} == set()
    refused = [text for text in browser.problems if "400" not in text]
    assert refused == []


@needs_browser
def test_a_key_is_asked_for_and_used(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    keys = tmp_path / "keys"
    keys.write_text("secret-key\n")
    config = f'[server]\napi_keys_file = "{keys}"\n'
    with DaemonProcess({}, config, models=[], wait=False) as daemon, Browser(CHROMIUM) as browser:
        browser.open(daemon.url + "/")
        browser.wait("document.querySelector('#key-dialog').open")
        browser.tab_to("#key")
        browser.type("secret-key")
        browser.press("Enter")
        browser.wait("!document.querySelector('#key-dialog').open")
        browser.wait("document.querySelector('#overall').textContent === 'ok'")
        browser.tab_to("#load-id")
        browser.type("a/b")
        browser.press("Enter")
        browser.wait("document.querySelector('#load-progress').textContent.includes('admin key')")
