#!/usr/bin/env bats
# `blurry report`: one page from real runs, and clean refusals of everything that is not a run.

setup() {
  cd "$BATS_TEST_TMPDIR"
  command -v gnuplot >/dev/null || skip "gnuplot is not installed"
}

# train DIR KEY=VALUE...: a run of seconds
train() {
  local out=$1
  shift
  "$BLURRY" train mqar --out "$out" --quiet --set length=32 --set pairs=4 --set vocab=32 --set width=16 --set modes=4 \
    --set window=7 --set batch=8 --set steps=12 --set eval_every=4 --set eval_samples=16 --set train_samples=64 \
    --set val_samples=16 $(printf -- '--set %s ' "$@")
}

# fake DIR: a run without checkpoint, by hand
fake() {
  mkdir -p "$1"
  printf 'task: mqar\nmixer: swa\nwindow: 7\nlength: 32\npairs: 4\nvocab: 32\nwidth: 16\nseed: %s\n' "${2:-1}" >"$1/config.yaml"
  printf '%s\n' '{"event":"start","step":0}' '{"event":"eval","step":5,"loss":3.1,"accuracy":0.25}' \
    '{"event":"eval","step":10,"loss":2.9,"accuracy":0.5}' '{"event":"end","step":10,"reason":"steps","seconds":1.5}' \
    >"$1/log.jsonl"
}

@test "a page from three mixers and two seeds: self-contained, valid, with every number as CSV and PNG" {
  train a1 mixer=blurry seed=1
  train a2 mixer=blurry seed=2
  train b1 mixer=swa seed=1
  train c1 mixer=softmax seed=1
  run "$BLURRY" report a1 a2 b1 c1 --out r.html --png png --csv csv
  [ "$status" -eq 0 ]
  [ "$output" = r.html ]
  ! grep -Eiq '<script|<link|<img|<iframe|@import|src=|href="?https?:|url\(https?:' r.html || false
  [ "$(grep -c '<svg' r.html)" -eq 13 ] # 3 in the legend, training, state, 2 layers of 3 masks, kernels, slots
  [ "$(grep -o ' id="[^"]*"\| id='"'[^']*'" r.html | sort | uniq -d | wc -l)" -eq 0 ]
  if command -v tidy >/dev/null; then tidy -e -q r.html; fi
  for name in training state kernels slots mask1 mask6; do [ "$(head -c 4 png/$name.png | tail -c 3)" = PNG ]; done
  [ "$(tail -n +2 csv/groups.csv | wc -l)" -eq 3 ]
  [ "$(tail -n +2 csv/runs.csv | wc -l)" -eq 4 ]
  [ "$(tail -n +2 csv/curves.csv | wc -l)" -eq 12 ]
}

@test "statistics over seeds and state sizes are right" {
  fake f1 1
  fake f2 2
  sed -i 's/"accuracy":0.5/"accuracy":0.75/' f2/log.jsonl
  run "$BLURRY" report f1 f2 --out r.html --csv csv
  [ "$status" -eq 0 ]
  # best 0.5 and 0.75: mean .625, sample deviation .176776695; 2 layers of 7 keys and values of width 16
  [ "$(sed -n 2p csv/groups.csv)" = '"sliding window, w = 7",swa,448,2,0.625,0.176776695,0.5,0.75,0.625' ]
  grep -q '62.5.*%' r.html
}

@test "masks of trained models: rows of weights sum to one, windows end where they should" {
  train b1 mixer=swa seed=3
  train c1 mixer=softmax seed=3
  "$BLURRY" report b1 c1 --out r.html --csv csv
  # group, layer, head, query, token, weight; group 1 is the window
  awk -F, 'NR > 1 { n++; t = $(NF-2); u = $(NF-1); sum[$1 "/" $(NF-4) "/" t] += $NF
                    if (u > t || ($1 == 1 && t - u > 6)) bad = 1 }
           END { for (i in sum) if (sum[i] > 1.001 || sum[i] < 0.2) bad = 1; exit bad || n < 64 }' csv/masks.csv
}

@test "strings from files cannot break out of the page" {
  fake '<b>"x"&'"'"'$(id)' 1
  sed -i 's|"reason":"steps"|"reason":"<script>alert(1)</script>"|' './<b>"x"&'"'"'$(id)/log.jsonl'
  run "$BLURRY" report '<b>"x"&'"'"'$(id)' --out r.html
  [ "$status" -eq 0 ]
  ! grep -q '<script\|<b>"x"' r.html || false
  grep -q '&lt;b&gt;' r.html
  if command -v tidy >/dev/null; then tidy -e -q r.html; fi
}

@test "what is not a run: message, exit 2, the old page stays" {
  fake good
  fake noconfig && rm noconfig/config.yaml
  fake nolog && rm nolog/log.jsonl
  fake noeval && sed -i /eval/d noeval/log.jsonl
  fake cut && truncate -s -9 cut/log.jsonl
  fake array && echo '[1]' >>array/log.jsonl
  fake text && echo 'hello' >>text/log.jsonl
  fake zero && printf 'a\0b\n' >>zero/log.jsonl
  fake range && echo '{"event":"eval","step":11,"accuracy":7}' >>range/log.jsonl
  fake string && echo '{"event":"eval","step":11,"accuracy":"1"}' >>string/log.jsonl
  fake null && echo '{"event":"eval","step":11,"accuracy":null}' >>null/log.jsonl
  fake back && echo '{"event":"eval","step":1,"accuracy":0.1}' >>back/log.jsonl
  fake negative && echo '{"event":"eval","step":-1,"accuracy":0.1}' >>negative/log.jsonl
  fake deep && { printf '{"event":'; printf '[%.0s' $(seq 5000); echo; } >>deep/log.jsonl
  fake badkey && echo 'widht: 3' >>badkey/config.yaml
  fake badyaml && printf 'a: [' >>badyaml/config.yaml
  fake othertask && sed -i 's/task: mqar/task: regbench/' othertask/config.yaml
  touch file
  echo old >r.html
  for bad in missing file noconfig nolog noeval cut array text zero range string null back negative deep badkey badyaml \
             othertask; do
    run "$BLURRY" report good $bad --out r.html
    [ "$status" -eq 2 ] || { echo "$bad: $status $output"; false; }
    [[ "$output" == blurry:*"$bad"* ]] || [[ "$output" == blurry*"$bad"* ]] || { echo "$bad: $output"; false; }
    [ "$(cat r.html)" = old ]
  done
  run "$BLURRY" report
  [ "$status" -eq 2 ]
  [ "$(ls -A | grep -c 'r.html')" -eq 1 ] # and no temporary file beside it
}

@test "a damaged checkpoint is refused, a missing one only leaves the masks out" {
  train a1 mixer=blurry seed=1
  cp -r a1 b1
  for f in b1/best.safetensors b1/model.safetensors; do truncate -s 100 $f; done
  echo old >r.html
  run "$BLURRY" report b1 --out r.html
  [ "$status" -eq 2 ]
  [ "$(cat r.html)" = old ]
  rm -f b1/*.safetensors
  run "$BLURRY" report b1 --out r.html
  [ "$status" -eq 0 ]
  [[ "$output" == *"no checkpoint"* ]]
  ! grep -q 'What the trained models look at' r.html || false
}

@test "an output that cannot be written: exit 1, message" {
  fake good
  run "$BLURRY" report good --out nowhere/r.html
  [ "$status" -eq 1 ]
  [[ "$output" == *nowhere* ]]
}
