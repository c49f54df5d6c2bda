#!/usr/bin/env bats
# `blurry figure`: both figures as SVG and PNG, drawn from what the operator computes.

setup() {
  cd "$BATS_TEST_TMPDIR"
  command -v gnuplot >/dev/null || skip "gnuplot is not installed"
}

@test "fig1 and fig2 are written as SVG and PNG" {
  for name in fig1 fig2; do
    run "$BLURRY" figure $name
    [ "$status" -eq 0 ]
    [ "$output" = "$name.svg
$name.png" ]
    grep -q '</svg>' $name.svg
    [ "$(head -c 4 $name.png | tail -c 3)" = PNG ]
  done
}

@test "one format by the ending, dark theme, other modes" {
  "$BLURRY" figure fig1 --out a.svg --modes 3 --resolution 1.5
  "$BLURRY" figure fig2 --out b.png --modes 12 --resolution 4 --theme dark
  [ -s a.svg ] && [ -s b.png ] && [ ! -e a.png ] && [ ! -e b.svg ]
}

@test "fig1: weights sum to one over the slots; at T = S they are one-hot and the slots hold the keys" {
  "$BLURRY" figure fig1 --out f.svg --csv f.csv
  awk -F, '$1 ~ /^weight_/ { sum[$1 "," $2] += $4 } $1 == "weight_T=15" && $4 != 0 && $4 != 1 { bad = 1 }
           $1 == "key_T=15" { key[$2] = $4 } $1 == "slot_T=15" { slot[$3] = $4; n++ }
           END { for (i in sum) if (sum[i] < 1 - 1e-6 || sum[i] > 1 + 1e-6) bad = 1
                 for (i in slot) if (slot[i] != key[i]) bad = 1
                 exit bad || n != 15 }' f.csv
}

@test "fig2: the operator equals full attention while T = S holds the sequence, and a window with decay" {
  "$BLURRY" figure fig2 --out f.svg --csv f.csv
  awk -F, 'function far(a, b) { return a - b > 1e-9 || b - a > 1e-9 }
           { w[$1 "," $2 "," $3] = $4 }
           END { for (t = 0; t < 15; t++) for (u = 0; u < 15; u++) {
                   full = w["full," t "," u]
                   if (far(full, w["slots_T=L=S," t "," u]) || far(full, w["slots_L>T=S," t "," u])) bad = 1
                   if (far(full, w["tokens_window," t "," u])) bad = 1
                   n++ }
                 for (t = 15; t < 30; t++) for (u = 0; u <= t - 15; u++) {
                   if (far(0, w["tokens_window," t "," u])) bad = 1                          # dropped
                   if (far(w["tokens_L>T=S," t "," u], w["tokens_L>T=S," t "," (u + 15)])) bad = 1 } # added up
                 exit bad || n != 225 }' f.csv
}

@test "bad options: message, exit 2, nothing written" {
  for bad in "" "fig3" "fig1 fig2" "fig1 --modes 0" "fig1 --modes x" "fig2 --resolution 0.5" "fig2 --resolution nan" \
             "fig1 --theme pink" "fig1 --colour red"; do
    run "$BLURRY" figure $bad
    [ "$status" -eq 2 ] || { echo "$bad: $status"; false; }
    [[ "$output" == *"blurry: figure"* ]] || { echo "$bad: $output"; false; }
  done
  [ -z "$(ls)" ]
}

@test "a file that cannot be written keeps what was there" {
  mkdir folder.svg
  run "$BLURRY" figure fig1 --out folder.svg
  [ "$status" -eq 1 ]
  [[ "$output" == *folder.svg* ]]
  run "$BLURRY" figure fig1 --out nowhere/f.svg
  [ "$status" -eq 1 ]
  [ "$(ls)" = folder.svg ]
}

@test "without gnuplot the message names the package" {
  run env PATH=/nonexistent "$BLURRY" figure fig1
  [ "$status" -eq 1 ]
  [[ "$output" == *gnuplot-nox* ]]
  [ -z "$(ls)" ]
}
