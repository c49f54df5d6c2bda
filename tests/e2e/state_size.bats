#!/usr/bin/env bats
# `blurry state-size`: the paper's Table 1.

row() { "$BLURRY" state-size "${@:2}" | awk -v m="$1" '$1 == m { print $NF }'; }

@test "the numbers of Table 1" {
  set -- --width 128 --heads 2 --modes 16 --window 50 --slots 31 --length 512
  [ "$(row blurry "$@")" = $((2 * (64 + 64) * 31)) ]
  [ "$(row swa "$@")" = $((2 * (64 + 64) * 50)) ]
  [ "$(row softmax "$@")" = $((2 * (64 + 64) * 512)) ]
  [ "$(row gsa "$@")" = $((2 * (64 + 64) * 31)) ]
  [ "$(row gla "$@")" = $((2 * 32 * 64)) ]
  [ "$(row gdn "$@" --expand-k 1 --expand-v 1)" = $((2 * 64 * 64)) ]
  [ "$(row conv "$@")" = $((128 * 3)) ]
  [ "$(row blurry "$@" --conv true)" = $((2 * (64 + 64) * 31 + 3 * 128 * 3)) ]
  [ "$(row s4d "$@" --state 64)" = $((128 * 64)) ]
  [ "$(row swa --width 128 --window 4096 --length 512)" = $((256 * 512)) ]
  [ "$(row blurry --width 128 --heads 4 --kv-heads 2 --modes 8)" = $((2 * (32 + 32) * 15)) ]
}

@test "several widths, as table and as JSON" {
  run "$BLURRY" state-size --width 32,64 --modes 4 --json
  [ "$status" -eq 0 ]
  [ "$(echo "$output" | grep -c '"mixer": "blurry"')" -eq 2 ]
  echo "$output" | tr -d '\n ' | grep -q '"mixer":"blurry","formula":"H(Dk+Dv)(2M-1)","width":64,"length":512,"elements":896'
  [ "$(row blurry --width 32,64 --modes 4)" = 896 ]
}

@test "bad options: message, exit 2" {
  for bad in "--width 0" "--width x" "--width 32,,64" "--widht 3" "--modes 0" "extra" "--heads" "--width $(seq -s, 40)"; do
    run "$BLURRY" state-size $bad
    [ "$status" -eq 2 ] || { echo "$bad: $status"; false; }
    [[ "$output" == blurry* ]] || { echo "$bad: $output"; false; }
  done
}
