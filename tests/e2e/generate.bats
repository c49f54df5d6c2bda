#!/usr/bin/env bats
# Text models: training on a file, generating, saving and restoring the state.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    export BLURRY_THREADS=2
    for ((i = 0; i < 300; i++)); do echo "the quick brown fox number $((i % 10)) jumps over the lazy dog"; done >text
    for mixer in blurry,swa gdn softmax; do
        "$BLURRY" train text text --mixer $mixer --length 64 --width 32 --layers 2 --modes 8 --window 16 --batch 8 \
            --steps 60 --lr 0.01 --eval_every 60 --out $mixer --quiet
    done
}

setup() {
    cd "$BATS_FILE_TMPDIR"
}

@test "generation depends on seed, temperature and prompt, and repeats itself" {
    a=$("$BLURRY" generate blurry,swa --prompt "the quick" --bytes 60 --seed 1 | sha256sum)
    b=$("$BLURRY" generate blurry,swa --prompt "the quick" --bytes 60 --seed 1 | sha256sum)
    c=$("$BLURRY" generate blurry,swa --prompt "the quick" --bytes 60 --seed 2 | sha256sum)
    [ "$a" = "$b" ]
    [ "$a" != "$c" ]
    "$BLURRY" generate blurry,swa --prompt "x" --bytes 77 >out
    [ "$(wc -c <out)" = 77 ]
    a=$("$BLURRY" generate gdn --prompt "the" --temperature 0 --seed 1)
    b=$("$BLURRY" generate gdn --prompt "the" --temperature 0 --seed 2)
    [ "$a" = "$b" ]
    a=$("$BLURRY" generate gdn --prompt "the" --top-p 1e-9 --seed 3)
    [ "$a" = "$b" ]
}

@test "a restored state continues exactly as the unbroken run" {
    for model in blurry,swa gdn softmax; do
        "$BLURRY" generate $model --prompt "the lazy" --bytes 50 --seed 5 --top-p 0.9 --temperature 0.8 --max-length 200 >whole
        "$BLURRY" generate $model --prompt "the lazy" --bytes 20 --seed 5 --top-p 0.9 --temperature 0.8 --max-length 200 \
            --save-state state >parts
        "$BLURRY" generate $model --load-state state --bytes 7 --max-length 200 --save-state state >>parts
        "$BLURRY" generate $model --load-state state --bytes 23 --max-length 200 >>parts
        cmp whole parts
    done
}

@test "a prompt may be appended to a state" {
    "$BLURRY" generate gdn --prompt "the quick brown" --bytes 30 --seed 5 >whole
    "$BLURRY" generate gdn --prompt "the quick" --bytes 0 --seed 5 --save-state state
    "$BLURRY" generate gdn --load-state state --prompt " brown" --bytes 30 >parts
    cmp whole parts
}

@test "a state that is cut, altered or of another model is refused with exit code 2" {
    "$BLURRY" generate gdn --prompt "the" --bytes 5 --save-state good >/dev/null
    size=$(stat -c %s good)
    for bytes in 0 1 15 100 $((size - 1)); do
        head -c $bytes good >bad
        run "$BLURRY" generate gdn --load-state bad --bytes 5
        [ "$status" -eq 2 ]
        [[ "$output" == *"bad"* ]]
    done
    for at in 3 20 60 $((size / 2)) $((size - 2)); do
        cp good bad
        byte=$(od -An -tu1 -j $at -N 1 good)
        printf "\\x$(printf %x $((byte ^ 1)))" | dd of=bad bs=1 seek=$at conv=notrunc 2>/dev/null
        run "$BLURRY" generate gdn --load-state bad --bytes 5
        [ "$status" -eq 2 ]
    done
    (cat good; echo more) >bad
    run "$BLURRY" generate gdn --load-state bad --bytes 5
    [ "$status" -eq 2 ]
    for other in blurry,swa gdn/model.safetensors; do
        run "$BLURRY" generate $other --load-state good --bytes 5
        [ $other = gdn/model.safetensors ] || [ "$status" -eq 2 ]
    done
    run "$BLURRY" generate gdn --load-state missing --bytes 5
    [ "$status" -eq 2 ]
}

@test "generation refuses wrong options" {
    for options in "--bytes -1" "--temperature -1" "--temperature x" "--top-p 0" "--top-p 2" "--seed -1" "--nonsense 1" ""; do
        prompt="--prompt x"
        [ -n "$options" ] || prompt=""
        run "$BLURRY" generate gdn $prompt $options
        [ "$status" -eq 2 ]
    done
    run "$BLURRY" generate missing --prompt x
    [ "$status" -eq 2 ]
}

@test "a changed text is noticed by resume and by eval" {
    cp text changed
    "$BLURRY" train text changed --length 64 --width 16 --modes 4 --batch 4 --steps 4 --out c --pause-at 2 --quiet
    "$BLURRY" eval c >/dev/null
    echo "one more line" >>changed
    run "$BLURRY" train text changed --length 64 --width 16 --modes 4 --batch 4 --steps 4 --out c --quiet
    [ "$status" -eq 2 ]
    [[ "$output" == *"data"* ]]
    run "$BLURRY" eval c
    [ "$status" -eq 2 ]
    run "$BLURRY" eval c --file text # another text on purpose is fine
    [ "$status" -eq 0 ]
    [[ "$output" == *"bits_per_byte"* ]]
}
