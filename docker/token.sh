#!/bin/sh
# token.sh PRINCIPAL FILE: make a token for the service's callers, and put it into FILE in place of the one before.
# The old one stays in force until it expires, so runs that are at work go on.
set -eu
umask 077
sharequeue tokens create --principal "$1" --expires P400D --note "made by docker/token.sh" > "$2.new"
mv "$2.new" "$2"
