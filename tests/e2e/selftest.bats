#!/usr/bin/env bats
# `blurry selftest` names every kernel and ends well; nonsense is refused.

@test "every kernel passes and is listed" {
  run "$BLURRY" selftest
  [ "$status" -eq 0 ]
  [[ "$output" == *"attention  ref     f32"* ]]
  [[ "$output" == *"decode     base    f64"* ]]
  [[ "$output" == *"all kernels agree"* ]]
  [[ "$output" != *MISSED* ]]
  # with a GPU its kernels, without one a line that says so
  grep -qx 'cuda: no device' <<<"$output" || [[ "$output" == *"attention  cuda    bf16"*"decode     cuda    bf16"* ]]
}

@test "arguments are refused" {
  run "$BLURRY" selftest --fast
  [ "$status" -eq 2 ]
}
