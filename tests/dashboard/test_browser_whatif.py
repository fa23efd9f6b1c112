"""The form of what-ifs in a real browser."""

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
# How far apart the inputs of each row of fields stand, in pixels.
SPREADS = """
() => {
  const rows = {};
  for (const field of document.querySelectorAll("main .fields > .field")) {
    const input = field.querySelector("input, select").getBoundingClientRect();
    (rows[Math.round(field.getBoundingClientRect().top)] ??= []).push(input.top);
  }
  return Object.values(rows).map((tops) => Math.max(...tops) - Math.min(...tops));
}
"""


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_fields_of_a_row_stand_on_one_line_though_a_label_has_two(
    open_page, server, root, make_device, language
):
    make_device(0)
    page = open_page(root, "/keys")
    page.context.add_cookies([{"name": "berth_language", "value": language, "url": server.url}])
    page.goto(f"{server.url}/usage/what-if")

    for width in (390, 540, 768, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        assert max(page.evaluate(SPREADS)) < 1, f"at {width} px"
