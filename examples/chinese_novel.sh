#!/bin/sh
# From the text of Chinese novels to a model of them, and what is near a name.
#
#   examples/chinese_novel.sh FOLDER NAME [MINUTES] [RUN]
#
# FOLDER holds the corpus: any number of UTF-8 text files, as they are. NAME is a word to ask for.
#
#   examples/chinese_novel.sh corpora/红楼梦 宝玉
set -eu
folder=${1:?a folder with text files} name=${2:?a word, such as 宝玉}
minutes=${3:-25} run=${4:-runs/$(basename "$folder")}

echo "== Words of a sentence with $name"
marked=$(python - "$folder" "$name" <<'PYTHON'
import sys
from relmo.text.corpus import find_texts
from relmo.text.sentences import read_sentences
from relmo.text.tokenize import split_chinese

folder, name = sys.argv[1:]
for text in find_texts([folder]):
    for sentence in read_sentences(text, lines=False, language="zh"):
        words = [token.text for token in split_chinese(sentence)]
        if words.count(name) == 1 and len(words) > 5:
            print(" ".join(words), file=sys.stderr)
            sys.exit(print("".join(f"[{w}]" if w == name else w for w in words)))
sys.exit(f"{name} is no word of {folder}, as it is segmented.")
PYTHON
)

echo "== Training for $minutes minutes"
relmo pretrain "$folder" -o "$run" --preset chinese --max-minutes "$minutes"
relmo info "$run/model"

echo "== Words near $name"
relmo neighbours "$name" -m "$run/model"

echo "== Occurrences like that in $marked"
relmo neighbours "$marked" -m "$run/model" --corpus "$folder" --language zh -k 5
