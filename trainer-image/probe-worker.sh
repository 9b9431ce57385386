#!/bin/sh
# Run a probe of the worker's program: a command after --, or a request as JSON. It succeeds without a check while the worker waits for
# its group, or has just started its program again: the kubelet counts the delays of a probe from the start of the container alone.
name=trainyard-probe-$TRAINYARD_JOB_UID-$TRAINYARD_ATTEMPT-$TRAINYARD_REPLICA_INDEX
for folder in /dev/shm /tmp; do
    # A file of another user could name any program.
    [ -O "$folder/$name" ] && [ ! -L "$folder/$name" ] && read -r state python <"$folder/$name" && break
done
[ "${state:-}" = hold ] && exit 0
[ "$1" = -- ] && shift && exec "$@"
exec "${python:-python3}" -I -S "${0%/*}/agent" --probe "$1"
