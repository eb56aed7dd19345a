#!/bin/sh
# A model of characters: one text file in, text out.
#
#   sh examples/char_level.sh [FOLDER]                                a minute or two on two cores
#   STEPS=20 PARAMS=60k sh examples/char_level.sh /tmp/try            a few seconds
#
# Characters need no tokenizer to be trained and no vocabulary to be chosen: every character that occurs is a token.
# They are the quickest way to a model that writes something from a small text, and the wrong one for a large text,
# of which a sequence holds four times as much when its tokens are pieces of words.
set -eu

out=${1:-char-example}
steps=${STEPS:-600}
params=${PARAMS:-400k}
memory=${MEMORY:-1GB}
mkdir -p "$out"

# Some 700 kB of English that comes with Python: its language reference, as `help()` shows it. Yours goes here.
python3 -c '
from pydoc_data.topics import topics
print("\n\n".join(topics.values()))
' > "$out/text.txt"

# One text file is one document, and a document goes to training or to validation as a whole. So it is cut into parts
# of 8 kB: some of them are then kept for validation.
ramlet prepare "$out/text.txt" --tokenizer char --document-bytes 8KiB --memory "$memory" --out "$out/data"

# The vocabulary is in the dataset, and goes with it into the run: nothing is named twice, so nothing can differ.
# Evaluated four times, on 20,000 characters: by default it would be twenty times, which a run this short would feel.
ramlet train --data "$out/data" --out "$out/run" --params "$params" --seq-len 128 --batch-size 16 \
    --max-steps "$steps" --eval-every "$((steps / 4))" --eval-tokens 20k --sample-every "$((steps / 2))" \
    --sample-prompt "The " --memory "$memory"

# Any character of the text can begin a prompt; one that never occurred is refused.
ramlet generate "$out/run" --prompt "The value of " --max-tokens 200 --seed 1 --memory "$memory"
