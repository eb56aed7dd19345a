#!/bin/sh
# Data that comes in portions: prepare, train, add, train on.
#
#   sh examples/appending.sh [FOLDER]                                 a minute or two on two cores
#   STEPS=20 PARAMS=60k sh examples/appending.sh /tmp/try             a few seconds
#
# A document goes to training or to validation by a hash of its text, so what was kept for validation on the first day
# is still kept for it on the second: the model never learns from what it is measured with.
set -eu

out=${1:-append-example}
steps=${STEPS:-300}
params=${PARAMS:-500k}
memory=${MEMORY:-1GB}
library=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
mkdir -p "$out"

# The tokenizer is learned once, from a sample of all that will come: a dataset keeps the one it began with.
ramlet tokenizer train "$library/email" "$library/json" "$library/http" --vocab-size 1500 \
    --special-token "<|endoftext|>" --memory "$memory" --out "$out/tokenizer"

# The first day. The cache remembers what was kept, so that a text that comes again tomorrow is left out then; files
# are cut into parts of 4 kB, for a few large ones would leave little to choose for validation.
ramlet prepare "$library/email" "$library/json" --tokenizer "$out/tokenizer" --document-bytes 4KiB \
    --dedup-cache "$out/seen" --memory "$memory" --out "$out/data"
ramlet train --data "$out/data" --out "$out/run-1" --params "$params" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --sample-every 0 --memory "$memory"

# The second day. `json` comes again by mistake, and is dropped as a duplicate; what is new goes into further shards.
# Only the tokenizer is taken from the dataset: the other settings are given again.
ramlet prepare "$library/json" "$library/http" --append --document-bytes 4KiB \
    --dedup-cache "$out/seen" --memory "$memory" --out "$out/data"
ramlet data verify "$out/data"

# The data is another now, so this is another run: it begins with the weights of the first.
ramlet train --data "$out/data" --init-from "$out/run-1" --out "$out/run-2" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --sample-every 0 --memory "$memory"

# Both, by the same measure: the validation part as it is now.
ramlet eval "$out/run-1" --data "$out/data" --tokens all --memory "$memory"
ramlet eval "$out/run-2" --data "$out/data" --tokens all --memory "$memory"
