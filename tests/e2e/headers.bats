# Every public header compiles alone, as C17 and as C++, with all warnings as errors.

root=$BATS_TEST_DIRNAME/../..

# alone COMPILER FLAGS...: each header, twice in one file, so that a missing guard shows too.
alone() {
  local header
  for header in "$root"/include/blurry/*.h; do
    printf '#include "blurry/%s"\n#include "blurry/%s"\n' "$(basename "$header")" "$(basename "$header")" |
      "$@" -Wall -Wextra -Wpedantic -Werror -I"$root/include" -fsyntax-only - ||
      { echo "$header does not compile alone with $*"; return 1; }
  done
}

@test "as C17" {
  alone "${CC:-cc}" -std=c17 -x c
}

@test "as C++" {
  cxx=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
  [ -n "$cxx" ] || skip "no C++ compiler here"
  alone "$cxx" -std=c++11 -x c++
  alone "$cxx" -std=c++17 -x c++
}

@test "a header that needs another one first would be found" {
  folder=$(mktemp -d)
  mkdir -p "$folder/include/blurry"
  printf 'int64_t f(void);\n' >"$folder/include/blurry/needy.h"
  root=$folder run alone "${CC:-cc}" -std=c17 -x c
  rm -rf "$folder"
  [ "$status" -ne 0 ]
}
