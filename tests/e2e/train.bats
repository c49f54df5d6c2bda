#!/usr/bin/env bats
# Training through the command line: runs, resuming, run directories, evaluation, bad input.

setup() {
    cd "$BATS_TEST_TMPDIR"
    export BLURRY_THREADS=2
}

tiny="--length 32 --pairs 4 --vocab 64 --width 16 --layers 2 --modes 4 --window 8 --slots 8 --state 8 --batch 8
      --train_samples 200 --val_samples 40 --steps 20 --eval_every 10 --lr 0.01 --log_every 1"

# train MIXER OUT [options]
train() {
    "$BLURRY" train mqar $tiny --mixer "$1" --out "$2" "${@:3}"
}

# Weights, moments and log without timing must agree.
same_run() {
    cmp "$1/model.safetensors" "$2/model.safetensors"
    cmp "$1/best.safetensors" "$2/best.safetensors"
    cmp "$1"/optimiser-*.safetensors "$2"/optimiser-*.safetensors
    strip() { sed -E 's/"(tokens_per_second|seconds)":[-0-9.e+]+,?//g' "$1/log.jsonl"; }
    diff <(strip "$1") <(strip "$2")
}

mixers="softmax swa abc gsa gla gdn s4d blurry"
