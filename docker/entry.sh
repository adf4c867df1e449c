#!/bin/sh
# How a container begins: entry.sh FOLDER COMMAND… puts the password files of FOLDER together where libpq reads them
# (PGPASSFILE), and becomes the command. A mounted secret may be read by a group or by all, and libpq takes no such file.
set -eu
folder=$1
shift
umask 077
for file in "$folder"/*.pgpass; do
    [ ! -e "$file" ] || cat "$file"
done > "$PGPASSFILE"
umask 022
exec "$@"
