"""Reading published files, importing them, and building catalogues."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_servers.webshop import generator, hub, official, prepare, products, store
from env_servers.webshop.catalogues import open_catalogue
from env_servers.webshop.data import ImportFailed, import_data


def record(**changes: Any) -> dict[str, Any]:
    return {"asin": "B000000001", "name": "Red Shoe", "pricing": "$5.5", "small_description": ["x"], **changes}


def parse(**changes: Any) -> products.Product:
    return products.parse(record(**changes), [], [], Random(0))


def test_prices() -> None:
    assert parse(pricing="").price_text == "$100.0"
    assert parse(pricing="$1,299.00").price_text == "$1299.0"
    ranged = parse(pricing="$9.99 - $4.50$1")
    assert ranged.price_text == "$9.99 to $4.5" and 4.5 <= ranged.price <= 9.99
    for text in ("free", "$abc"):
        with pytest.raises(products.MalformedProduct, match="B000000001"):
            parse(pricing=text)


def test_options_and_bullets() -> None:
    groups = {"Color": [{"value": " Red/Blue "}, {"value": "RED"}], "Size": None, "Style": []}
    product = parse(customization_options=groups, small_description="one text")
    assert product.options == {"color": ["red | blue", "red"]}
    assert product.bullets == ["one text"]
    assert parse(customization_options="").options == {}


def test_malformed_records_are_counted_or_refused(tmp_path: Path) -> None:
    raws = [record(), record(), record(asin="nan"), record(asin="B" * 11), record(asin="B2", pricing="free")]
    manifest = store.build(tmp_path / "c", map(store.Record, raws), lambda name: [], seed=0)
    assert manifest["products"] == 1
    assert manifest["dropped"] == {"duplicate_or_bad_id": 3, "malformed": 1}
    with pytest.raises(products.MalformedProduct):
        store.build(tmp_path / "d", map(store.Record, raws), lambda name: [], seed=0, strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_catalogue_of_another_format_is_refused(tmp_path: Path) -> None:
    store.build(tmp_path / "c", [store.Record(record())], lambda name: [], seed=0)
    path = tmp_path / "c" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(store.StoreError, match="import it again"):
        store.Catalogue(tmp_path / "c")


def test_the_first_products_of_a_larger_catalogue_are_the_same() -> None:
    small, large = list(generator.records(30)), list(generator.records(90))
    assert small == large[:30]
    assert small != list(generator.records(30, seed=1))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3), max_size=9), st.integers(1, 40))
def test_arrays_are_read_piecewise(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], chunk: int) -> None:
    path = tmp_path_factory.mktemp("json") / "rows.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(official, "_CHUNK", chunk)
        assert list(official.read_array(path)) == rows
        path.write_text(json.dumps(rows)[:-1])
        with pytest.raises(official.SourceError, match="download it again"):
            list(official.read_array(path))


def test_missing_and_ambiguous_files(tmp_path: Path) -> None:
    with pytest.raises(official.SourceError, match="items_shuffle"):
        official.find(tmp_path)
    for name in ("items_shuffle.json", "items_shuffle_1000.json", "items_ins_v2.json"):
        (tmp_path / name).write_text("[]")
    with pytest.raises(official.SourceError, match="items_shuffle_1000"):
        official.find(tmp_path)


def test_names_without_nouns(tmp_path: Path) -> None:
    path = tmp_path / "title_nouns.json"
    path.write_text('{"Red Shoe": ["shoe"]}')
    lists = prepare.noun_lists(path)
    assert lists("Red Shoe") == ["shoe"]
    with pytest.raises(prepare.UnknownNouns, match="Blue Shoe"):
        lists("Blue Shoe")


def test_rows_of_the_hub_become_published_files(tmp_path: Path) -> None:
    """The Hub's copy stores what the original's loader made of a product, cells as JSON."""
    source = list(generator.records(12))
    kept = [products.parse(r.raw, list(r.notes["attributes"]), [], Random(0)) for r in source]
    rows = [
        {
            "asin": p.asin,
            "name": p.name,
            "full_description": p.description,
            "small_description": json.dumps(p.bullets),
            "pricing": json.dumps(p.prices),
            "options": json.dumps(p.options),
            "category": p.category,
            "product_category": p.product_category,
            "query": p.query,
            "Attributes": json.dumps(p.attributes),
            "instruction_text": None,
        }
        for p in kept
    ]
    goal = {
        "asin": kept[0].asin,
        "instruction_text": "i need a lamp, and price lower than 60.00 dollars",
        "attributes": '["heavy duty"]',
        "goal_options": '["oak"]',
    }
    hub.write(tmp_path, rows, [goal])
    again = list(official.read_array(official.find(tmp_path)["products"]))
    notes = official.read_json(tmp_path / "items_ins_v2.json")
    assert [products.parse(raw, notes[raw["asin"]]["attributes"], [], Random(0)) for raw in again] == kept
    crowd = official.read_json(tmp_path / "items_human_ins.json")[kept[0].asin]
    wanted = {"instruction": "i need a lamp", "instruction_attributes": ["heavy duty"], "instruction_options": ["oak"]}
    assert crowd == [wanted]


@pytest.mark.engine
def test_import(home: Path, tmp_path: Path) -> None:
    """From published files to a served catalogue, with given noun lists and with none for one product."""
    write_published(tmp_path, 40)
    told: list[str] = []
    manifest = import_data(str(tmp_path), "mine", seed=3, report=told.append)
    assert (manifest["products"], manifest["seed"], manifest["source"]) == (40, 3, "published files")
    assert any("catalogue mine: 40 products" in line for line in told)
    catalogue = open_catalogue("mine")
    assert len(catalogue.search("lamp table shoes tea")) > 0
    assert catalogue.goals("synthetic") and catalogue.goals("human")
    catalogue.close()
    assert import_data(str(tmp_path), limit=10)["name"] == "official-10"
    (tmp_path / "title_nouns.json").write_text("{}")
    with pytest.raises(ImportFailed, match="leave --nouns out"):
        import_data(str(tmp_path), "mine")
    assert not list((home / "data" / "webshop").glob(".import-*"))
    with pytest.raises(ImportFailed, match="items_shuffle"):
        import_data(str(tmp_path / "nothing"))


def test_the_tagger_s_database_is_a_noun_list(tmp_path: Path) -> None:
    path = tmp_path / "nouns.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE title (name TEXT PRIMARY KEY, nouns TEXT NOT NULL) WITHOUT ROWID")
    database.execute("INSERT INTO title VALUES ('Red Shoe', '[\"shoe\"]')")
    database.commit()
    assert prepare.noun_lists(path)("Red Shoe") == ["shoe"]


def write_published(folder: Path, count: int) -> None:
    records = list(generator.records(count))
    (folder / "items_shuffle_1000.json").write_text(json.dumps([r.raw for r in records]))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps({r.raw["asin"]: dict(r.notes) for r in records}))
    crowd = {r.raw["asin"]: list(r.crowd) for r in records if r.crowd}
    (folder / "items_human_ins.json").write_text(json.dumps(crowd))
    lists = {r.raw["name"]: generator.nouns(r.raw["name"]) for r in records}
    (folder / "title_nouns.json").write_text(json.dumps(lists))
