#!/bin/sh
# Find a Python for the agent, in workers whose image does not hold it. The worker's command follows as arguments.
# Where there is no Python, exit code 96 asks the operator for workers without the agent.
# The kernel delivers no signal to the first process of a container that it does not catch.
trap 'exit 143' TERM INT HUP QUIT
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
reason="there is no Python 3.9 or newer on the PATH of this image${lacks:+ that has the module $lacks}"
echo "trainyard-agent: $reason" >&2
# As the agent's own termination message: a line for the operator, then text.
printf '%s\n%s\n' '{"trainyard":1,"kind":"agentUnable","exitCode":96}' "$reason" >"${TRAINYARD_TERMINATION_LOG:-/dev/termination-log}"
exit 96
