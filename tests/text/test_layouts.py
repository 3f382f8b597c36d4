"""Batches of a corpus: everything once per epoch, whoever shares the work, from any position."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.config import DataConfig
from relmo.errors import ConfigError, DataError
from relmo.text import blocks as blocks_module
from relmo.text.batch import Packing
from relmo.text.blocks import Blocks
from relmo.text.characters import ByteCharacters
from relmo.text.layouts import Part, Segments
from relmo.text.streams import Streams
from relmo.text.vocabulary import SPECIAL, Vocabulary

VOCABULARY = Vocabulary((*SPECIAL, *"abcdefgh"))
SCHEME = ByteCharacters(12)


class Sentences:
    """A shard held in memory."""

    def __init__(self, sentences):
        self.sentences = sentences
        self.ends = np.cumsum([len(s) for s in sentences])
        self.n_sentences = len(sentences)

    def sentence(self, i):
        return self.sentences[i]


class Text:
    def __init__(self, *shards):
        self.shards = tuple(map(Sentences, shards))


def random_text(n_shards, n_sentences, seed=0):
    rng = np.random.default_rng(seed)
    return Text(
        *(
            [list(rng.choice(list("abcdefghxyz"), rng.integers(1, 9))) for _ in range(n_sentences)]
            for _ in range(n_shards)
        )
    )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_TOKENS", 24)
    monkeypatch.setattr("relmo.text.layouts.POOL_BLOCKS", 3)


def first_epoch(source):
    found = []
    for batch, position in source.batches({}):
        found.append(batch)
        if position["epoch"]:
            return found
    raise AssertionError("an epoch has an end")


def rows_of(batch):
    """For each row and direction, the tokens read and the numbers predicted, in reading order."""
    packing, found = batch.packing, []
    flat = np.empty_like(batch.index)
    flat[:, packing.forward] = batch.index
    wanted = np.empty_like(batch.targets)
    wanted[:, packing.forward] = batch.targets
    characters = batch.ids.characters.tolist()
    start = 0
    for length in packing.lengths.tolist():
        row = []
        for way in (0, 1):
            ids = [tuple(characters[i]) for i in flat[way, start : start + length].tolist()]
            row.append((ids, wanted[way, start : start + length].tolist()))
        found.append(row)
        start += length
    return found


def expected_rows(sentence):
    tokens = ["<S>", *sentence, "</S>"]
    rows = []
    for way in (tokens, tokens[::-1]):
        ids = [tuple(row) for row in SCHEME.encode(way[:-1]).characters.tolist()]
        rows.append((ids, [VOCABULARY.number(word) for word in way[1:]]))
    return rows


def key(row):
    return repr(row)


def test_each_sentence_once_an_epoch_both_ways():
    text = random_text(3, 40)
    source = Segments(Blocks.of(text), DataConfig(batch_tokens=30), SCHEME, VOCABULARY)
    batches = first_epoch(source)
    found = [row for batch in batches for row in rows_of(batch)]
    sentences = [s for shard in text.shards for s in shard.sentences]
    assert sorted(map(key, found)) == sorted(key(expected_rows(s)) for s in sentences)
    assert sum(batch.index.shape[1] for batch in batches) == source.n_tokens
    assert all(batch.index.shape[1] <= 30 for batch in batches)


def test_epochs_differ_and_repeat_by_seed():
    text = random_text(2, 30)

    def rows(seed, n):
        source = Segments(
            Blocks.of(text), DataConfig(batch_tokens=30), SCHEME, VOCABULARY, seed=seed
        )
        return [key(rows_of(batch)) for batch, _ in islice(source.batches({}), n)]

    assert rows(0, 10) == rows(0, 10)
    assert rows(0, 10) != rows(1, 10)
    twice = rows(0, 40)
    assert len(set(twice)) > 20  # a second epoch puts other sentences together


@pytest.mark.parametrize("layout", [Segments, Streams])
@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 60))
def test_going_on_from_a_position(layout, start):
    text = random_text(2, 30)
    config = DataConfig(batch_tokens=30, n_streams=4, n_steps=3, case_noise=0.5)
    source = layout(Blocks.of(text), config, SCHEME, VOCABULARY, seed=3)
    batches = list(islice(source.batches({}), start + 6))
    position = batches[start - 1][1] if start else {}
    again = list(islice(source.batches(position), 6))
    for (one, after), (other, after_too) in zip(batches[start:], again, strict=True):
        assert after == after_too
        assert one.seed == other.seed
        assert key(rows_of(one)) == key(rows_of(other))


@pytest.mark.parametrize("layout", [Segments, Streams])
@pytest.mark.parametrize("size", [2, 3])
def test_parts_make_up_the_whole(layout, size):
    text = random_text(2, 30)
    config = DataConfig(batch_tokens=25, n_streams=6, n_steps=3, case_noise=0.5)

    def build(part):
        return layout(Blocks.of(text), config, SCHEME, VOCABULARY, seed=3, part=part)

    whole = build(Part())
    parts = [build(Part(rank, size)).batches({}) for rank in range(size)]
    for batch, position in islice(whole.batches({}), 60):
        together = [next(part) for part in parts]
        assert [p for _, p in together] == [position] * size
        assert {part.seed for part, _ in together} == {batch.seed}
        rows = [row for part, _ in together if (part.targets >= 0).any() for row in rows_of(part)]
        assert sorted(map(key, rows)) == sorted(map(key, rows_of(batch)))


@pytest.mark.parametrize("layout", [Segments, Streams])
def test_case_noise_changes_what_is_read_and_not_what_is_predicted(layout):
    blocks = Blocks.of(random_text(2, 40))

    def build(share):
        config = DataConfig(batch_tokens=30, n_streams=4, n_steps=3, case_noise=share)
        return layout(blocks, config, SCHEME, VOCABULARY, seed=3)

    plain, noisy = build(0.0), build(0.6)
    n = len(first_epoch(plain))
    differing = set()
    both = zip(plain.batches({}), noisy.batches({}), strict=True)
    for (one, _), (other, _) in islice(both, n):
        assert np.array_equal(one.targets, other.targets)
        differing |= {key(rows_of(one)) != key(rows_of(other))}
    assert differing == {True, False}
    assert [*map(key, map(rows_of, plain.validation_batches()))] == [
        *map(key, map(rows_of, noisy.validation_batches()))
    ]


def test_case_noise_is_another_one_in_each_epoch():
    source = Segments(
        Blocks.of(Text([["a", "b"]] * 30)), DataConfig(case_noise=0.5), SCHEME, VOCABULARY
    )
    one, other = (batch for batch, _ in islice(source.batches({}), 2))
    assert [key(row) for row in rows_of(one)] != [key(row) for row in rows_of(other)]


def test_a_process_without_a_segment_predicts_nothing():
    text = Text([["a", "b"]])
    config = DataConfig(batch_tokens=25)
    source = Segments(Blocks.of(text), config, SCHEME, VOCABULARY, part=Part(1, 2))
    batch, _ = next(source.batches({}))
    assert batch.index.shape == (2, 3)
    assert (batch.targets == -1).all()


def test_long_sentences_are_cut_and_nothing_is_predicted_twice():
    words = list("abcdefghabcdefgh")
    source = Segments(Blocks.of(Text([words])), DataConfig(segment_tokens=5), SCHEME, VOCABULARY)
    (batch,) = source.validation_batches()
    found = rows_of(batch)
    assert sorted(len(row[0][1]) for row in found) == [2, 5, 5, 5]
    forward = sorted(number for row in found for number in row[0][1])
    backward = sorted(number for row in found for number in row[1][1])
    numbers = [VOCABULARY.number(word) for word in words]
    assert forward == sorted([*numbers, VOCABULARY.number("</S>")])
    assert backward == sorted([*numbers, VOCABULARY.number("<S>")])


def test_joined_sentences_share_a_row():
    text = Text([["a"], ["b", "c"], ["d"]])
    config = DataConfig(segment_tokens=6, joined=True)
    (batch,) = Segments(Blocks.of(text), config, SCHEME, VOCABULARY).validation_batches()
    long, short = rows_of(batch)
    number = VOCABULARY.number
    assert long[0][1] == [number(w) for w in ("a", "</S>", "b", "c", "</S>")]
    assert long[1][1] == [number(w) for w in ("c", "b", "<S>", "a", "<S>")]
    assert short[0][1] == [number(w) for w in ("d", "</S>")]


def test_streams_read_the_text_on_and_on():
    text = random_text(1, 40)
    config = DataConfig(layout="stream", n_streams=2, n_steps=4)
    source = Streams(Blocks.of(text), config, SCHEME, VOCABULARY)
    batches = first_epoch(source)
    assert sum(batch.index.shape[1] for batch in batches) == source.n_tokens
    sentences = {key(expected_rows(s)[way]) for s in text.shards[0].sentences for way in (0, 1)}
    begin, end = (tuple(SCHEME.encode([b]).characters[0].tolist()) for b in ("<S>", "</S>"))
    for stream in (0, 1):
        for way, boundary in ((0, begin), (1, end)):
            ids = [i for batch in batches for i in rows_of(batch)[stream][way][0]]
            wanted = [n for batch in batches for n in rows_of(batch)[stream][way][1]]
            starts = [place for place, token in enumerate(ids) if token == boundary]
            assert len(starts) > 5
            for start, stop in pairwise(starts):  # whole sentences, in between
                assert key((ids[start:stop], wanted[start:stop])) in sentences


def test_too_little_text_for_streams():
    blocks, config = Blocks.of(random_text(1, 5)), DataConfig(n_streams=128, n_steps=20)
    with pytest.raises(DataError, match="too short for 128 streams"):
        Streams(blocks, config, SCHEME, VOCABULARY)


def test_streams_must_divide_among_processes():
    blocks, config = Blocks.of(random_text(1, 50)), DataConfig(n_streams=4, n_steps=2)
    with pytest.raises(ConfigError, match="cannot be shared by 3"):
        Streams(blocks, config, SCHEME, VOCABULARY, part=Part(0, 3))


@given(st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_blocks_cover_every_sentence_once(lengths):
    text = Text(*([["a"] * n for n in shard] for shard in lengths))
    blocks = Blocks.of(text)
    found = [s for block in range(len(blocks.table)) for s in blocks.sentences(block)]
    assert found == [s for shard in text.shards for s in shard.sentences]
    assert blocks.n_tokens == sum(n + 1 for shard in lengths for n in shard)
    for block in range(len(blocks.table)):
        assert blocks.lengths(block).sum() == blocks.table[block, 3]


def test_held_out_text_is_not_trained_on():
    text = random_text(2, 60)
    train, valid = Blocks.of(text).hold_out(0.2, 10_000, seed=1)
    assert train.n_tokens + valid.n_tokens == Blocks.of(text).n_tokens
    assert 0.1 < valid.n_tokens / Blocks.of(text).n_tokens < 0.3
    places = {tuple(row[:2]) for row in train.table.tolist()}
    assert not places & {tuple(row[:2]) for row in valid.table.tolist()}


def test_a_short_text_has_small_blocks(monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_TOKENS", 4096)
    train, valid = Blocks.of(random_text(1, 60)).hold_out(0.01, 10_000, seed=1)
    assert 50 < valid.n_tokens < 100 < train.n_tokens


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_nothing_left_to_hold_out(share):
    with pytest.raises(DataError, match="Give a validation text"):
        Blocks.of(Text([["a"]])).hold_out(share, 100, seed=0)


def test_unknown_words_are_predicted_as_unknown():
    (batch,) = Segments(
        Blocks.of(Text([["a", "zzz"]])), DataConfig(), SCHEME, VOCABULARY
    ).validation_batches()
    assert isinstance(batch.packing, Packing)
    assert batch.targets[0].tolist() == [3, 2, 1]
