"""Senses as pictures and as a page: all that is drawn is there, and nothing of the text runs."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from relmo.analysis.occurrences import find_occurrences
from relmo.analysis.page import MARKS, look, render_page
from relmo.analysis.picture import check_picture, write_picture
from relmo.analysis.senses import Sense, Senses
from relmo.errors import ConfigError, DataError, RelmoWarning
from relmo.text.tokenize import split_words

HOSTILE = (
    '</title><script>alert("$x$")</script><img src=http://example.org/a.png> & a bank \x1b[31m'
)


def senses_of(sentences, word, n_groups=2):
    occurrences, n = find_occurrences(sentences, [word], split_words)
    groups = [range(i, n, n_groups) for i in range(n_groups)]
    points = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    senses = tuple(Sense(tuple(g), ("river", "<b>", "$5")) for g in groups)
    return Senses((word,), n, tuple(occurrences), senses, points)


@pytest.fixture
def banks():
    return senses_of(
        [HOSTILE, *(f"{i} 𝄞 by the bank it was {i} o'clock" for i in range(7))], "bank"
    )


class Page(HTMLParser):
    """Elements of a page, and the text in each kind."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


def test_every_occurrence_is_a_point_with_its_sentence(banks):
    page = Page(render_page(banks))
    points = [attrs for tag, attrs in page.tags if tag == "path" and "data-word" in attrs]
    titles = page.texts["title"][1:]  # the first is the page's
    assert len(points) == len(titles) == 8
    for attrs, title in zip(points, titles, strict=True):
        start, end = map(int, attrs["data-word"].split())
        as_javascript = title.encode("utf-16-le")
        assert as_javascript[2 * start : 2 * end].decode("utf-16-le") == "[bank]"


def test_text_of_the_corpus_stays_text(banks):
    html = render_page(banks)
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert "\x1b" not in html
    assert any("<script>alert" in title for title in page.texts["title"])
    assert not [v for _, attrs in page.tags for v in attrs.values() if v and "//" in v]


def test_only_the_pages_own_script_may_run(banks):
    page = Page(render_page(banks))
    (policy,) = (a["content"] for tag, a in page.tags if "http-equiv" in a)
    (script,) = page.texts["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" == policy


def test_every_group_looks_different():
    looks = [look(number) for number in range(len(MARKS) ** 2)]
    assert len(set(looks)) == len(looks)
    assert len(set(MARKS)) == len(MARKS)


@pytest.mark.slow
def test_a_drawing(banks, tmp_path):
    write_picture(banks, tmp_path / "bank.svg")
    first = (tmp_path / "bank.svg").read_bytes()
    text = "".join(ElementTree.fromstring(first).itertext())
    assert "8 occurrences in 2 groups" in text
    assert "river, <b>, $5" in text
    assert "[bank]" in text
    write_picture(banks, tmp_path / "bank.svg")
    assert (tmp_path / "bank.svg").read_bytes() == first


def test_endings_and_places_are_checked_before_the_work(tmp_path):
    with pytest.raises(ConfigError, match=r"bank.gif must end in one of .png, .svg, .html"):
        check_picture(tmp_path / "bank.gif")
    with pytest.raises(DataError, match="there is no directory"):
        check_picture(tmp_path / "nowhere" / "bank.png")


def test_without_matplotlib_a_page_can_be_written(banks, tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'relmo\[senses\]'"):
        check_picture(tmp_path / "bank.png")
    write_picture(banks, tmp_path / "bank.html")
    assert (tmp_path / "bank.html").read_text(encoding="utf-8") == render_page(banks)


# ---- scripts that the usual font has not --------------------------------------------------------

RARE = "\U0001b170"  # Nushu: a script that few fonts have


def build_font(path, characters):
    """A font of boxes for these characters."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 500), (500, 500), (500, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", *(f"u{ord(c):x}" for c in characters)]
    font = FontBuilder(1000)
    font.setupGlyphOrder(names)
    font.setupCharacterMap({ord(c): name for c, name in zip(characters, names[1:], strict=True)})
    font.setupGlyf(dict.fromkeys(names, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Rare", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


@pytest.fixture
def fonts(monkeypatch):
    """The fonts that matplotlib brings, whatever else this machine has."""
    from matplotlib import font_manager

    own = [f for f in font_manager.fontManager.ttflist if "mpl-data" in f.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    font_manager.fontManager._findfont_cached.cache_clear()
    yield font_manager.fontManager
    font_manager.fontManager._findfont_cached.cache_clear()


@pytest.mark.slow
def test_a_font_is_found_for_the_script(fonts, tmp_path):
    rare = senses_of([f"{i} {RARE} word" for i in range(6)], "word")
    with pytest.warns(RelmoWarning, match=f"No font that is installed has the characters {RARE}"):
        write_picture(rare, tmp_path / "without.png")
    build_font(tmp_path / "rare.ttf", RARE)
    fonts.addfont(tmp_path / "rare.ttf")
    write_picture(rare, tmp_path / "with.png")  # a warning would be an error
    png = (tmp_path / "with.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == 1920  # a slide's width
    assert png != (tmp_path / "without.png").read_bytes()


# ---- in a browser -------------------------------------------------------------------------------

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SHOWS_A_POINT = """
<script>
addEventListener("load", () => {
  const points = document.querySelectorAll("#points path");
  points[0].focus();
  points[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  document.body.dataset.focused = [...points].indexOf(document.activeElement);
  document.body.dataset.width = points[0].getBoundingClientRect().width;
});
</script>
"""


def browse(page, folder, *flags):
    run = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    run += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*run, *flags, page.as_uri()],
        **{
            "capture_output": True,
            "text": True,
            "timeout": 120,
            "env": os.environ | {"HOME": str(folder)},
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="there is no chromium on this machine")
def test_the_page_in_a_browser(banks, tmp_path):
    html = render_page(banks)
    assert "http-equiv" in html
    page = Path(tmp_path, "page.html")
    # With a second script, to press a key: so without the policy that would not let it run.
    without_policy = re.sub(r"<meta http-equiv.*>", "", html)
    page.write_text(without_policy.replace("</body>", f"{SHOWS_A_POINT}</body>"), encoding="utf-8")
    shown = browse(page, tmp_path, "--dump-dom")
    assert 'data-focused="1"' in shown
    assert float(re.search(r'data-width="([\d.]+)"', shown)[1]) > 4
    assert re.search(r'id="shown"[^>]*>\d 𝄞 by the <mark>bank</mark> it was \d o\'clock', shown)

    page.write_text(html, encoding="utf-8")
    shown = browse(page, tmp_path, "--dump-dom")
    assert len(re.findall(r"<path [^>]*tabindex=", shown)) == 8  # its own script has run
    page.write_text(html.replace("</body>", f"{SHOWS_A_POINT}</body>"), encoding="utf-8")
    assert "data-focused" not in browse(page, tmp_path, "--dump-dom")  # and no other runs
