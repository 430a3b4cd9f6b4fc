"""The trained tiny vision model through /v1/chat/completions: it sees what it is shown, and nothing in noise."""

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ops.demo import CONFIG
from ops.tiny_vision.pictures import (
    COLOURS,
    NO_PICTURE,
    PLACES,
    QUESTIONS,
    Picture,
    data_uri,
    draw,
    noise,
    random_picture,
)
from tests.harness.daemon import DaemonProcess

pytestmark = pytest.mark.timeout(300)
MODEL = "tiny:neuron/tiny-vision"
#: No seed of training.
FRESH = 20_261_201
COUNT = 72


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    # Kernels that other runs compiled: the daemon of a test has a home of its own.
    environment = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    with DaemonProcess(config=CONFIG, models=[MODEL], environment=environment, wait=False) as running:
        running.wait_ready(280.0)
        yield running


def shown(image: Image.Image, question: str = QUESTIONS[0]) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_uri(image)}}, {"type": "text", "text": question}]
    return {"role": "user", "content": parts}


def said(daemon: DaemonProcess, *messages: dict[str, Any], account: str = "tester") -> str:
    body = {"model": MODEL, "messages": list(messages), "max_tokens": 32, "temperature": 0}
    with daemon.client(headers={"x-helexa-account-id": account}) as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: str = response.json()["choices"][0]["message"]["content"]
    return answer


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    """Each colour at each place once."""
    rng = random.Random(FRESH)
    return [draw(colour, place, rng) for colour in COLOURS for place in PLACES]


def test_it_names_colour_and_place(daemon: DaemonProcess, pictures: list[Picture]) -> None:
    rng = random.Random(FRESH + 1)
    answers = [said(daemon, shown(picture.image, rng.choice(QUESTIONS))) for picture in pictures]
    right = [answer == picture.answer for answer, picture in zip(answers, pictures, strict=True)]
    assert len(right) == COUNT
    assert sum(right) >= 0.95 * COUNT, [
        (picture.answer, answer) for answer, picture in zip(answers, pictures, strict=True) if answer != picture.answer
    ]


def test_noise_tells_it_nothing(daemon: DaemonProcess, pictures: list[Picture]) -> None:
    """The control of the test above: with noise of the same size in place of each picture it is right no more."""
    rng = random.Random(FRESH + 2)
    right = [said(daemon, shown(noise(picture.image.size, rng))) == picture.answer for picture in pictures[::4]]
    assert sum(right) <= 0.1 * len(right)


def test_images_bind_in_the_order_of_their_turns(daemon: DaemonProcess) -> None:
    rng = random.Random(FRESH + 3)
    right = 0
    for _ in range(6):
        first, second = random_picture(rng), random_picture(rng)
        history = [shown(first.image), {"role": "assistant", "content": first.answer}]
        right += said(daemon, *history, shown(second.image)) == second.answer
        history = [shown(second.image), {"role": "assistant", "content": second.answer}]
        right += said(daemon, *history, shown(first.image)) == first.answer
    assert right >= 11


def test_without_a_picture(daemon: DaemonProcess) -> None:
    assert said(daemon, {"role": "user", "content": QUESTIONS[0]}) == NO_PICTURE


def test_streamed_and_again(daemon: DaemonProcess, pictures: list[Picture]) -> None:
    """The same words in a stream, and once more from a kept prefix."""
    picture = pictures[5]
    buffered = said(daemon, shown(picture.image))
    body = {"model": MODEL, "messages": [shown(picture.image)], "max_tokens": 32, "temperature": 0, "stream": True}
    with daemon.client() as client:
        lines = client.post("/v1/chat/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(choice["delta"].get("content") or "" for c in chunks for choice in c["choices"]) == buffered


def test_what_is_told_of_it(daemon: DaemonProcess) -> None:
    entry = daemon.model("neuron/tiny-vision")
    assert entry is not None
    assert entry["capabilities"] == ["text", "vision"]
    assert entry["architecture"] == "qwen3_5"
    assert entry["servable"]["ok"]


def test_answers_do_not_cross(daemon: DaemonProcess, pictures: list[Picture]) -> None:
    """CONC-01: four clients in random order, every third leaves early; each whole answer is the one given alone."""
    prompts = [shown(picture.image) for picture in pictures[::24]]
    prompts += [{"role": "user", "content": question} for question in QUESTIONS[:2]]
    alone = [said(daemon, prompt) for prompt in prompts]

    def client(seed: int) -> list[bool]:
        rng, same = random.Random(seed), []
        for turn in range(6):
            index = rng.randrange(len(prompts))
            if turn % 3 == 2:
                leave(daemon, prompts[index], after=rng.randrange(3))
            else:
                same.append(said(daemon, prompts[index], account=f"client {seed}") == alone[index])
        return same

    with ThreadPoolExecutor(4) as clients:
        found = [same for answers in clients.map(client, range(4)) for same in answers]
    assert found == [True] * 16
    assert daemon.model("neuron/tiny-vision")["state"] == "ready"  # type: ignore[index]


def leave(daemon: DaemonProcess, message: dict[str, Any], after: int) -> None:
    """Begin a stream and go away after some of its lines."""
    body = {"model": MODEL, "messages": [message], "max_tokens": 32, "temperature": 0, "stream": True}
    headers = {"x-helexa-account-id": "leaver"}
    with daemon.client() as client, client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code == 200:
            for _ in zip(range(after), answer.iter_lines(), strict=False):
                pass
