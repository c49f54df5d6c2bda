#!/usr/bin/env bats
# The benchmarks' options, and what they say where there is no GPU. Times are not tested.

@test "bench op and decode refuse unknown devices and types with exit code 2" {
    for bench in op decode; do
        run "$BLURRY" bench $bench --device gpu
        [ "$status" -eq 2 ]
        [[ "$output" == *"--device is 'gpu': give cpu or cuda"* ]]
        run "$BLURRY" bench $bench --device cuda --precision f64
        [ "$status" -eq 2 ]
        [[ "$output" == *"give f32 or bf16"* ]]
        run "$BLURRY" bench $bench --precision bf16
        [ "$status" -eq 2 ]
        [[ "$output" == *"--device cuda"* ]]
    done
}

@test "without a GPU the benchmarks on cuda fail and name the remedy" {
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
        skip "this machine has a GPU"
    fi
    for bench in op decode; do
        run "$BLURRY" bench $bench --device cuda
        [ "$status" -eq 1 ] || [ "$status" -eq 2 ] # failed on this machine, or not in this build
        [[ "$output" == *"device is cuda"* ]]
        [[ "$output" == *"device=cpu"* ]]
    done
}
