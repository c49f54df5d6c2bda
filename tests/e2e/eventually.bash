# eventually COMMAND...: waits until it succeeds, however slow the machine; a minute and a half without is a failure.
eventually() {
    local i
    for ((i = 0; i < 1800; i++)); do
        "$@" && return 0
        sleep 0.05
    done
    echo "this never came about: $*"
    return 1
}
