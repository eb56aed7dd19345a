#!/bin/sh
# A character-level model: one text file in, generated text out.
#
#   sh examples/char_level.sh [FOLDER]                                a minute or two on two cores
#   STEPS=20 PARAMS=60k sh examples/char_level.sh /tmp/try            a few seconds
#
# Characters need no tokenizer training and no vocabulary size: every character that occurs is a token. This is the
# quickest way from a small text to a model that generates something. For a large text use BPE, whose sequences contain
# four times as much text.
set -eu

out=${1:-char-example}
steps=${STEPS:-600}
params=${PARAMS:-400k}
memory=${MEMORY:-1GB}
mkdir -p "$out"

# About 700 kB of English that comes with Python: its language reference, as `help()` shows it. Replace it with yours.
python3 -c '
from pydoc_data.topics import topics
print("\n\n".join(topics.values()))
' > "$out/text.txt"

# A text file is one document, and a document is either for training or for validation. So split it into parts of 8 kB,
# some of which are then used for validation.
ramlet prepare "$out/text.txt" --tokenizer char --document-bytes 8KiB --memory "$memory" --out "$out/data"

# The dataset contains the vocabulary, and the run gets it from there. Evaluate four times, on 20,000 characters each:
# by default it would be up to ten times.
ramlet train --data "$out/data" --out "$out/run" --params "$params" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --eval-tokens 20k --sample-every "$((steps / 2))" \
    --sample-prompt "The " --memory "$memory"

# A prompt can have any character of the text; characters that never occurred are refused.
ramlet generate "$out/run" --prompt "The value of " --max-tokens 200 --seed 1 --memory "$memory"
