#!/usr/bin/env bats
# `blurry --help` lists the verbs, and each says what it does.

@test "every verb has a help text, by either command" {
    cd "$BATS_TEST_TMPDIR"
    verbs=$("$BLURRY" --help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p')
    [ "$(echo "$verbs" | wc -l)" -ge 10 ]
    for verb in $verbs; do
        "$BLURRY" $verb --help >by_verb
        "$BLURRY" help $verb | cmp - by_verb
        grep -q "^usage: blurry $verb" by_verb
    done
    run "$BLURRY" help nonsense
    [ "$status" -eq 2 ]
}
