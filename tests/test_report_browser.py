"""The page in a real browser: it draws, it fits, it is quiet, it asks no one for anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramlet
from oracles_browser import MISSING, Browser
from oracles_report import sample_line, step_line, usual_lines, write_run
from oracles_training import make_data
from ramlet.reporting.serve import PageServer

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

HOSTILE = "</pre></script><script>document.title = 'taken'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
SIZES = """
return [...document.querySelectorAll("svg")].map((svg) => {
  const box = svg.getBoundingClientRect();
  return [svg.querySelector("title")?.textContent ?? svg.getAttribute("aria-label"), box.width, box.height];
});
"""
OUTSIDE = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("main *")]
  .filter((each) => !each.closest("pre, .table") && each.getBoundingClientRect().right > wide + 0.5)
  .map((each) => each.outerHTML.slice(0, 120));
"""
SMALLEST = """
return Math.min(...[...document.querySelectorAll("main *")]
  .filter((each) => each.children.length === 0 && each.textContent.trim() && !each.closest("svg"))
  .map((each) => parseFloat(getComputedStyle(each).fontSize)));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of chart there is, and a sample that would like to be a script."""
    folder = tmp_path_factory.mktemp("page")
    data = make_data(folder, lines=300)
    lines = [*usual_lines(400), sample_line(400, HOSTILE), sample_line(401, "averylongword" * 40)]
    run = write_run(folder / "run", lines, finished=True)
    points = '[{"label": "untrained", "step": 0, "value": 3.5}, {"label": "trained", "step": 400, "value": 61}]'
    (run / "measures.json").write_text(f'{{"measures": [{{"name": "parses", "unit": "%", "points": {points}}}]}}')
    return ramlet.report([run, data])


@pytest.mark.parametrize("width", [320, 375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_drawn_and_fits(browser: Browser, page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    browser.size(width)
    browser.scheme(scheme)
    browser.open(page.as_uri())
    charts = browser.run(SIZES)
    assert len(charts) >= 12
    assert [chart for chart in charts if chart[1] < 90 or chart[2] < 15 or not chart[0]] == []
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run(OUTSIDE) == []
    assert browser.run(SMALLEST) >= 11
    assert browser.screenshot(tmp_path / "page.png").startswith(b"\x89PNG")
    assert browser.logged() == []


def test_it_is_quiet_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    browser.open("about:blank")
    browser.logged()
    browser.requested()
    browser.open(page.as_uri())
    browser.run("return document.readyState")
    assert browser.logged() == []
    assert [address for address in browser.requested() if not address.startswith("data:")] == [page.as_uri()]
    assert browser.run("return document.title") == "run - ramlet report"
    assert browser.run("return document.images.length") == 0


def test_light_and_dark_differ(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.size(1280)
    found = {}
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(page.as_uri())
        colours = browser.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
        found[scheme] = (colours, browser.screenshot(tmp_path / f"{scheme}.png", whole=False))
    assert _brightness(found["light"][0][0]) > 200 > 60 > _brightness(found["dark"][0][0])
    assert found["light"][1] != found["dark"][1]


def _brightness(colour: str) -> float:
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(parts) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(browser: Browser, page: Path, scheme: str) -> None:
    """WCAG's 4.5 for every colour that text has on the page."""
    browser.scheme(scheme)
    browser.open(page.as_uri())
    worst = browser.run(
        """
        const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = (text) => {
          const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
          return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
        };
        const ground = (each) => {
          for (; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if (!/, 0\\)$/.test(colour)) return colour;
          }
        };
        let worst = [99, ""];
        for (const each of document.querySelectorAll("main *")) {
          if (each.closest("svg") || !each.textContent.trim()) continue;
          const a = light(getComputedStyle(each).color), b = light(ground(each));
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (ratio < worst[0]) worst = [ratio, each.outerHTML.slice(0, 80)];
        }
        return worst;
        """
    )
    assert worst[0] >= 4.5, worst


def test_without_scripts_it_is_complete(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.size(1280)
    browser.scheme("light")
    pictures = []
    for on in (True, False):
        browser.scripts(on)
        browser.open(page.as_uri())
        pictures.append(browser.screenshot(tmp_path / f"{on}.png"))
    browser.scripts(True)
    assert pictures[0] == pictures[1]


def test_the_value_under_the_pointer_is_told(browser: Browser, page: Path) -> None:
    browser.size(1280)
    browser.open(page.as_uri())
    told = browser.run(
        """
        const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
        const place = { bubbles: true, clientX: box.right - 5, clientY: box.top + 9 };
        plot.dispatchEvent(new PointerEvent("pointermove", place));
        return document.querySelector(".tip").textContent.split("\\n");
        """
    )
    assert told[0] == "step 400"
    assert [line.split("  ")[0] for line in told[1:]] == ["train", "val", "law"]
    assert float(told[2].split("  ")[1]) == pytest.approx(4.5, abs=0.01)
    assert browser.logged() == []


def test_a_live_page_goes_on_by_itself_and_stays_where_it_is(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    browser.size(1280, 500)
    with PageServer([run]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            browser.open(server.address)
            browser.logged()
            browser.run("scrollTo(0, 700); document.querySelector('details[data-key=sample-5]').open = true")
            with open(run / "metrics.jsonl", "a") as file:
                file.write(step_line(21, 3.5))
            for _ in range(200):
                if "21 of 100 steps" in browser.run("return document.body.innerText"):
                    break
                time.sleep(0.1)
            assert "21 of 100 steps" in browser.run("return document.body.innerText")
            assert browser.run("return scrollY") == 700
            assert browser.run("return document.querySelector('details[data-key=sample-5]').open")
            assert browser.logged() == []
        finally:
            browser.open("about:blank")
            server.shutdown()
            thread.join()
