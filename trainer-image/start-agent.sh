#!/bin/sh
# Stands beside the agent in workers of images that do not hold it, in place of their command, which follows:
# finds a Python for the agent. Where there is none, 96 asks the operator for workers without it.
for word in "$@"; do
    case ${word##*/} in
    -*) ;;
    python | python[0-9] | python[0-9].[0-9] | python[0-9].[0-9][0-9]) own=$word && break ;;
    *) break ;;
    esac
done
for python in python3 ${own:+"$own"} python; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        exec "$python" -I -S "${0%/*}/agent" "$@"
    fi
done
reason="trainyard-agent: there is no Python 3.9 or newer on the PATH of this image"
echo "$reason" >&2
echo "$reason" >"${TRAINYARD_TERMINATION_LOG:-/dev/termination-log}"
exit 96
