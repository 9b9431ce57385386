#!/bin/sh
# Stands beside the agent in workers of images that do not hold it, in place of their command, which follows:
# finds a Python for the agent. Where there is none, 96 asks the operator for workers without it.
# The kernel tells the first process of a container of no signal that it does not catch.
trap 'exit 143' TERM INT
for word in "$@"; do
    case ${word##*/} in
    -*) ;;
    python | python[0-9] | python[0-9].[0-9] | python[0-9].[0-9][0-9]) own=$word && break ;;
    *) break ;;
    esac
done
# Debian's python3-minimal, for one, lacks much of the standard library: what the agent needs to start, and zlib to be read.
needs='import sys
if sys.version_info < (3, 9): sys.exit(1)
try: import ctypes, json, selectors, statistics, zlib
except ImportError as error: print(error.name); sys.exit(1)'
for python in python3 ${own:+"$own"} python; do
    if found=$("$python" -I -S -c "$needs" 2>/dev/null); then
        exec "$python" -I -S "${0%/*}/agent" "$@"
    fi
    lacks=${lacks:-$found}
done
reason="trainyard-agent: there is no Python 3.9 or newer on the PATH of this image${lacks:+ that has the module $lacks}"
echo "$reason" >&2
echo "$reason" >"${TRAINYARD_TERMINATION_LOG:-/dev/termination-log}"
exit 96
