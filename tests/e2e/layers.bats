# scripts/check-layers: the repository keeps its include rules, and each planted violation is found.

root=$BATS_TEST_DIRNAME/../..

setup() {
  tree=$(mktemp -d)
  mkdir -p "$tree"/include/blurry "$tree"/cli "$tree"/src/{base,kernels/a,kernels/b,attention,device,mixers,model,tasks,train,sweep,selftest}
}

teardown() {
  rm -rf "$tree"
}

@test "the repository keeps its layers" {
  run "$root/scripts/check-layers"
  echo "$output"
  [ "$status" -eq 0 ]
}

# planted FILE INCLUDE MESSAGE: the include in that file must be the one thing found, with its place.
planted() {
  printf '/* first */\n#include "base/status.h"\n' >"$tree/src/base/fine.c"
  printf '/* line one */\n  #  include %s\n' "$2" >"$tree/$1"
  run "$root/scripts/check-layers" "$tree"
  rm "$tree/$1"
  [ "$status" -eq 1 ] || { echo "not found: $1 $2"; return 1; }
  [[ ${lines[0]} == "$1:2: #include $2: "*"$3"* && ${#lines[@]} -eq 1 ]] || { echo "$output"; return 1; }
}

fine() { # fine FILE INCLUDE
  printf '#include %s\n' "$2" >"$tree/$1"
  run "$root/scripts/check-layers" "$tree"
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

@test "upward includes are found" {
  planted src/base/x.c '"kernels/variant.h"' "src/base may include only: base"
  planted src/base/x.h '"train/loop.h"' "may include only"
  planted src/kernels/a/ref.c '"device/device.h"' "src/kernels may include only: base kernels"
  planted src/attention/x.c '"device/device.h"' "src/attention may include only"
  planted src/device/x.c '"attention/plan.h"' "src/device may include only"
  planted src/device/x.c '"mixers/mixer.h"' "may include only"
  planted src/mixers/x.c '"model/model.h"' "may include only"
  planted src/model/x.c '"train/loop.h"' "may include only"
  planted src/model/x.c '"tasks/task.h"' "may include only"
  planted src/train/x.c '"sweep/grid.h"' "may include only"
  planted src/sweep/x.c '"cli/cli.h"' "may include only"
  planted src/selftest/x.c '"mixers/mixer.h"' "may include only"
}

@test "tasks see base only" {
  planted src/tasks/x.c '"kernels/variant.h"' "src/tasks may include only: base tasks"
  planted src/tasks/x.c '"model/model.h"' "may include only"
  planted src/tasks/x.c '"blurry/model.h"' "belongs to model"
}

@test "public headers of higher layers are found" {
  planted src/base/x.c '"blurry/train.h"' "belongs to train"
  planted src/kernels/a/x.c '"blurry/model.h"' "belongs to model"
}

@test "one operation does not include another" {
  planted src/kernels/a/simd.c '"kernels/b/b.h"' "one operation does not include another"
}

@test "the command line sees the public headers only" {
  planted cli/cmd_x.c '"base/file.h"' "include/blurry and cli/ only"
  planted cli/cmd_x.c '"options.h"' "include/blurry and cli/ only"
}

@test "CUDA headers stay in their places" {
  planted src/model/x.c '<cuda_runtime.h>' "CUDA headers belong"
  planted cli/x.c '<cuda.h>' "CUDA headers belong"
  planted src/device/device.c '<cublasLt.h>' "CUDA headers belong"
  fine src/device/cuda_table.c '<cuda_runtime.h>'
  fine src/kernels/a/cuda.cu '<cuda_bf16.h>'
}

@test "public headers need standard headers only" {
  planted include/blurry/x.h '<yaml.h>' "standard C headers and blurry/"
  planted include/blurry/x.h '<unistd.h>' "standard C headers and blurry/"
  planted include/blurry/x.h '"base/status.h"' "standard C headers and blurry/"
  planted include/blurry/x.h '"status.h"' "standard C headers and blurry/"
}

@test "paths that hide their layer are found" {
  planted src/base/x.c '"../kernels/variant.h"' "no . or .."
  touch "$tree/src/base/y.h"
  planted src/base/x.c '"y.h"' "write the path from src/ on"
  mkdir "$tree/src/novel"
  planted src/novel/x.c '"base/status.h"' "is no known layer"
}

@test "downward includes are fine" {
  fine src/kernels/a/ref.c '"kernels/variant.h"'
  fine src/kernels/a/simd.c '"kernels/a/a.h"'
  fine src/mixers/x.c '"device/device.h"'
  fine src/train/x.c '"tasks/task.h"'
  fine src/train/y.c '"blurry/task.h"'
  fine src/model/x.c '"blurry/model.h"'
  fine src/selftest/x.c '"attention/plan.h"'
  fine src/base/x.c '<jansson.h>'
  fine cli/cmd_x.c '"blurry/train.h"'
  fine cli/cmd_y.c '<jansson.h>'
  fine include/blurry/x.h '<stdint.h>'
  fine include/blurry/y.h '"blurry/status.h"'
}

@test "the Python package binds to the public headers only" {
  mkdir -p "$tree/python/blurry"
  printf 'HEADERS = "include/blurry"\n' >"$tree/python/blurry/fine.py"
  run "$root/scripts/check-layers" "$tree"
  [ "$status" -eq 0 ]
  printf 'HEADERS = "src/base/status.h"\n' >"$tree/python/blurry/nosy.py"
  run "$root/scripts/check-layers" "$tree"
  [ "$status" -eq 1 ]
  [[ "$output" == *"nosy.py:1"* ]]
}
