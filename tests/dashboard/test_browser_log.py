"""The log viewer in Chromium: a window on a log of any length."""

import re
import subprocess

import pytest
from playwright.sync_api import Page, expect

from orchestrator.models import JobState
from orchestrator.store.logs.lines import LineIndex
from orchestrator.store.logs.merged import MergedIndex
from tests.dashboard.conftest import settle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # WhiteNoise hands its files to Django as plain iterators.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
MANY = 1_000_000
# Each piece of a log comes twice: its first line alone, as from an older subscription, then all of it.
FIRST_LINE_BEFORE = """
globalThis.early = 0;
const add = WebSocket.prototype.addEventListener;
WebSocket.prototype.addEventListener = function (kind, listener, ...more) {
  if (kind !== "message") return add.call(this, kind, listener, ...more);
  return add.call(this, kind, (event) => {
    const frame = JSON.parse(event.data);
    if (frame.type === "chunk" && frame.data.lines > 1) {
      const text = frame.data.text.split("\\n")[0] + "\\n";
      early += 1;
      listener({ data: JSON.stringify({ ...frame, seq: frame.data.offset + text.length, data: { ...frame.data, text, lines: 1 } }) });
    }
    listener(event);
  }, ...more);
};
"""
COUNT_ASKED = """() => {
  globalThis.asked = 0;
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) { asked += text.includes('"op":"lines"'); return send.call(this, text); };
}"""
SWALLOW_ASKED = """() => {
  globalThis.asked = 0;
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (text) { if (text.includes('"op":"lines"')) asked += 1; else send.call(this, text); };
}"""


@pytest.fixture
def write_log(home, make_attempt):
    """A running job whose rank 0 has written ``text``; its attempt and the path of its log."""

    def write(text: str):
        attempt = make_attempt(state=JobState.RUNNING)
        folder = home.job(attempt.job_id).attempt(1)
        folder.logs.mkdir(parents=True)
        folder.log(0).write_text(text)
        LineIndex(folder.log(0), folder.log_index(0)).extend(0.0)
        return attempt, folder.log(0)

    return write


def numbers(page: Page) -> list[int]:
    return [int(text) for text in page.locator("#log .line-number").all_text_contents()]


def test_a_million_lines_are_a_window_that_jumps_and_searches_anywhere(open_page, ada, write_log):
    attempt, _ = write_log("".join(f"step {n} loss 0.5\n" for n in range(MANY - 1)) + "ERROR: it broke\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    log = page.locator("#log")

    expect(log.locator(".line").last).to_contain_text("ERROR: it broke")
    assert page.locator("#log .line").count() < 100

    log.evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")
    expect(page.locator("#log-follow")).not_to_be_checked()
    expect(log.locator(".line").nth(20)).to_contain_text(
        re.compile(r"^(49|50)\d{4}step (49|50)\d{4} loss 0.5")
    )

    page.locator("#log-search").fill("step 123456 ")
    page.keyboard.press("Enter")
    expect(page.locator("#log-hits")).to_have_text("1 of 1")
    expect(log.locator(".is-current")).to_contain_text("step 123456 loss")

    page.get_by_role("button", name="Errors").click()
    expect(page.locator("#log-hits")).to_have_text("1 of 1")
    expect(log.locator(".is-current.is-error")).to_contain_text("it broke")


def test_lines_that_the_limit_dropped_are_asked_for_once(open_page, ada, write_log):
    attempt, path = write_log("".join(f"{number:07}\n" for number in range(MANY // 2)))
    hole = ["fallocate", "-p", "-o", "1048576", "-l", "2097152", str(path)]
    if subprocess.run(hole, check=False).returncode:
        pytest.skip("this file system cannot punch holes")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    log = page.locator("#log")
    expect(log.locator(".line").last).to_contain_text("0499999")
    page.evaluate(COUNT_ASKED)

    log.evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")  # line 250,000 is in the hole
    page.wait_for_timeout(1_000)
    for _ in range(20):
        log.evaluate("log => { log.scrollTop += 1; }")
        page.wait_for_timeout(20)

    assert 1 <= page.evaluate("asked") <= 3


def test_lines_that_the_socket_keeps_to_itself_are_dots_until_rest_has_them(open_page, ada, write_log):
    attempt, _ = write_log("".join(f"line {number}\n" for number in range(5_000)))
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    log = page.locator("#log")
    expect(log.locator(".line").last).to_contain_text("line 4999")
    page.evaluate(SWALLOW_ASKED)

    log.evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")
    page.wait_for_function("() => document.querySelector('#log .line .quiet')?.textContent === '…'")
    expect(log.locator(".line").nth(20)).to_contain_text("line 25")

    assert page.evaluate("asked") >= 1


def test_scrolling_up_in_a_log_is_not_undone_by_new_lines(open_page, ada, write_log):
    attempt, path = write_log("".join(f"line {number}\n" for number in range(150)))
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    log = page.locator("#log")
    expect(log.locator(".line").last).to_have_text("150line 149")

    log.evaluate("log => { log.scrollTop = 100; }")
    expect(page.locator("#log-follow")).not_to_be_checked()
    with path.open("a") as file:
        file.write("one more\nand one\n")

    jump = page.get_by_role("button", name="2 new lines")
    expect(jump).to_be_visible()
    assert log.evaluate("log => log.scrollTop") == 100
    jump.click()
    expect(log.locator(".line").last).to_have_text("152and one")


def test_what_is_selected_in_a_log_stays_so_while_lines_arrive(open_page, ada, write_log):
    attempt, path = write_log("".join(f"line {number}\n" for number in range(500)))
    page = open_page(ada, f"/jobs/{attempt.job_id}#L200")
    row = page.locator("#log .is-linked")
    expect(row).to_contain_text("line 199")  # dots stand there until it comes
    settle(page)
    row.evaluate("row => getSelection().selectAllChildren(row.lastChild)")

    with path.open("a") as file:
        file.write("one more\nand one\n")
    expect(page.get_by_role("button", name="2 new lines")).to_be_visible()
    assert page.evaluate("String(getSelection())") == "line 199"


def test_b57_a_progress_bar_stays_one_line_and_a_line_in_pieces_becomes_whole(open_page, ada, write_log):
    attempt, path = write_log("begin\n 10%")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    last = page.locator("#log .line").last
    expect(last).to_have_text("2 10%")

    for text, shown in (
        ("\r 20%", "2 20%"),
        ("\r 30%", "2 30%"),
        (" done", "2 30% done"),
        ("\nnext\n", "3next"),
    ):
        with path.open("a") as file:
            file.write(text)
        expect(last).to_have_text(shown)
    assert numbers(page) == [1, 2, 3]


def test_f05_what_was_on_its_way_when_a_connection_was_lost_is_no_line_twice(
    server, open_page, ada, write_log
):
    attempt, path = write_log("".join(f"line {number}\n" for number in range(150)))
    page = open_page(ada, "/account")
    page.add_init_script(FIRST_LINE_BEFORE)
    page.goto(f"{server.url}/jobs/{attempt.job_id}")
    last = page.locator("#log .line").last
    expect(last).to_have_text("150line 149")

    for first in (150, 160, 170):
        with path.open("a") as file:
            file.write("".join(f"line {number}\n" for number in range(first, first + 10)))
        expect(last).to_have_text(f"{first + 10}line {first + 9}")
    assert page.evaluate("early") > 0


def test_a_link_leads_to_its_lines_and_long_lines_open(open_page, ada, write_log):
    lines = [f"line {number}\n" for number in range(5000)]
    lines[2999] = "x" * 9000 + "\n"
    attempt, _ = write_log("".join(lines))
    page = open_page(ada, f"/jobs/{attempt.job_id}#L3000-L3002")
    log = page.locator("#log")

    expect(log.locator(".is-linked")).to_have_count(3)
    expect(page.get_by_role("button", name="Copy lines 3,000 to 3,002")).to_be_visible()
    expect(page.locator("#log-follow")).not_to_be_checked()
    page.get_by_role("button", name="show all 9,000 characters").click()
    expect(page.get_by_role("button", name="show all")).to_have_count(0)
    assert len(log.locator(".is-linked").first.inner_text()) > 9000
    for line in (0, 2999):  # away and back again
        log.evaluate("(log, line) => { log.scrollTop = line * 18; }", line)
        expect(log.locator(f'[data-line="{line}"]')).to_have_count(1)
    assert len(log.locator(".is-linked").first.inner_text()) > 9000


def test_a_line_without_end_is_followed_in_parts_with_the_servers_numbers(open_page, ada, write_log):
    attempt, log = write_log("start\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    rows = page.locator("#log .line")
    expect(rows.last).to_contain_text("start")

    with log.open("a") as file:
        file.write("x" * 20_000)
    expect(page.locator("#log-status")).to_contain_text("3 lines")
    with log.open("a") as file:
        file.write("y\nthe end\n")
    expect(rows.last).to_contain_text("4the end")


def test_colours_of_a_terminal_last_until_they_are_ended(open_page, ada, write_log):
    marks = ["", "1;31", "22", "0;4;96", "24;39", "38;5;2", "48;2;1;2;3", "49;7", "0;38;5;208", "0;43", ""]
    attempt, _ = write_log("".join(f"\x1b[{mark}m{part}," for part, mark in enumerate(marks)) + "\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    content = page.locator("#log .line > span")
    expect(content).to_have_text("0,1,2,3,4,5,6,7,8,9,10,")

    styled = content.locator("span").evaluate_all(
        "all => all.map(one => [one.textContent, one.className, one.style.color, one.style.background])"
    )
    assert styled == [
        ["1,", "ansi-bold ansi-1", "", ""],
        ["2,", "ansi-1", "", ""],
        ["3,", "ansi-underline ansi-6", "", ""],
        ["5,", "ansi-2", "", ""],
        ["6,", "ansi-2", "", "rgb(1, 2, 3)"],
        ["7,", "ansi-inverse ansi-2", "", ""],
        ["8,", "", "color-mix(in oklab, rgb(255 135 0) 65%, var(--text))", ""],
        ["9,", "ansi-on-3", "", ""],
    ]


def test_the_lines_of_all_ranks_stand_in_the_order_they_were_seen(
    home, open_page, ada, make_attempt, make_device
):
    attempt = make_attempt(state=JobState.RUNNING, spec={"gpus": 2}, devices=[make_device(0), make_device(1)])
    folder = home.job(attempt.job_id).attempt(1)
    folder.logs.mkdir(parents=True)
    agent = MergedIndex(folder.merged_index)
    lines = {0: 0, 1: 0}

    def write(rank: int, text: str) -> None:
        with folder.log(rank).open("a") as file:
            file.write(text)
        lines[rank] += text.count("\n")
        agent.note(lines, 1_795_209_600.0, at_end=True)

    for number in range(300):
        write(number % 2, f"step {number}\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}")
    page.get_by_label("rank", exact=True).select_option("all")
    rows = page.locator(".log .line")
    expect(rows.last).to_contain_text("r1step 299")
    expect(page.locator("#log-download")).to_be_hidden()

    write(0, "ERROR the end\n")
    expect(rows.last).to_contain_text("r0ERROR the end")
    page.locator("#log-search").fill("step 10")
    page.keyboard.press("Enter")
    expect(page.locator("#log-hits")).to_contain_text("1 of 11")
    expect(page.locator(".line.is-current")).to_contain_text("r0step 10")
    page.get_by_label("rank", exact=True).select_option("1")
    expect(page.locator(".log .line-rank")).to_have_count(0)


def test_groups_that_were_closed_are_folded_and_open_for_what_is_looked_for(open_page, ada, write_log):
    lines = ["before", "::group::Install", *(f"package {n}" for n in range(500)), "::endgroup::", "between"]
    lines += ["::group::", "alone", "::endgroup::", "::group::Train", "epoch 1"]
    attempt, path = write_log("\n".join(lines) + "\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}/log")
    log = page.locator("#log")

    install = log.get_by_role("button", name="Install")
    expect(install).to_have_attribute("aria-expanded", "false")
    expect(log.locator(".line.is-group").first).to_contain_text("501 lines")
    expect(log.locator(".line")).to_contain_text(
        ["before", "Install", "between", "group", "Train", "epoch 1"]
    )
    assert numbers(page) == [1, 2, 504, 505, 508, 509]
    assert log.get_by_role("button", name="Train").count() == 0, "a group without an end hides nothing"

    install.press("Enter")
    expect(install).to_have_attribute("aria-expanded", "true")
    expect(install).to_be_focused()
    expect(log.locator(".line").nth(2)).to_contain_text("package 0")
    install.press("Enter")
    expect(log.locator(".line").nth(2)).to_contain_text("between")

    page.locator("#log-search").fill("package 321")
    page.keyboard.press("Enter")
    expect(log.locator(".is-current")).to_contain_text("package 321")
    expect(page.get_by_role("button", name="Open all groups")).to_be_visible()
    page.get_by_role("button", name="Open all groups").click()
    expect(page.get_by_role("button", name="Fold all groups")).to_be_visible()

    page.locator("#log-follow").check()
    with path.open("a") as file:
        file.write("epoch 2\n::endgroup::\nafter\n::group::Never closed\nstill here\n")
    expect(log.locator(".line").last).to_contain_text("still here")
    train = log.get_by_role("button", name="Train")
    expect(train).to_have_attribute("aria-expanded", "true")
    expect(log.locator(".line", has_text="epoch 2")).to_be_visible()


def test_a_million_lines_fold_and_each_row_has_its_line(open_page, ada, write_log):
    groups, inside = 2000, 500
    text = "".join(
        f"::group::part {n}\n" + "".join(f"{n}/{k}\n" for k in range(inside - 2)) + "::endgroup::\n"
        for n in range(groups)
    )
    attempt, _ = write_log(text + "the end\n")
    page = open_page(ada, f"/jobs/{attempt.job_id}/log")
    log = page.locator("#log")

    expect(log.get_by_role("button", name=f"part {groups - 1}")).to_have_attribute("aria-expanded", "false")
    log.evaluate("log => { log.scrollTop = 0; }")
    log.get_by_role("button", name="part 7", exact=True).click()
    expect(log.locator(".line").nth(8)).to_contain_text("7/0")
    assert numbers(page)[6:10] == [6 * inside + 1, 7 * inside + 1, 7 * inside + 2, 7 * inside + 3]
    page.evaluate("location.hash = '#L123456'")
    expect(log.locator(".is-linked")).to_have_text("123456246/454")


def test_addresses_in_a_log_can_be_followed_and_nothing_else_becomes_one(open_page, ada, write_log):
    attempt, _ = write_log(
        "see \x1b[4mhttps://example.org/run/7?a=1&b=2\x1b[0m, (http://example.org/x).\n"
        "javascript:alert(1) ftp://example.org file:///etc/passwd data:text/html,x <a href=x>\n"
    )
    page = open_page(ada, f"/jobs/{attempt.job_id}/log")
    links = page.locator("#log .line a:not(.line-number)")

    expect(links).to_have_text(["https://example.org/run/7?a=1&b=2", "http://example.org/x"])
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer nofollow"}
    assert links.first.get_attribute("target") == "_blank"
    assert page.locator("#log .ansi-underline a").count() == 1
