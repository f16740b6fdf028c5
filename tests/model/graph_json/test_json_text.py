"""JSON is parsed as it is written, or refused in one line with the place."""

from __future__ import annotations

import re

import pytest

from relayout.model.graph_json.json_text import parse_json

# Time and memory grow with the text, not with its square.
MANY = "{" + "".join(f'"{number}": 0, ' for number in range(200_000)) + '"199999": 0}'
LONG = "k" * 100_000
BEHIND = f'{{"{LONG}": [{"0, " * 100_000}{{"a": 0, "a": 0}}]}}'


def test_json_is_parsed() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, {"b": true}]}') == {"a": [1, 2.5, None, {"b": True}]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1, "a": 1}', 'the key "a" twice'),
        ('{"nodes": [{"op": "Relu"}, {"op": "Relu", "op": "Neg"}]}', 'the key "op" twice in nodes[1]'),
        ('[[{"a": {"b": 1, "b": 2}}]]', 'the key "b" twice in [0][0].a'),
        # The first value of an outer repeated key is gone, and the inner one with it.
        ('{"a": {"b": 1, "b": 2}, "a": 1}', 'the key "a" twice'),
        ('{"a": [{"": [1, {"b": 1, "b": 1}]}]}', 'the key "b" twice in a[0].[1]'),
        ('{"a": {"x": 1, "x": 1}, "b": {"y": 1, "y": 1}}', 'the key "x" twice in a'),
        ('{"\\u0061": 1, "a": 1}', 'the key "a" twice'),
        ('{"\\n": 1, "\\n": 1}', 'the key "\\n" twice'),
        ('{"a": NaN}', "NaN is not a JSON number; graph JSON has it as a string, in a typed attribute"),
        pytest.param(MANY, 'the key "199999" twice', id="many keys"),
        pytest.param(BEHIND, f'the key "a" twice in {LONG}[100000]', id="many values behind a long key"),
        pytest.param("[" * 100_000, "too many levels of nesting", id="nesting"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_a_fault_is_named_with_its_place(text: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(found)}$"):
        parse_json(text)


def test_a_number_of_thousands_of_digits_is_told_in_the_words_of_json() -> None:
    with pytest.raises(ValueError, match=r"^a number of more than \d+ digits$"):
        parse_json("[" + "1" * 6000 + "]")
