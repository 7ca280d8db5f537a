"""The reference of transformers: every one, every parameter, and examples that come out as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fix_transform import run_batch
from penstock.config import read_pipeline
from penstock.modifiers.transform.registry import ALIASES, TRANSFORMERS
from penstock.modifiers.transform.rules import RULE_KEYS
from penstock.modifiers.transform.template_functions import FUNCTIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "transformers.md").read_text()
HOW_TO = (DOCS / "howto" / "filter-and-mask.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))
EXAMPLES = re.findall(r"^\| `(\{with: .*?\})` \| (\S+) \| `(.*?)` \| (.*?) \|$", PAGE, re.M)
MASKS = re.findall(r"^\| `(\{with: .*?\})` \| `(.*?)` \|$", HOW_TO, re.M)


def _texts(value):
    """As the pipeline file has them: every scalar is text, or nothing."""
    if isinstance(value, dict):
        return {key: _texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return value if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("rule", "type_name", "value", "result"), EXAMPLES)
def test_example_comes_out_as_the_page_says(rule, type_name, value, result):
    done, batch = run_batch(_texts(yaml.safe_load(rule)), [value], type_name, salt="example")

    assert batch.failed is None
    assert ("NULL" if done[0] is None else f"`{done[0]}`") == result


@pytest.mark.parametrize(("rule", "result"), MASKS)
def test_mask_of_the_how_to_comes_out_as_it_says(rule, result):
    done, _ = run_batch(_texts(yaml.safe_load(rule)), ["ada@shop.org"], "text", salt="example")

    assert done == [result]


def test_how_to_shows_masks():
    assert len(MASKS) > 3


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer_has_its_section_with_all_parameters(name):
    section = SECTIONS[name]
    documented = set(re.findall(r"^\| `(\w+)` \| ", section, re.M))

    assert documented == set(TRANSFORMERS[name].model_fields) - {"dynamic_parameters"}
    assert "Two values become one: " in section
    if name != "python":
        assert any(re.search(rf"with: {name}\b", rule) for rule, *_ in EXAMPLES)


def test_sections_are_transformers():
    assert {name for name in SECTIONS if name.islower()} == set(TRANSFORMERS)


def test_every_other_name_key_and_function_is_there():
    for name in ALIASES:
        assert f"`{name}`" in PAGE or not name
    for key in RULE_KEYS:
        assert f"| `{key}` |" in PAGE
    for name in (*FUNCTIONS, "and", "or"):
        assert f"`{name}`" in PAGE


def test_uniqueness_is_what_the_code_says():
    said = {
        "never": "never",
        "unlikely": "unlikely",
        "likely": "likely",
        "always": "likely",
        "assumed": "likely",
    }
    for name, section in SECTIONS.items():
        if name in TRANSFORMERS:
            [word] = re.findall(r"Two values become one: (\w+)\.", section)
            assert TRANSFORMERS[name].collisions.value == said[word], name


def test_files_that_the_page_shows_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SALT", "example")
    pipeline, rules = re.findall(r"^```yml\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "masking.yml").write_text(rules)
    (tmp_path / "shop.yml").write_text(
        f"name: shop\nsource: {{url: postgresql://h/a, tables: [users]}}\nsinks: {{t: {{kind: stdout}}}}\n{pipeline}"
    )

    read = read_pipeline(tmp_path / "shop.yml")

    assert [rule.family for rule in read.modifiers] == ["transform"] * 4
    assert [str(one.table) for one in read.modifiers[3].options.tables] == [
        "public.users",
        "public.orders",
        "*.*",
    ]
