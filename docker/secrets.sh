#!/bin/sh
# Make the passwords of the stack, once: docker/secrets/, a file for each login. A file that is there is kept.
#
# Each is a password file of libpq with one line. The folder is closed to others. The files are not, because a container
# sees its own ones only, and reads them as another user.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

password() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

keep() { # NAME PREFIX
    if [ ! -s "secrets/$1" ]; then
        printf '%s%s\n' "$2" "$(password)" > "secrets/$1.new"
        chmod 444 "secrets/$1.new"
        mv "secrets/$1.new" "secrets/$1"
        echo "made docker/secrets/$1"
    fi
}

keep postgres ''
keep migrate.pgpass '*:*:*:sharequeue_migrate:'
keep serve.pgpass '*:*:*:sharequeue_serve:'
keep jobs.pgpass '*:*:*:sharequeue_jobs:'
keep reports.pgpass '*:*:*:sharequeue_reports:'
keep dagster.pgpass '*:*:*:dagster:'
