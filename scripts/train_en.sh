#!/bin/sh
# The bundled model `en`: train it in two runs, and put it into the package.
#
#   scripts/train_en.sh FOLDER [RUN]
#
# FOLDER holds the texts (.txt.gz): LitBank's hundred novels as gutenberg-NUMBER_TITLE, the State of the
# Union addresses, movie reviews. Two novels are kept out of training, to validate on. The second run
# goes on from the first, with some sentences in another case.
set -eu
folder=${1:?a folder with the texts} run=${2:-runs/en}
novel="$folder/gutenberg-1342_pride_and_prejudice.txt.gz"
other="$folder/gutenberg-215_the_call_of_the_wild.txt.gz"
both="--set data.batch_tokens=5120 --set objective.n_samples=2048 --set objective.dropout=0"
first="--max-minutes 92 --vocabulary-size 25000 $both
  --set model.encoder.filters=[[1,16],[2,48],[3,96],[4,160],[5,192],[6,160],[7,96]]
  --set model.lstm.cell_dim=512 --set model.lstm.projection_dim=256 --set train.learning_rate=0.007"
second="--max-minutes 80 $both --set data.case_noise=0.2 --set train.learning_rate=0.005"
texts=$(find "$folder" -name '*.txt.gz' ! -name 'gutenberg-1342_*' ! -name 'gutenberg-215_*' | sort)
# shellcheck disable=SC2086
{
  relmo pretrain $texts -o "$run-first" --valid "$novel" --valid "$other" $first
  relmo pretrain $texts -o "$run" --init "$run-first/model" --valid "$novel" --valid "$other" $second
}
# shellcheck disable=SC2086,SC2116
python scripts/bundle.py "$run" en \
  --text "98 English novels of Project Gutenberg (as in LitBank, CC BY 4.0; the books are in the public domain), State of the Union addresses 1790-2021 (public domain), movie reviews: 16.6 million tokens" \
  --licence "Apache-2.0" \
  --command "relmo pretrain TEXT... -o FIRST --valid NOVEL --valid NOVEL $(echo $first)" \
  --command "relmo pretrain TEXT... -o RUN --init FIRST/model --valid NOVEL --valid NOVEL $(echo $second)"
