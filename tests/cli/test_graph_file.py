"""Reading graph documents: JSON, YAML, and what must not be read."""

from __future__ import annotations

import click
import pytest

from myrmidon.cli.graph_file import parse_parameters, read_document


def read(tmp_path, text: str, name: str = "g.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return read_document(str(path))


def refused(tmp_path, text: str, name: str = "g.yaml") -> str:
    with pytest.raises(click.UsageError) as error:
        read(tmp_path, text, name)
    return error.value.format_message()


def test_json_and_yaml_give_the_same_document(tmp_path):
    assert read(tmp_path, '{"tasks": {"a": {"n": 1}}}', "g.json") == read(tmp_path, "tasks: {a: {n: 1}}")


def test_anchors_are_replaced_and_dates_and_keys_are_text(tmp_path):
    text = "x: &x {a: 1}\ny: *x\nz: {<<: *x, b: 2}\nwhen: 2026-11-18T12:00:00Z\n7: seven\n"
    found = read(tmp_path, text)
    assert (found["y"], found["z"], found["7"]) == ({"a": 1}, {"a": 1, "b": 2}, "seven")
    assert found["when"].startswith("2026-11-18T12:00:00")


def test_a_tag_that_would_make_an_object_is_refused(tmp_path):
    marker = tmp_path / "made"
    assert "not valid YAML" in refused(tmp_path, f"a: !!python/object/apply:os.mkdir ['{marker}']\n")
    assert not marker.exists()


def test_a_document_that_explodes_by_anchors_is_refused(tmp_path):
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "values after anchors" in refused(tmp_path, "\n".join(lines))


def test_an_anchor_that_contains_itself_is_refused(tmp_path):
    assert "contains itself" in refused(tmp_path, "a: &a [*a]\n")


@pytest.mark.parametrize("text", ["- a\n", "7\n", ""])
def test_what_is_no_object_is_refused(tmp_path, text):
    assert "graph document is an object" in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("g.yaml", "tasks:\n  a: {task: 1}\n  b: {}\n  a: {task: 2}\n"),
        ("g.json", '{"tasks": {"a": {"task": 1}, "b": {}, "a": {"task": 2}}}'),
        ("stdin-like", '{"tasks": {"a": {"task": 1}, "a": {"task": 2}}}'),
    ],
)
def test_a_label_that_occurs_twice_is_refused(tmp_path, name, text):
    assert "the key 'a' is repeated" in refused(tmp_path, text, name)


def test_the_line_of_a_repeated_key_is_named(tmp_path):
    assert "in line 4" in refused(tmp_path, "tasks:\n  a: 1\n  b: 1\n  a: 2\n")


def test_merged_keys_may_be_overridden_also_through_several_merges(tmp_path):
    text = "x: &x {a: 1, b: 1}\ny: &y {<<: *x, a: 2}\nz: {<<: *y, a: 3}\nl: [*y, *y]\n"
    found = read(tmp_path, text)
    assert (found["y"], found["z"]) == ({"a": 2, "b": 1}, {"a": 3, "b": 1})
    assert found["l"] == [{"a": 2, "b": 1}] * 2


def test_a_tab_is_named(tmp_path):
    assert refused(tmp_path, "name: x\ntasks:\n\ta: 1\n").endswith(
        "not valid YAML: line 3 is indented with a tab; use spaces."
    )


def test_an_empty_file_is_called_empty(tmp_path):
    assert refused(tmp_path, "").endswith("not an empty file.")


def test_a_missing_file_and_broken_texts_are_named(tmp_path):
    assert "not valid JSON" in refused(tmp_path, '{"a": ', "g.json")
    assert "not valid YAML" in refused(tmp_path, "a: [", "g.yaml")
    with pytest.raises(click.UsageError, match="No such file"):
        read_document(str(tmp_path / "none.yaml"))


def test_parameters_are_json_where_they_can_be(tmp_path):
    given = [("n", "3"), ("s", "three"), ("l", "[1]"), ("t", "true"), ("q", '"3"')]
    assert parse_parameters(given) == {"n": 3, "s": "three", "l": [1], "t": True, "q": "3"}
