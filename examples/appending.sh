#!/bin/sh
# Data that arrives in portions: prepare, train, append, continue training.
#
#   sh examples/appending.sh [FOLDER]                                 a minute or two on two cores
#   STEPS=20 PARAMS=60k sh examples/appending.sh /tmp/try             a few seconds
#
# A hash of its text decides whether a document is for training or validation, so the validation documents of the first
# day are still validation documents on the second: the model never trains on what it is evaluated on.
set -eu

out=${1:-append-example}
steps=${STEPS:-300}
params=${PARAMS:-500k}
memory=${MEMORY:-1GB}
library=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
mkdir -p "$out"

# Train the tokenizer once, on a sample of all the text to come: a dataset keeps its tokenizer.
ramlet tokenizer train "$library/email" "$library/json" "$library/http" --vocab-size 1500 \
    --special-token "<|endoftext|>" --memory "$memory" --out "$out/tokenizer"

# The first day. The dedup cache remembers what was kept, so that the same text is dropped tomorrow. Files are split
# into parts of 4 kB, because a few large documents would leave little choice for validation.
ramlet prepare "$library/email" "$library/json" --tokenizer "$out/tokenizer" --document-bytes 4KiB \
    --dedup-cache "$out/seen" --memory "$memory" --out "$out/data"
ramlet train --data "$out/data" --out "$out/run-1" --params "$params" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --sample-every 0 --memory "$memory"

# The second day. `json` is given again by mistake and dropped as a duplicate; new text goes into new shards. Only the
# tokenizer comes from the dataset: repeat the other settings.
ramlet prepare "$library/json" "$library/http" --append --document-bytes 4KiB \
    --dedup-cache "$out/seen" --memory "$memory" --out "$out/data"
ramlet data verify "$out/data"

# The data has changed, so this is a new run, initialized with the weights of the first.
ramlet train --data "$out/data" --init-from "$out/run-1" --out "$out/run-2" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --sample-every 0 --memory "$memory"

# Evaluate both on the same data: the current validation split.
ramlet eval "$out/run-1" --data "$out/data" --tokens all --memory "$memory"
ramlet eval "$out/run-2" --data "$out/data" --tokens all --memory "$memory"
