# Several ranks: `mpirun blurry sweep` and `mpirun blurry train`. Skipped where there is no mpirun, or no MPI in the build.

load sweep_grid
load eventually

ranks() {
    command -v mpirun >/dev/null || skip "needs mpirun"
    ldd "$BLURRY" | grep -q libmpi || skip "built without MPI"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

@test "four ranks give what one process gives" {
    ranks
    mpirun --oversubscribe -n 4 "$BLURRY" sweep grid.yaml --db ranks.db --jobs 1 --quiet
    "$BLURRY" sweep grid.yaml --db one.db --quiet
    cmp <(contents ranks.db) <(contents one.db)
    run mpirun --oversubscribe -n 2 "$BLURRY" sweep nothing.yaml --db x.db
    [ "$status" -ne 0 ]
    [[ "$output" == *"nothing.yaml"* ]]
}

all_busy() {
    [ "$(count ranks.db running 2>/dev/null)" = 4 ]
}

@test "four ranks, one killed in the middle: the sweep ends complete" {
    ranks
    mpirun --oversubscribe --enable-recovery -n 4 "$BLURRY" sweep grid.yaml --db ranks.db --jobs 1 --set steps=1000 >shown 2>&1 &
    mpi=$!
    eventually all_busy
    kill -9 "$(pgrep -P $mpi | tail -1)"
    wait $mpi
    grep -q 'its rank was lost' shown
    "$BLURRY" sweep grid.yaml --db one.db --quiet --set steps=1000
    cmp <(contents ranks.db) <(contents one.db)
}

@test "training over ranks equals one process with the same batch, also when resumed with another number of ranks" {
    ranks
    options="--length 32 --pairs 4 --vocab 64 --width 16 --batch 16 --train_samples 200 --val_samples 45 --steps 30 --eval_every 10
             --lr 0.01 --threads 1 --quiet"
    "$BLURRY" train mqar $options --out one
    mpirun --oversubscribe -n 4 "$BLURRY" train mqar $options --out four
    mpirun --oversubscribe -n 2 "$BLURRY" train mqar $options --out two --pause-at 15
    mpirun --oversubscribe -n 4 "$BLURRY" train mqar $options --out two
    for other in four two; do
        paste -d' ' <(grep '"eval"' one/log.jsonl | sed -E 's/.*"loss":([0-9.]*).*/\1/') \
                    <(grep '"eval"' $other/log.jsonl | sed -E 's/.*"loss":([0-9.]*).*/\1/') >losses
        cat losses
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $1) exit 1; n++ } END { exit n != 3 }' losses
    done
    run mpirun --oversubscribe -n 3 "$BLURRY" train mqar $options --out three
    [ "$status" -ne 0 ]
    [[ "$output" == *"over 3 ranks give a multiple of 3"* ]]
    [ ! -e three ]
}
