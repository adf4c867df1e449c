#!/bin/sh
# The entry point of a container: entry.sh FOLDER COMMAND… joins the password files of FOLDER into the file that libpq
# reads (PGPASSFILE), and executes the command. Mounted secrets may be readable by others, and libpq refuses such files.
set -eu
folder=$1
shift
umask 077
for file in "$folder"/*.pgpass; do
    [ ! -e "$file" ] || cat "$file"
done > "$PGPASSFILE"
umask 022
exec "$@"
