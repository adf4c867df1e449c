#!/bin/sh
# token.sh PRINCIPAL FILE: create a token for callers of the service, and replace the one in FILE with it.
# The old one stays valid until it expires, so that active runs continue.
set -eu
umask 077
sharequeue tokens create --principal "$1" --expires P400D --note "made by docker/token.sh" > "$2.new"
mv "$2.new" "$2"
