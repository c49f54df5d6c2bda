#!/usr/bin/env bats
# Training through the command line: resuming, crashes, run directories, evaluation, bad input.

load eventually

setup() {
    cd "$BATS_TEST_TMPDIR"
    export BLURRY_THREADS=2
}

tiny="--length 32 --pairs 4 --vocab 64 --width 16 --layers 2 --modes 4 --window 8 --slots 8 --state 8 --batch 8
      --train_samples 200 --val_samples 40 --steps 20 --eval_every 10 --save_every 1 --lr 0.01 --log_every 1"

# train OUT [options]
train() {
    "$BLURRY" train mqar $tiny --out "$@"
}

# The log without its clock.
timeless() {
    sed -E 's/,"(tokens_per_second|seconds)":[^,}]*//g' "$1/log.jsonl"
}

# Two runs ended in the same bits: weights, best weights, moments, log.
same_run() {
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/best.safetensors" "$2/best.safetensors" &&
        cmp "$1/optimiser-20.safetensors" "$2/optimiser-20.safetensors" &&
        diff <(timeless "$1") <(timeless "$2")
}

@test "every mixer: a run paused at step 5 and resumed equals an unbroken one, bit for bit" {
    for mixer in softmax swa abc gsa gla gdn s4d blurry blurry,softmax; do
        train whole-$mixer --mixer $mixer --dropout 0.1 --quiet --save_every 10
        train broken-$mixer --mixer $mixer --dropout 0.1 --quiet --save_every 10 --pause-at 5
        [ -f broken-$mixer/optimiser-5.safetensors ]
        train broken-$mixer --mixer $mixer --dropout 0.1 --quiet --save_every 10
        same_run whole-$mixer broken-$mixer
        [ "$(ls broken-$mixer | wc -l)" = 5 ]
    done
}

@test "learned periods, several periods, decay, accumulation and early stop resume bit for bit" {
    options="--heads 2 --period 9,14 --learned_period true --decay true --accumulate 2 --patience 1 --eval_every 3"
    train whole $options --quiet
    for step in 2 3 7; do train broken $options --quiet --pause-at $step; done
    train broken $options --quiet
    cmp whole/model.safetensors broken/model.safetensors
    diff <(timeless whole) <(timeless broken)
}

@test "kill -9 at any moment of a run: the same command continues to the same bits" {
    train whole --quiet
    for ((i = 0; i < 20; i++)); do
        "$BLURRY" train mqar $tiny --out broken --quiet &
        sleep 0.0$((RANDOM % 80 + 10))
        kill -9 $! 2>/dev/null || true
        code=0
        wait $! || code=$?
        [ $code = 137 ] || [ $code = 0 ]
        [ $code = 0 ] && break
        if [ -f broken/model.safetensors ]; then "$BLURRY" eval broken --eval_samples 1 >/dev/null; fi
    done
    train broken --quiet
    same_run whole broken
    [ "$(ls broken | wc -l)" = 5 ]
}

@test "a disk that fills up: the old checkpoint stays, the exit code says so, a later run continues" {
    train whole --quiet
    train broken --quiet --pause-at 5
    cp broken/model.safetensors old.safetensors
    # A limit on file sizes makes writes fail in the middle of a file, as a full disk does.
    run bash -c 'trap "" XFSZ; ulimit -f 20; exec "$@"' limited "$BLURRY" train mqar $tiny --out broken --quiet
    [ "$status" -ne 0 ]
    [[ "$output" == *"optimiser-6.safetensors"* ]]
    cmp old.safetensors broken/model.safetensors
    [ -f broken/optimiser-5.safetensors ]
    train broken --quiet
    same_run whole broken
}

@test "a really full disk (tmpfs, needs root)" {
    [ "$(id -u)" = 0 ] || skip "needs root"
    mkdir small
    mount -t tmpfs -o size=400k tmpfs small 2>/dev/null || skip "cannot mount"
    train small/run --quiet --pause-at 5
    cp small/run/model.safetensors old.safetensors
    dd if=/dev/zero of=small/filler bs=1k count=400 2>/dev/null || true
    run train small/run --quiet
    cmp old.safetensors small/run/model.safetensors && kept=1 || kept=0
    ls small/run/optimiser-5.safetensors
    rm small/filler
    resumed=0
    train small/run --quiet && resumed=1
    umount small
    [ "$status" -ne 0 ]
    [ $kept = 1 ]
    [ $resumed = 1 ]
}

@test "a loss that is not finite stops the run, names step and tensor, keeps the last good checkpoint" {
    run train out --quiet --lr 1000 --schedule constant --warmup 0 --clip 0 --norm layernorm --mlp gelu --precision f32 \
        --weight_decay 1000
    [ "$status" -eq 1 ]
    [[ "$output" == *"step "* ]]
    [[ "$output" == *"first bad tensor: "* ]]
    tail -1 out/log.jsonl | grep -q '"reason":"non_finite"'
    "$BLURRY" eval out/model.safetensors # the checkpoint that was kept is a good one
}

@test "Ctrl-C saves a checkpoint" {
    "$BLURRY" train mqar $tiny --steps 1000000 --save_every 1000000 --eval_every 1000000 --out out >shown 2>&1 &
    eventually grep -q '"step":3,' shown
    kill -TERM $!
    code=0
    wait $! || code=$?
    [ $code = 1 ]
    grep -q 'stopped at step' shown
    [ "$(ls out/optimiser-*)" != out/optimiser-0.safetensors ]
}

@test "a directory is continued, found complete, or refused; never overwritten" {
    train out --quiet
    before=$(cat out/* | sha256sum)
    train out --quiet
    train out --quiet --threads 1
    run train out --quiet --width 32
    [ "$status" -eq 2 ]
    [[ "$output" == *"its width is '16', here it is '32'"* ]]
    run train out --quiet --seed 1
    [ "$status" -eq 2 ]
    [[ "$output" == *"its seed is '0', here it is '1'"* ]]
    run "$BLURRY" train regbench --automata 20 --val_samples 5 --test_samples 5 --steps 2 --out out
    [ "$status" -eq 2 ]
    [ "$before" = "$(cat out/* | sha256sum)" ]
    mkdir other && echo precious >other/file
    run train other --quiet
    [ "$status" -eq 2 ]
    [[ "$output" == *"not empty"* ]]
    [ "$(ls other)" = file ]
    mkdir empty && train empty --quiet --pause-at 1
    echo text >afile
    run train afile --quiet
    [ "$status" -eq 2 ]
}

@test "two processes never train in one directory" {
    "$BLURRY" train mqar $tiny --steps 1000000 --out out --quiet &
    eventually [ -f out/model.safetensors ]
    run "$BLURRY" train mqar $tiny --steps 1000000 --out out --quiet
    kill $!
    wait $! || true
    [ "$status" -eq 2 ]
    [[ "$output" == *"in use by another"* ]]
}

@test "eval --logits writes sequences, labels and logits" {
    train out --quiet
    "$BLURRY" eval out --eval_samples 3 --logits logits.safetensors
    "$BLURRY" info logits.safetensors >shown
    grep -q 'tokens.*3.*32' shown
    grep -q 'logits.*12.*64' shown
    [ "$(stat -c %s logits.safetensors)" -gt $((4 * 12 * 64)) ]
    run "$BLURRY" eval out --logits /no/such/folder/logits.safetensors
    [ "$status" = 1 ]
    [[ "$output" == *"/no/such/folder"* ]]
}

@test "eval prints what the log says" {
    for mixer in blurry gdn; do
        train $mixer --quiet --mixer $mixer
        logged=$(grep '"event":"eval","step":20' $mixer/log.jsonl)
        shown=$("$BLURRY" eval $mixer/model.safetensors --json)
        for name in loss accuracy exact_match; do
            [ "$(sed -E "s/.*\"$name\":([^,}]*).*/\1/" <<<"$logged")" = "$(sed -E "s/.*\"$name\":([^,}]*).*/\1/" <<<"$shown")" ]
        done
        "$BLURRY" eval $mixer --split test | grep -q accuracy
    done
}

@test "evaluation refuses what is not a checkpoint, or is one of another task" {
    train out --quiet
    for wrong in missing out/config.yaml out/optimiser-20.safetensors; do
        run "$BLURRY" eval $wrong
        [ "$status" -eq 2 ]
    done
    head -c 5000 out/model.safetensors >cut.safetensors
    run "$BLURRY" eval cut.safetensors
    [ "$status" -eq 2 ]
    run "$BLURRY" eval out --task regbench
    [ "$status" -eq 2 ]
    [[ "$output" == *"checkpoint of task mqar, not regbench"* ]]
    run "$BLURRY" eval out --width 32
    [ "$status" -eq 2 ]
    run "$BLURRY" eval out --split nonsense
    [ "$status" -eq 2 ]
    run "$BLURRY" generate out --prompt x
    [ "$status" -eq 2 ]
    [[ "$output" == *"checkpoint of task mqar"* ]]
    mkdir nothing
    run "$BLURRY" eval nothing
    [ "$status" -eq 2 ]
}

@test "bad input: message, exit code 2, nothing made" {
    : >empty.txt
    while IFS='|' read -r arguments message; do
        run bash -c "\"$BLURRY\" train $arguments --out out </dev/null"
        echo "$arguments: $status $output"
        [ "$status" -eq 2 ]
        [[ "$output" == *"$message"* ]]
        [ ! -e out ]
    done <<'CASES'
mqar --length 30 --pairs 8|length
mqar --length 33 --pairs 4|length
mqar --vocab 6 --pairs 4 --length 32|vocab
mqar --widht 32|width
mqar --width 0|width
mqar --width|--width
mqar --mixer nonsense|nonsense
mqar --heads 3 --width 64|heads
mqar --batch 8 --accumulate 3|accumulate
mqar --steps 10 --warmup 11|warmup
mqar --preset nonsense|mqar-easy
mqar --config nonsense.yaml|nonsense.yaml
mqar --preset text-small|text
mqar stray|stray
mqar --lr 0.1 --min_lr 0.2|min_lr
nonsense|nonsense
text|FILE
text missing.txt|missing.txt
text empty.txt|empty
text .|regular
CASES
    run "$BLURRY" train mqar
    [ "$status" -eq 2 ]
    [[ "$output" == *"--out"* ]]
}

@test "settings come from preset, then file, then the line; help lists them all" {
    printf 'width: 24\nlayers: 1\nlr: 0.5\n' >c.yaml
    "$BLURRY" train mqar --lr 0.001 --config c.yaml --preset mqar-easy --set seed=7 $tiny --width 24 --out out --pause-at 1 --quiet
    grep -q '^width: 24$' out/config.yaml
    grep -q '^layers: 2$' out/config.yaml
    grep -q '^lr: 0.01$' out/config.yaml
    grep -q '^seed: 7$' out/config.yaml
    grep -q '^stop_at: 0.995$' out/config.yaml
    "$BLURRY" train --help >help
    for key in mixer period pairs weight_decay threads save_every mqar-easy regbench gdn; do grep -q "  $key " help; done
}

@test "on a terminal one line is refreshed, elsewhere JSON lines are written" {
    train out >lines
    diff lines out/log.jsonl
    command -v script >/dev/null || skip "needs script(1)"
    script -qec "\"$BLURRY\" train mqar $(echo $tiny) --out tty" typescript >/dev/null
    grep -q 'loss .*tokens/s  ETA' typescript
    [ "$(grep -c 'tokens/s' typescript)" -le 2 ]
    ! grep -q '"event"' typescript || false
}
