#!/usr/bin/env bats
# `blurry data`: summary, samples, statistics, hashes, files, and refusals that leave everything as it was.

small="--length 32 --pairs 4 --vocab 32 --train_samples 20 --val_samples 5 --test_samples 3"

setup() { cd "$BATS_TEST_TMPDIR"; }

# refused MESSAGE ARGUMENTS...: exit code 2, the message on stderr, nothing on stdout, no file left behind.
refused() {
  local message=$1 before=$(ls -A | grep -v '^std')
  shift
  local code=0
  "$BLURRY" data "$@" >stdout 2>stderr || code=$?
  [ "$code" -eq 2 ] || { echo "exit code $code for: $*"; return 1; }
  grep -qF -- "$message" stderr || { echo "no '$message' in:"; cat stderr; return 1; }
  [ ! -s stdout ] && [ "$(ls -A | grep -v '^std')" = "$before" ]
}

@test "help lists the tasks and their settings" {
  run "$BLURRY" data --help
  [ "$status" -eq 0 ]
  for word in mqar regbench text pairs power filler automata val_share data_seed --show --stats --out; do
    [[ "$output" == *"$word"* ]]
  done
}

@test "a sample is shown with its labels, the same every time" {
  run "$BLURRY" data mqar $small --show 0
  [ "$status" -eq 0 ]
  first=$output
  [ "$(grep -o '[0-9]*>[0-9]*' <<<"$output" | wc -l)" -eq 4 ]
  # every query repeats a pair: key, then the value named as its label
  pairs=$(sed -n 's/^ *0  //p' <<<"$output" | cut -d' ' -f1-8)
  for query in $(grep -o '[0-9]*>[0-9]*' <<<"$output"); do
    [[ " $pairs " == *" ${query%>*} ${query#*>} "* ]]
  done
  run "$BLURRY" data mqar $small --show 0
  [ "$output" = "$first" ]
  run "$BLURRY" data mqar $small --show 0 --data_seed 1
  [ "$output" != "$first" ]
}

@test "regbench and text samples are readable" {
  run "$BLURRY" data regbench --automata 5 --show 2 --split test
  [ "$status" -eq 0 ]
  [[ "$output" == *"legal there:"* ]]
  printf 'To be, or not to be, that is the question:\n%.0s' {1..20} >text
  run "$BLURRY" data text text --length 20 --show 0
  [ "$status" -eq 0 ]
  [[ "$output" == *"the next token at 20 of 20 positions"* ]]
}

@test "statistics of mqar and the four predictors of regbench" {
  run "$BLURRY" data mqar --stats --samples 500 --json
  [ "$status" -eq 0 ]
  awk -F'[:,]' '{ for (i = 1; i < NF; i++) if ($i ~ /distance_median/) m = $(i + 1) } END { exit !(m > 150 && m < 160) }' <<<"$output"
  run "$BLURRY" data regbench --stats --split train
  [ "$status" -eq 0 ]
  awk '$1 == "unigram" { u = $2 } $1 == "bigram" { b = $2 } $1 == "trigram" { t = $2 } $1 == "true_state" { s = $2 }
       function near(a, b) { return a - b < .02 && b - a < .02 }
       END { exit !(near(u, .475) && near(b, .827) && near(t, .937) && near(s, .987)) }' <<<"$output"
}

@test "a file gives the same samples and hash as the generator" {
  for task in "mqar $small" "mqar $small --filler random" "regbench --automata 30 --val_samples 6 --test_samples 4"; do
    rm -f data
    run "$BLURRY" data $task --out data
    [ "$status" -eq 0 ]
    hash=$(grep -o 'sha256 [0-9a-f]\{64\}' <<<"$output")
    [ "$("$BLURRY" data $task --hash | grep sha256)" = "$hash" ]
    [ "$("$BLURRY" data ${task%% *} --data data --hash | grep sha256)" = "$hash" ]
    for split in train val test; do
      [ "$("$BLURRY" data $task --show 2 --split $split)" = "$("$BLURRY" data ${task%% *} --data data --show 2 --split $split)" ]
    done
  done
}

@test "dry run writes nothing; an existing file is kept unless forced" {
  run "$BLURRY" data mqar $small --out data --dry-run
  [ "$status" -eq 0 ]
  [ ! -e data ]
  echo precious >data
  refused "it exists" mqar $small --out data
  [ "$(cat data)" = precious ]
  "$BLURRY" data mqar $small --out data --force
  "$BLURRY" data mqar --data data
}

@test "bad settings and files: message, exit code 2, nothing written" {
  refused "the task is missing"
  refused "use mqar, regbench or text" mqra --out data
  refused "mqar needs an even length" mqar --length 511 --out data
  refused "64 pairs need at least 256" mqar --length 128 --out data
  refused "64 distinct keys need at least 130" mqar --vocab 100 --out data
  refused "pairs" mqar --pairs 0 --out data
  refused "nosuch" text nosuch --out data
  refused "name the text to learn" text --out data
  : >empty
  refused "it is empty" text empty --out data
  printf 'short' >short
  refused "longer text or a smaller length" text short --out data
  refused "not understood" mqar extra --out data
  refused "nosuch" mqar --data nosuch
  refused "data is short" mqar --data short
  refused "--show is 'x'" mqar --show x
  refused "split is 'valid'" mqar --split valid
  refused "--samples is '0'" mqar --stats --samples 0
  refused "--json is for --stats" mqar --json
}

@test "a sample that does not exist is refused" {
  run "$BLURRY" data mqar $small --show 5
  [ "$status" -eq 2 ]
  [[ "$output" == *"index is 5: val of mqar has 5 samples"* ]]
}

@test "a file of another task, an altered and a cut file are refused" {
  "$BLURRY" data mqar $small --out data
  refused "it holds samples of 'mqar', but task is regbench" regbench --data data
  cp data altered
  size=$(stat -c %s altered)
  printf '\x03' | dd of=altered bs=1 seek=$((size - 4)) conv=notrunc status=none # the last label
  refused "data is altered" mqar --data altered
  head -c $((size - 1)) data >cut
  refused "data is cut" mqar --data cut
}

@test "a folder that cannot be written to: exit code 1" {
  run "$BLURRY" data mqar $small --out /nonexistent/folder/data
  [ "$status" -eq 1 ]
  [[ "$output" == *"/nonexistent/folder"* ]]
}
