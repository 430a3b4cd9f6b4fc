"""Documents and code say the same: what exists is documented, what is documented exists."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from quart import Quart

from neuron.actors.settings import Settings
from neuron.api.access import Access
from neuron.api.app import create_app
from neuron.api.metric_table import TABLE, Kind
from neuron.api.openapi import document
from neuron.runtime.config import load_settings
from ops import reference
from ops.example_config import EXAMPLE, meanings, uncommented
from tests.api.fake_daemon import FakeDaemon, FakeServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "ops" / "docs"
#: Codes that a client may meet; the others only end the start or are only logged.
UNSENT = {"invalid_config", "client_disconnected"}


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_reference_is_what_the_code_says(name: str) -> None:
    current = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert current == reference.pages()[name], "run `python -m ops.reference`"


def test_the_check_tells_stale_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decisions").mkdir()
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "reference")
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    (tmp_path / "reference" / "errors.md").write_text("old")
    assert reference.main(["--check"]) == 1


def test_every_error_code_has_a_meaning() -> None:
    lines = (reference.FOLDER / "errors.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| \d{3} ", line)]
    assert len(rows) == len({kind.code for kind in reference.error_classes()})
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_contract_names_only_codes_that_exist_and_all_of_them() -> None:
    codes = {kind.code for kind in reference.error_classes()}
    text = (DOCS / "contract.md").read_text(encoding="utf-8")
    table = text[text.index("| status | code | extra |") :].split("\n\n")[0]
    named = set(re.findall(r"`([a-z][a-z_]+)`", re.sub(r"`kind: [^`]*`", "", table)))
    words = {"param", "kind", "model_id", "suggestion", "prompt_len", "max"}
    assert named - codes - words == set()
    assert codes - named - UNSENT == set()


# -- metrics -----------------------------------------------------------------------------------


def scrape(server: FakeServer) -> dict[str, Any]:
    with server.client() as client:
        return {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}


def test_every_metric_of_the_table_is_scraped_and_no_other() -> None:
    with FakeServer() as server:
        server.chat()
        families = scrape(server)
    bare = {family.name.removesuffix("_total"): family for family in TABLE}
    assert set(families) == set(bare)
    for name, family in families.items():
        assert family.type == bare[name].kind.value
        assert family.documentation == bare[name].help
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        assert labels <= set(bare[name].labels)


def test_names_follow_the_conventions() -> None:
    for family in TABLE:
        assert re.fullmatch(r"neuron(_[a-z]+)+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert not re.search(r"_(ms|mb|pct|millis)", family.name)


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    dashboard = json.loads((ROOT / "ops" / "grafana" / "neuron.json").read_text())
    known = {family.name: family for family in TABLE}
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name, labels in re.findall(r"(neuron_[a-z_]+)(?:\{([^}]*)\})?", target["expr"]):
                family = known[re.sub(r"_(bucket|sum|count)$", "", name)]
                asked.add(family.name)
                assert set(re.findall(r"(\w+)!?=", labels or "")) <= set(family.labels), target["expr"]
    assert len(asked) > 20
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


# -- routes ------------------------------------------------------------------------------------


def test_every_route_is_described_and_every_description_is_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Quart] = []

    def remember(app: Quart, *arguments: Any) -> Any:
        made.append(app)
        return app

    monkeypatch.setattr("neuron.api.app.Edge", remember)
    create_app(FakeDaemon(), Access(Settings().server))
    rules = {
        (method, re.sub(r"<(?:path:)?(\w+)>", r"{\1}", str(rule)).replace("{model_id}", "{id}"))
        for rule in made[0].url_map.iter_rules()
        for method in (rule.methods or set()) & {"GET", "POST", "PUT", "DELETE", "PATCH"}
    }
    described = {(method.upper(), path) for path, operations in document()["paths"].items() for method in operations}
    assert rules == described


def test_the_contract_names_every_route() -> None:
    text = (DOCS / "contract.md").read_text(encoding="utf-8")
    for path in document()["paths"]:
        if path not in ("/page/{name}", "/v1/models/{id}"):
            tail = "/ready" if path.endswith("/ready") else path
            assert tail in text, path


# -- configuration -----------------------------------------------------------------------------


def test_the_example_names_every_key_and_explains_it() -> None:
    known = meanings(EXAMPLE.read_text(encoding="utf-8"))
    keys = {key for key, _, _ in reference.setting_keys()}
    assert set(known) == keys
    assert [key for key, text in known.items() if len(text) < 10] == []


def test_the_example_is_the_defaults_and_parses_with_everything_on(tmp_path: Path) -> None:
    assert load_settings(Settings, EXAMPLE, {}, {}) == Settings()
    text = uncommented(EXAMPLE.read_text(encoding="utf-8"))
    everything = tmp_path / "neuron.toml"
    everything.write_text(text)
    settings = load_settings(Settings, everything, {}, {})
    assert settings.models[0].aliases == ("small",)
    tree = tomllib.loads(text)
    shown = {key for section in tree.values() if isinstance(section, dict) for key in section}
    assert {"api_keys_file", "keep_alive_seconds"} <= shown


def test_defaults_in_the_reference_are_those_of_the_settings() -> None:
    rows = {key: default for key, _, default in reference.setting_keys()}
    assert rows["server.port"] == f"`{Settings().server.port}`"
    assert rows["models.id"] == "required"
    assert rows["server.api_keys_file"] == "unset"
    assert msgspec.json.decode(rows["limits.queue_seconds"].strip("`")) == Settings().limits.queue_seconds


# -- the documents themselves ------------------------------------------------------------------


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_keys_variables_and_flags_named_in_prose_exist() -> None:
    keys = {key for key, _, _ in reference.setting_keys()}
    sections = {key.partition(".")[0] for key in keys}
    variables = set(re.findall(r"`(NEURON_[A-Z_]+)`", reference.configuration_page()))
    variables |= set(re.findall(r"NEURON_[A-Z_]+", reference.configuration_page()))
    variables |= {"NEURON_FAILPOINTS", "NEURON_SCREENSHOTS"}
    flags = set(re.findall(r"`(--[a-z-]+)`", reference.command_page())) | {"--help", "--version", "--no-deps"}
    for page in [ROOT / "README.md", DOCS / "guide.md", DOCS / "contract.md"]:
        text = page.read_text(encoding="utf-8")
        for key in re.findall(r"`([a-z_]+\.[a-z_]+)`", text):
            if key.partition(".")[0] in sections:
                assert key in keys, f"{page.name}: {key}"
        assert set(re.findall(r"NEURON_[A-Z_]+", text)) <= variables, page.name
        commands = "\n".join(line for line in text.splitlines() if "neuron " in line and "--" in line)
        named = set(
            re.findall(r"neuron (?:serve|chat|load|models|preflight|doctor|bench)[^`|\n]*?(--[a-z-]+)", commands)
        )
        assert named <= flags, page.name
