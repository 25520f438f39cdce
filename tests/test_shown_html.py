"""HTML tables of notebooks: small, escaped, aligned."""

from __future__ import annotations

from eoslog.shown_html import MOST_ROWS, html_table


def test_texts_are_escaped_and_numbers_aligned():
    text = html_table("<b>", ("a&b",), [("<script>", 1234567, None)], 1)
    assert "<b>" not in text and "<script>" not in text
    assert "&lt;script&gt;" in text and "a&amp;b" in text
    assert "<td style='text-align:right'>1,234,567</td>" in text


def test_a_table_has_few_rows_and_short_texts():
    taken = []

    def rows():
        for number in range(10_000):
            taken.append(number)
            yield ("x" * 10_000, number)

    text = html_table("many", ("text", "number"), rows(), 10_000)
    assert text.count("<tr>") == MOST_ROWS + 2
    assert "9,980 more" in text
    assert len(text) < 800 * MOST_ROWS
    assert len(taken) <= MOST_ROWS


def test_a_table_without_rows_has_no_head():
    assert "<th>" not in html_table("none", ("a",), [], 0)


def test_a_text_that_is_not_utf8_is_shown_with_escapes():
    assert "\\udcff" in html_table("\udcff", (), [], 0)
