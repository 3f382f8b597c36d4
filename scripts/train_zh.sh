#!/bin/sh
# The bundled model `zh`: train it, and put it into the package.
#
#   scripts/train_zh.sh FOLDER [RUN]
#
# FOLDER holds 三国演义.txt, 水浒传.txt, 红楼梦.txt and 西游记.txt and nothing else.
set -eu
folder=${1:?a folder with the four novels} run=${2:-runs/zh}
options="--preset chinese --max-minutes 25 --vocabulary-size 13000"
# shellcheck disable=SC2086
relmo pretrain "$folder" -o "$run" $options
python scripts/bundle.py "$run" zh \
  --text "三国演义, 水浒传, 红楼梦, 西游记: 2.5 million characters, in the public domain" \
  --licence "Apache-2.0" \
  --command "relmo pretrain FOLDER -o RUN $options"
