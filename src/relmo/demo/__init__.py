"""The first five minutes: what a biLM knows, in a terminal, every number computed on the spot.

The sentences are English. A part explains itself in a line or two, shows what the model says, and
ends with the command that does the same with a reader's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from textwrap import wrap

import numpy as np
from rich.text import Text

from relmo import __version__
from relmo.demo.chart import blocks_for, draw_chart
from relmo.demo.live import read_manual, train_live
from relmo.errors import FormatError
from relmo.inference.model import Model, load
from relmo.inference.scoring import least_expected
from relmo.inference.substitutes import find_substitutes
from relmo.text.marks import parse_marked
from relmo.text.tokenize import build_tokenizer
from relmo.vectors.corpus_index import index_sentences, nearest_occurrences

WIDTH = 80  # columns
DEFAULT = "en"  # what every command takes unless it is told -m
TOKENIZER = "words"  # the sentences are English, whatever the model's own is
tokenize = build_tokenizer(TOKENIZER)

MEANINGS = {
    "a": "She gave him a [present] on his birthday.",
    "b": "He thanked his uncle for the [present].",
    "c": "At the [present] time nobody lives there.",
}
IN_CONTEXT = (
    "He wrote the letter with his [left] hand.",
    "She [left] the town and never came back.",
    "We had no food [left] when the winter came.",
)
TO_REPLACE = {
    "a": "They [walked] slowly along the road to the village.",
    "b": "It was a [dark] and stormy night.",
}
WITH_A_MISTAKE = (
    "She looked out of the potato and saw him coming up the road.",
    "He sat down at the table and wrote a long river to his mother.",
    "My father was born in a small onion near the sea.",
)
N_NEAREST, N_SUBSTITUTES = 3, 5


def tell(model: str, *, seconds: float, seed: int, encoding: str) -> Iterator[Text]:
    """The lines of the demonstration, each as soon as it is known.

    Args:
        model: as for `relmo.load`.
        seconds: how long to train; 0 leaves that out.
        seed: where the training's random numbers start.
        encoding: what the lines will be written in.
    """
    yield from _paragraph(f"relmo {__version__}. Every number is computed now.")
    yield from _tell_what_it_knows(model)
    if seconds:
        yield from _tell_training(seconds, seed, encoding)
    yield from _tell_what_next(model)


def _tell_what_it_knows(model: str) -> Iterator[Text]:
    loaded = load(model, tokenizer=TOKENIZER)
    yield from _paragraph(
        f"The model is {model}. The sentences are English: a model of another language can make "
        "nothing of them."
        if model != DEFAULT
        else "The model is en, which comes with relmo."
    )
    yield from _tell_meanings(loaded, model)
    yield from _tell_occurrences(loaded, model)
    try:
        loaded.scoring()
        without = ""
    except FormatError as error:  # it has no softmax
        without = str(error)
    yield from _title("3. Words that fit", "What could stand there instead, by what is around it:")
    yield from _paragraph(without) if without else _substitutes(loaded)
    yield from _command("relmo substitutes", f'"{TO_REPLACE["a"]}"', _model_option(model))
    yield from _title("4. Words that do not", "The word that the model expects least, marked:")
    yield from _paragraph(without) if without else _least_expected(loaded)
    yield from _command("relmo score", "text.txt", _model_option(model), "--least 1")


def _tell_meanings(loaded: Model, name: str) -> Iterator[Text]:
    yield from _title(
        "1. One word, two meanings",
        "A word has a vector in every layer. Layer 0 knows the word alone; the others know it in "
        "its sentence, and put like meanings close together (1 is the same).",
    )
    marked = [parse_marked(text, tokenize) for text in MEANINGS.values()]
    vectors = loaded.embed([m.tokens for m in marked], layers="all")
    one, same, other = (v[:, m.place] for v, m in zip(vectors, marked, strict=True))  # (L+1, 2P)
    near, far = _cosines(one, same), _cosines(one, other)
    yield from _labelled(MEANINGS)
    yield Text(f"\n{'a and b':>17}   a and c")
    for layer, (b, c) in enumerate(zip(near, far, strict=True)):
        yield Text(f"  layer {layer}   {b:5.3f}     {c:5.3f}")
    told = [f"layer {layer}" for layer, b in enumerate(near) if layer and b > far[layer]]
    yield Text(f"\n  The two meanings are told apart by {' and '.join(told) or 'no layer'}.")
    options = ("-o vectors.hdf5", "--layers all")
    yield from _command("relmo embed", "text.txt", _model_option(name), *options)


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray((one * other).sum(axis=-1) / lengths)


def _tell_occurrences(loaded: Model, name: str) -> Iterator[Text]:
    sentences = read_sentences()
    yield from _title(
        "2. The same word elsewhere",
        f"In a text of {len(sentences)} sentences, which words are nearest to the marked one?",
    )
    tokens = {s: tokenize(s) for s in sentences}
    texts = {tuple(token.text for token in found): s for s, found in tokens.items()}
    with TemporaryDirectory(prefix="relmo-demo-") as folder:
        index = index_sentences(sentences, Path(folder, "index"), loaded)
        for query in IN_CONTEXT:
            yield _marked(f"  {query}")
            marked = parse_marked(query, tokenize)
            for hit in nearest_occurrences(index, loaded, marked, N_NEAREST):
                text = texts[hit.tokens]
                _, start, end = tokens[text][hit.place]
                yield _marked(f"    {hit.score:.3f}  {text[:start]}[{text[start:end]}]{text[end:]}")
    option = _model_option(name)
    yield from _command("relmo neighbours", f'"{IN_CONTEXT[0]}"', option, "--corpus novels/")


def read_sentences() -> list[str]:
    """The text that comes with the demonstration: common words in several meanings."""
    text = (resources.files("relmo.demo") / "sentences.txt").read_text(encoding="utf-8")
    return text.splitlines()


def _substitutes(loaded: Model) -> Iterator[Text]:
    columns = []
    for text in TO_REPLACE.values():
        marked = parse_marked(text, tokenize)
        columns.append(find_substitutes(loaded, marked, N_SUBSTITUTES))
    yield from _labelled(TO_REPLACE)
    yield Text("\n  " + "".join(f"{label:<30}" for label in TO_REPLACE).rstrip())
    for row in zip(*columns, strict=True):
        yield Text("  " + "".join(f"{s.word:<18.17}{s.share:5.1%}{'':7}" for s in row).rstrip())


def _least_expected(loaded: Model) -> Iterator[Text]:
    for text, scored in zip(WITH_A_MISTAKE, loaded.score(WITH_A_MISTAKE, fit=True), strict=True):
        (place,) = least_expected(scored, 1)
        _, start, end = tokenize(text)[place]
        yield _marked(f"  {text[:start]}[{text[start:end]}]{text[end:]}")


def _tell_training(seconds: float, seed: int, encoding: str) -> Iterator[Text]:
    manual = read_manual()
    n_words = sum(len(paragraph.split()) for paragraph in manual)
    yield from _title(
        "5. Learning, live",
        f"A tiny model reads Python's own manual ({n_words:,} words) for {seconds:g} seconds. The "
        "chart shows its perplexity on held-out text: lower is better.",
    )
    run = train_live(manual, seconds, seed)
    yield from map(Text, draw_chart(run.curve, blocks_for(encoding)))
    before, after = run.curve[0][1], run.curve[-1][1]
    yield Text(
        f"\n  Perplexity {before:,.0f} at the start, {after:,.0f} at the end; "
        f"{run.words_per_second:,.0f} words per second."
    )
    yield from _command("relmo pretrain", "novels/", "-o my-run", "--max-minutes 15")


def _tell_what_next(model: str) -> Iterator[Text]:
    option = _model_option(model)
    yield from _title("Next", "novels/ and text.txt stand for text of your own.")
    for what, *command in (
        ("words that are like a word", "relmo neighbours", "present", option),
        ("the meanings of a word", "relmo senses", "present", option, "--corpus novels/"),
        ("what this model is", "relmo info", quote(model)),
        ("which others there are", "relmo models"),
        ("everything else", "relmo --help"),
    ):
        yield from _command(*command, above=what)


def _title(title: str, explanation: str) -> Iterator[Text]:
    yield Text()
    yield Text(title, style="bold")
    yield from _paragraph(explanation)
    yield Text()


def _paragraph(text: str) -> Iterator[Text]:
    yield from map(Text, wrap(text, WIDTH - 2))


def _labelled(sentences: dict[str, str]) -> Iterator[Text]:
    for label, text in sentences.items():
        yield _marked(f"  {label}  {text}")


def _marked(text: str) -> Text:
    line = Text(text)
    line.highlight_regex(r"\[.+\]", "bold yellow")
    return line


def _model_option(model: str) -> str:
    return "" if model == DEFAULT else f"-m {quote(model)}"


def _command(*pieces: str, above: str = "") -> Iterator[Text]:
    """A command, continued on further lines where it is long, under a line that says what for."""
    yield Text(above and f"  {above}")
    lines = [f"  $ {pieces[0]}"]
    for piece in filter(None, pieces[1:]):
        if len(lines[-1]) + len(piece) + len("  \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"     {piece}")
        else:
            lines[-1] += f" {piece}"
    for line in lines:
        yield Text(line, style="cyan")
