# `blurry sweep` as a user drives it: resuming, killing, failing, sharing, full disks, reports.

load sweep_grid
load eventually

@test "every run once, nothing left behind, the second time nothing to do" {
    "$BLURRY" sweep grid.yaml --db r.db >shown
    [ "$(count r.db done)" = 8 ]
    # which run ends last is a matter of luck
    grep -qE '^8/8 done  (blurry|swa) seed=[01] (modes|window)=[0-9]  best 0\.' shown
    grep -q 'r.db: 8 of 8 done' shown
    [ "$(ls)" = "$(printf 'grid.yaml\nr.db\nshown')" ]
    before=$(contents r.db | sha256sum)
    "$BLURRY" sweep grid.yaml --db r.db >again
    grep -qE '^r\.db: 8 of 8 done \([0-9:]+\)$' again
    ! grep -q ' best ' again || false # nothing was run
    [ "$(contents r.db | sha256sum)" = "$before" ]
    # what a run came to is what `blurry train` with its settings comes to
    sqlite3 r.db "SELECT config FROM runs WHERE mixer = 'swa' LIMIT 1" >config.yaml
    "$BLURRY" train mqar --config config.yaml --out alone --quiet
    [ "$(grep '"event":"end"' alone/log.jsonl | sed -E 's/.*"best":([0-9.]*).*/\1/')" = \
      "$(sqlite3 r.db "SELECT best FROM runs WHERE mixer = 'swa' LIMIT 1")" ]
}

@test "the number of runs at once makes no difference" {
    "$BLURRY" sweep grid.yaml --db one.db --jobs 1 --quiet
    "$BLURRY" sweep grid.yaml --db four.db --jobs 4 --quiet
    cmp <(contents one.db) <(contents four.db)
}

@test "kill -9 at random moments, resumed each time: every run once, the same bits" {
    "$BATS_TEST_DIRNAME"/../../scripts/kill-sweep "$BLURRY" 4 "$PWD/kill"
}

# busy PID: the sweep has a worker that is not PID, and that has a run; its process id is left in $worker
busy() {
    worker=$(pgrep -P "$sweep") && [ "$worker" != "$1" ] && [ "$(count r.db running)" = 1 ]
}

# lost N: the sweep has said N times that a run goes to another worker
lost() {
    [ "$(grep -c 'again .*signal 9' shown)" = "$1" ]
}

# failed N: so many runs count as failed
failed() {
    [ "$(count r.db failed)" = "$1" ]
}

@test "a worker that dies: its run is given to another one; one that dies again and again has failed" {
    "$BLURRY" sweep grid.yaml --db r.db --jobs 1 --set steps=100000 --set save_every=100000 >shown 2>&1 &
    sweep=$! worker=none
    for round in 1 2 3; do
        eventually busy "$worker" # with the run, in another process than before
        kill -9 "$worker"
        if [ $round -lt 3 ]; then eventually lost $round; else eventually failed 1; fi
    done
    kill -TERM $sweep
    code=0
    wait $sweep || code=$?
    [ $code = 1 ]
    [ "$(count r.db failed)" = 1 ]
    sqlite3 r.db 'SELECT reason FROM failures' | grep -q 'signal 9 (Killed), again and again'
    [ "$(count r.db pending)" = 7 ]
}

@test "runs that diverge are recorded with the reason, and tried again on request only" {
    cat >bad.yaml <<'YAML'
base: {task: mqar, length: 32, pairs: 4, vocab: 64, width: 16, batch: 8, val_samples: 40, steps: 20, mixer: softmax,
       schedule: constant, warmup: 0, clip: 0, mlp: gelu, norm: layernorm}
axes:
  rate: [{lr: 1000, weight_decay: 1000}, {lr: 0.001, weight_decay: 0.01}]
YAML
    "$BLURRY" sweep bad.yaml --db r.db >shown
    grep -q '1 diverged' shown
    [ "$(count r.db diverged)" = 1 ]
    [ "$(count r.db done)" = 1 ]
    sqlite3 r.db 'SELECT reason FROM failures' | grep -q 'first bad tensor'
    "$BLURRY" sweep bad.yaml --db r.db --quiet
    [ "$(sqlite3 r.db 'SELECT COUNT(*) FROM failures')" = 1 ]
    "$BLURRY" sweep bad.yaml --db r.db --quiet --retry diverged
    [ "$(sqlite3 r.db 'SELECT COUNT(*) FROM failures')" = 2 ]
    [ ! -e r.db.runs ]
}

@test "early stops: hopeless and finished runs end by rules, which can be switched off" {
    rules="--set give_up_after=0.4 --set give_up_below=0.9"
    "$BLURRY" sweep grid.yaml --db r.db --quiet --only swa $rules
    [ "$(sqlite3 r.db "SELECT DISTINCT reason FROM runs")" = give_up ]
    [ "$(sqlite3 r.db "SELECT MAX(step) FROM evaluations")" = 20 ]
    "$BLURRY" sweep grid.yaml --db s.db --quiet --only swa --set stop_at=0.001
    [ "$(sqlite3 s.db "SELECT DISTINCT reason FROM runs")" = stop_at ]
    "$BLURRY" sweep grid.yaml --db t.db --quiet --only swa $rules --no-early-stop
    [ "$(sqlite3 t.db "SELECT DISTINCT reason FROM runs")" = steps ]
}

@test "two sweeps on one database share the work" {
    "$BLURRY" sweep grid.yaml --db r.db --jobs 1 --quiet &
    "$BLURRY" sweep grid.yaml --db r.db --jobs 1 --quiet
    wait $!
    "$BLURRY" sweep grid.yaml --db one.db --jobs 1 --quiet
    cmp <(contents r.db) <(contents one.db)
    [ "$(sqlite3 r.db 'SELECT SUM(attempts) FROM runs')" = 8 ]
}

@test "a time limit and Ctrl-C pause it; the same command continues to the same results" {
    "$BLURRY" sweep grid.yaml --db r.db --jobs 1 --set steps=300 --limit-seconds 0.1 >shown
    grep -q 'to go: the same command continues' shown
    "$BLURRY" sweep grid.yaml --db r.db --jobs 1 --set steps=300 --quiet &
    sleep 0.5
    kill -INT $! 2>/dev/null || true
    kill -TERM $! 2>/dev/null || true
    wait $! || true
    "$BLURRY" sweep grid.yaml --db r.db --set steps=300 --quiet
    "$BLURRY" sweep grid.yaml --db whole.db --set steps=300 --quiet
    cmp <(contents r.db) <(contents whole.db)
}

@test "a full disk: a message, and nothing lost" {
    [ "$(id -u)" = 0 ] || skip "needs root"
    mkdir small
    mount -t tmpfs -o size=700k tmpfs small 2>/dev/null || skip "cannot mount"
    "$BLURRY" sweep grid.yaml --db small/r.db --quiet --only blurry
    done_before=$(count small/r.db done)
    dd if=/dev/zero of=small/filler bs=1k count=2000 2>/dev/null || true
    code=0
    "$BLURRY" sweep grid.yaml --db small/r.db --quiet >said 2>&1 || code=$?
    rm small/filler
    kept=$(count small/r.db done)
    "$BLURRY" sweep grid.yaml --db small/r.db --quiet
    contents small/r.db >small.txt
    umount small
    cat said
    [ $code -ne 0 ]
    grep -qiE 'disk is full|No space left' said
    [ "$done_before" = 4 ] && [ "$kept" -ge 4 ]
    "$BLURRY" sweep grid.yaml --db whole.db --quiet
    cmp small.txt <(contents whole.db)
}

@test "a read-only or foreign database is refused before anything is run" {
    "$BLURRY" sweep grid.yaml --db r.db --quiet --only swa
    chmod a-w r.db
    run "$BLURRY" sweep grid.yaml --db r.db
    [ "$status" -eq 2 ]
    [[ "$output" == *"r.db: the database is read-only"* ]]
    echo text >text.db
    run "$BLURRY" sweep grid.yaml --db text.db
    [ "$status" -eq 2 ]
    [[ "$output" == *"text.db: not a results database"* ]]
    run "$BLURRY" sweep grid.yaml --db missing/r.db
    [ "$status" -eq 2 ]
    [[ "$output" == *"missing/r.db"* ]]
    [ "$(count r.db done)" = 4 ]
}

@test "wrong files and lines: exit code 2, file and line, nothing made" {
    while IFS='|' read -r edit message; do
        sed "$edit" grid.yaml >bad.yaml
        run "$BLURRY" sweep bad.yaml --db r.db
        echo "$edit: $status $output"
        [ "$status" -eq 2 ]
        [[ "$output" == *"$message"* ]]
        [ ! -e r.db ]
    done <<'CASES'
s/width: 16/widht: 16/|bad.yaml:2: unknown setting 'widht': did you mean 'width'
s/seed: \[0, 1\]/seed: []/|bad.yaml:4: axis seed has no values: the grid is empty
s/modes: \[2, 4\]/modes: [2], seed: [3]/|bad.yaml:6: axis seed is given twice (first in line 4)
s/modes: \[2, 4\]/heads: [1, 3]/|bad.yaml:6: group blurry: impossible combination: seed=0 (line 4) heads=3 (line 6): mixer blurry: heads is 3
s/pairs: 4/pairs: 40/|bad.yaml:2:
s/figure: pareto/figure: [/|bad.yaml:
CASES
    for arguments in "" "grid.yaml" "none.yaml --db r.db" "grid.yaml --db r.db --jobs 0" "grid.yaml --db r.db --jobs x" \
        "grid.yaml --db r.db --retry some" "grid.yaml --db r.db --set seed=3" "grid.yaml --db r.db --set nothing=3" \
        "grid.yaml --db r.db --only gsa" "grid.yaml --db r.db --device tpu" "grid.yaml --db r.db --limit-seconds -1" "a b --db r.db"; do
        run "$BLURRY" sweep $arguments
        echo "$arguments: $status $output"
        [ "$status" -eq 2 ]
        [ ! -e r.db ]
    done
}

@test "--dry-run lists the runs and does nothing" {
    "$BLURRY" sweep grid.yaml --dry-run >shown
    [ "$(grep -c 'seed=' shown)" = 8 ]
    grep -qE '^blurry +[0-9a-f]{16} +192 +[0-9]+ +40 +[0-9:]+  seed=0 modes=2$' shown
    grep -q 'grid: 8 runs, .* one after another (judged by a few steps' shown
    [ "$(ls)" = "$(printf 'grid.yaml\nshown')" ]
    "$BLURRY" sweep grid.yaml --db r.db --quiet
    "$BLURRY" sweep grid.yaml --db r.db --dry-run | grep -q 'judged by the runs that are done'
    for file in "$BATS_TEST_DIRNAME"/../../experiments/*.yaml; do "$BLURRY" sweep "$file" --only nonsense 2>&1 --db x.db | grep -q "no group"; done
}

@test "every experiment is a good file" {
    for file in "$BATS_TEST_DIRNAME"/../../experiments/*small.yaml "$BATS_TEST_DIRNAME"/../../experiments/fig3?.yaml; do
        "$BLURRY" sweep "$file" --dry-run --set batch=1 >shown || { echo "$file"; false; }
        tail -1 shown
    done
}

@test "--keep keeps models that can be evaluated and reported" {
    "$BLURRY" sweep grid.yaml --db r.db --keep --quiet --only swa
    [ "$(ls r.db.runs | wc -l)" = 4 ]
    for run in r.db.runs/*; do "$BLURRY" eval "$run" --eval_samples 8 >/dev/null; done
}

@test "the report of a database: figures, ratios, tables, CSV" {
    command -v gnuplot >/dev/null || skip "needs gnuplot"
    "$BLURRY" sweep grid.yaml --db r.db --quiet
    "$BLURRY" report --db r.db --out r.html --png png --csv csv
    [ -s png/grid.png ]
    [ "$(wc -l <csv/grid.csv)" = 5 ]
    grep -q '^blurry,192,192,' csv/grid.csv
    grep -q 'No comparison with <strong>swa</strong>' r.html # nothing was learnt in 40 steps
    # with results made up, the ratio at the best that both reach: swa needs 448 elements for .8, blurry 192
    cp r.db made-up.db
    sqlite3 made-up.db "UPDATE runs SET best = CASE WHEN mixer = 'blurry' THEN 0.8 + (state_elements > 192) * 0.1
                        ELSE 0.1 + (state_elements > 192) * 0.7 END"
    "$BLURRY" report --db made-up.db --out made-up.html
    grep -q '<strong>swa</strong> needs <strong>2.3 times</strong> the state of <strong>blurry</strong> (448 against 192' made-up.html
    grep -q 'What was swept' r.html
    if command -v tidy >/dev/null; then tidy -q -e r.html; fi
    for figure in state resolution width choices; do "$BLURRY" report --db r.db --figure $figure --out $figure.html; done
    run "$BLURRY" report --db r.db --sweep nothing --out x.html
    [ "$status" -eq 2 ]
    run "$BLURRY" report --db nothing.db --out x.html
    [ "$status" -eq 2 ]
    run "$BLURRY" report --db r.db --figure pie --out x.html
    [ "$status" -eq 2 ]
    [ ! -e x.html ]
}

@test "bench sweep counts runs per hour" {
    "$BLURRY" bench sweep --runs 2 --serial 2 --steps 2 --set length=64 --set pairs=4 --set vocab=64 --set batch=2 --json >shown
    grep -qE '"runs_per_hour":[0-9.e+]+,"ratio":[0-9.]+' shown
}
