#!/bin/sh
# Create the passwords of the stack, once: docker/secrets/ with one file for each login. Existing files are kept.
#
# Each is a libpq password file with one line. Other users cannot enter the folder. The files themselves are readable,
# because a container reads its own ones as another user.
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
        echo "created docker/secrets/$1"
    fi
}

keep postgres ''
keep migrate.pgpass '*:*:*:sharequeue_migrate:'
keep serve.pgpass '*:*:*:sharequeue_serve:'
keep jobs.pgpass '*:*:*:sharequeue_jobs:'
keep reports.pgpass '*:*:*:sharequeue_reports:'
keep dagster.pgpass '*:*:*:dagster:'
