"""IMG-01 and IMG-09 at the function: forms of a data URI that give the same bytes, and those that are refused."""

import base64

import pytest

from neuron.actors.errors import InvalidImage
from neuron.actors.images.data_uri import parse_data_uri
from neuron.actors.limits import IMAGE_BYTES

#: Encodes to text with '+', '/' and padding, so that every form differs.
CONTENT = bytes(range(251)) * 3 + b"\xfb\xff\xfe\xff"
TEXT = base64.b64encode(CONTENT).decode()
FORMS = {
    "plain": f"data:image/png;base64,{TEXT}",
    "jpg": f"data:image/jpg;base64,{TEXT}",
    "bytes": f"data:application/octet-stream;base64,{TEXT}",
    "upper case": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "charset": f"data:image/png;charset=utf-8;base64,{TEXT}",
    "no type": f"data:;base64,{TEXT}",
    "url-safe": "data:image/png;base64," + base64.urlsafe_b64encode(CONTENT).decode(),
    "no padding": "data:image/png;base64," + TEXT.rstrip("="),
    "lines": "data:image/png;base64," + "\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)),
    "trailing blank": f"data:image/png;base64,{TEXT} ",
    "percent": "data:image/png;base64," + TEXT.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    "leading blank": f" data:image/png;base64,{TEXT}",
}


def test_the_payload_tests_something() -> None:
    assert "+" in TEXT
    assert "/" in TEXT
    assert TEXT.endswith("=")


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes(form: str) -> None:
    assert parse_data_uri(FORMS[form], "here") == CONTENT


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png,{TEXT}",
        TEXT,
        "data:image/png;base64,",
        "data:image/png;base64",
        "data:image/png;base64,   ",
        "data:image/png;base64,AAAAA",
        "data:image/png;base64,AA=A",
        "data:image/png;base64,A*AA",
        "data:image/png;base64,caf\u00e9",
        "data:image/png;base64,\ud83d",
        f"data:text/html;base64,{TEXT}",
        "http://127.0.0.1/a.png",
        " http://127.0.0.1/a.png",
        "https://example.org/a.png",
        "file:///etc/hostname",
        "ftp://example.org/a.png",
        "//host/x",
        "",
    ],
)
def test_refused_naming_the_place(url: str) -> None:
    with pytest.raises(InvalidImage) as caught:
        parse_data_uri(url, "messages[0].content[1]")
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.status == 400


def test_the_limit_on_bytes() -> None:
    def form(size: int) -> str:
        return "data:image/png;base64," + base64.b64encode(bytes(size)).decode()

    assert len(parse_data_uri(form(IMAGE_BYTES.value), "here")) == IMAGE_BYTES.value
    with pytest.raises(InvalidImage, match="larger than 10 MiB"):
        parse_data_uri(form(IMAGE_BYTES.value + 1), "here")
    with pytest.raises(InvalidImage, match="larger than 10 MiB"):
        parse_data_uri("data:image/png;base64," + " " * (3 * IMAGE_BYTES.value), "here")
