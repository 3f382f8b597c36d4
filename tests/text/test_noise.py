"""Other case for some sentences: the words stay the same, and so does every repetition."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relmo.text.characters import ByteCharacters
from relmo.text.noise import CaseNoise, capitalize, mix_seed

SCHEME = ByteCharacters()
WORDS = ["The", "dog", "is", "McCoy", "'s", "."]


def test_each_case_comes_as_often_as_the_others():
    noise = CaseNoise(0.3, 0, SCHEME)
    found = Counter(" ".join(noise.apply(WORDS, 0, 0, place)) for place in range(6000))
    shares = {text: n / 6000 for text, n in found.items()}
    assert shares.keys() == {
        "The dog is McCoy 's .",
        "the dog is mccoy 's .",
        "The Dog Is McCoy 's .",
        "THE DOG IS MCCOY 'S .",
    }
    assert abs(shares.pop("The dog is McCoy 's .") - 0.7) < 0.03
    assert all(abs(share - 0.1) < 0.02 for share in shares.values())


def test_no_noise_is_no_work():
    assert CaseNoise(0.0, 0, SCHEME).apply(WORDS, 1, 2, 3) is WORDS


def test_words_never_become_boundaries():
    noise = CaseNoise(0.999, 0, SCHEME)
    for place in range(50):
        assert noise.apply(["<s>", "</s>", "<UNK>"], place)[:2] == ["<s>", "</s>"]


@given(st.lists(st.text()), st.integers(0, 2**32 - 1), st.integers(0, 10**9))
def test_any_text_keeps_its_number_of_words(words, seed, place):
    noise = CaseNoise(0.9, seed, SCHEME)
    read = noise.apply(words, place)
    assert len(read) == len(words)
    assert noise.apply(words, place) == read


def test_capitals_of_strange_words():
    assert [capitalize(word) for word in ("", "ß", "iPod", "ñu", "3d")] == [
        *("", "SS", "IPod", "Ñu", "3d")
    ]


def test_every_number_matters_to_a_seed():
    found = {mix_seed(*numbers) for numbers in ((1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2))}
    assert len(found) == 5
    assert all(0 <= seed < 2**63 for seed in found)
