"""Treebanks."""

import pytest

from relmo.errors import DataError
from relmo.text.conllu import TaggedSentence, read_conllu

TEXT = """# sent_id = 1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\t_\t_\t0\t_\t_\t_
2\tn't\tnot\tPART\t_\t_\t0\t_\t_\t_
2.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_

# sent_id = 2

1\t#\t#\tSYM\t_\t_\t0\t_\t_\t_
"""


def test_words_of_the_syntax(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(TEXT)
    assert list(read_conllu(path)) == [
        TaggedSentence(("do", "n't"), ("AUX", "PART")),
        TaggedSentence(("#",), ("SYM",)),
    ]


def test_nothing(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("\n\n# nothing\n")
    assert not list(read_conllu(path))


def test_other_files_are_named_with_their_line(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("# a\n1 the DET\n")
    with pytest.raises(DataError, match=r"a\.conllu, line 2: found 1 columns, expected 10"):
        list(read_conllu(path))
