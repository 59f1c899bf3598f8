"""The page in a real browser: headless Chromium, driven by its WebDriver."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qsa_bench.reports import html
from tests.reports.campaigns import RESULTS, campaign

NEEDED = "apt-get install chromium chromium-driver"
ENTER, RIGHT, DOWN, TAB = "\ue007", "\ue014", "\ue015", "\ue004"


class Browser:
    """As much of WebDriver as a page's reader does: look, click, type."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"]
        wanted = {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{answer['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path) -> None:
        self._ask("POST", "/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def keys(self, text: str) -> None:
        presses = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        actions = {"actions": [{"type": "key", "id": "keyboard", "actions": presses}]}
        self._ask("POST", "/actions", actions)

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self._ask("POST", "/se/log", {"type": kind})  # type: ignore[no-any-return]

    def close(self) -> None:
        self._ask("DELETE", "")


@pytest.fixture(scope="module", name="browser")
def headless_browser() -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    assert driver is not None, f"chromedriver is not on the PATH: {NEEDED}"
    process = subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "successfully on port" in line)
        found = Browser(int(line.rstrip(".\n").rpartition(" ")[2]))
        yield found
        found.close()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(name="page")
def opened_page(browser: Browser, tmp_path: Path) -> Browser:
    path = tmp_path / "page.html"
    path.write_text(html.text(campaign(None)))
    browser.open(path)
    return browser


def shown(page: Browser, section: str) -> list[str]:
    """Return the ids of the mutants that a section lists."""
    script = "return [...document.querySelectorAll(arguments[0])].map(box => box.dataset.id)"
    return page.run(script, f"#{section} details[data-id]")  # type: ignore[no-any-return]


def choose(page: Browser, control: str, value: str) -> None:
    page.run(
        "const c = document.getElementById(arguments[0]); c.value = arguments[1];"
        "c.dispatchEvent(new Event('input', {bubbles: true}))",
        control,
        value,
    )


def test_it_opens_without_an_error_and_asks_the_network_for_nothing(page: Browser) -> None:
    assert shown(page, "mutants")[:2] == [RESULTS[3].mutant.id, RESULTS[8].mutant.id]
    assert [entry for entry in page.log("browser") if entry["level"] == "SEVERE"] == []
    asked = [json.loads(entry["message"])["message"] for entry in page.log("performance")]
    urls = {
        message["params"]["request"]["url"]
        for message in asked
        if message["method"] == "Network.requestWillBeSent"
    }
    assert [url for url in urls if not url.startswith("file:")] == []


def test_survivors_stand_first_and_what_is_left_out_is_none_of_them(page: Browser) -> None:
    survivors = shown(page, "survivors")
    assert survivors[:2] == [RESULTS[3].mutant.id, RESULTS[8].mutant.id]
    assert RESULTS[4].mutant.id not in survivors


def test_filters_narrow_every_part(page: Browser) -> None:
    choose(page, "by-outcome", "killed")
    assert shown(page, "mutants") == [RESULTS[0].mutant.id]
    assert shown(page, "survivors") == []
    assert page.run("return document.querySelectorAll('#matrix tbody tr').length") == 1
    assert page.run("return document.getElementById('shown').textContent") == "1 of 9 mutants"
    page.run("document.querySelector('#filters button[type=reset]').click()")
    choose(page, "by-text", "another by nvcc")
    assert shown(page, "mutants") == [RESULTS[6].mutant.id]


def test_the_matrix_is_walked_and_opened_by_keyboard(page: Browser) -> None:
    page.run("document.querySelector('#matrix td').focus()")
    page.keys(DOWN + RIGHT)
    at = "const a = document.activeElement; return [a.parentElement.rowIndex, a.cellIndex]"
    assert page.run(at) == [2, 2]
    page.keys(ENTER)
    assert page.run("return document.activeElement.tagName") == "SUMMARY"
    opened = (
        "return [...document.querySelectorAll('#mutants details[open]')].map(b => b.dataset.id)"
    )
    assert page.run(opened) == [RESULTS[8].mutant.id]


def test_every_control_is_reached_by_tab(page: Browser) -> None:
    reached = []
    for _ in range(14):
        page.keys(TAB)
        reached.append(page.run("return document.activeElement.id"))
    for control in ("theme", "by-stage", "by-outcome", "by-operator", "by-check", "by-text"):
        assert control in reached


def test_a_cells_heat_says_how_far_beyond_the_bound_it_was(page: Browser) -> None:
    cells = page.run(
        "return Object.fromEntries([...document.querySelectorAll('#matrix td')]"
        ".map(c => [c.getAttribute('aria-label'), c.className]))"
    )
    label = f"{RESULTS[0].mutant.id}, block-keys: killed: 3 of 40 cases, error over bound inf"
    assert cells[label] == "k3"
    near = f"{RESULTS[3].mutant.id}, block-keys: near miss in 40 cases, error over bound 0.5"
    assert cells[near] == "n"


def test_the_source_shows_mutants_in_place_and_their_diffs(page: Browser) -> None:
    button = "document.querySelectorAll('#sources .marks button')"
    assert page.run(f"return {button}.length") == 9
    page.run(f"{button}[3].click()")
    said = page.run("return document.querySelector('#sources .opened').textContent")
    assert RESULTS[3].mutant.id in said
    page.run("document.querySelector('#sources .opened details').open = true")
    diff = page.run(
        "return new Promise(done => setTimeout(() => "
        "done(document.querySelector('#sources .opened pre').textContent), 100))"
    )
    assert "+int line_4 = 5;" in diff


def test_light_and_dark_differ_and_both_can_be_read(page: Browser) -> None:
    colours = []
    for _ in range(2):
        page.run("document.getElementById('theme').click()")
        colours.append(
            page.run(
                "const s = getComputedStyle(document.body);"
                "return [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).map(Number))"
            )
        )
    (light, dark) = colours
    assert sum(light[0]) > sum(light[1]) + 400
    assert sum(dark[0]) + 400 < sum(dark[1])
