# What the tests of sweeps share: a grid of eight small runs, and how a database is read.

setup() {
    cd "$BATS_TEST_TMPDIR"
    export BLURRY_THREADS=2
    cat >grid.yaml <<'YAML'
figure: pareto
base: {task: mqar, length: 32, pairs: 4, vocab: 64, width: 16, batch: 8, train_samples: 200, val_samples: 40,
       steps: 40, eval_every: 20, save_every: 5, lr: 0.01}
axes: {seed: [0, 1]}
groups:
  blurry: {base: {mixer: blurry}, axes: {modes: [2, 4]}}
  swa: {base: {mixer: swa}, axes: {window: [3, 7]}}
YAML
}

# All that results are, but for clocks and places.
contents() {
    sqlite3 "$1" "SELECT key, state, reason, config, state_elements, parameters, data, metric, best, best_step FROM runs ORDER BY key;
                  SELECT key, step, loss, accuracy, exact_match FROM evaluations ORDER BY key, step"
}

# count DATABASE STATE
count() {
    sqlite3 -cmd '.timeout 20000' "$1" "SELECT COUNT(*) FROM runs WHERE state = '$2'"
}
