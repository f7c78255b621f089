#!/usr/bin/env bash
# The main job on a temporary folder: serve, produce real lines, consume as a group, survive
# kill -9, get every byte back.
set -euo pipefail

work=$(mktemp -d)
node=
finish() {
    [ -n "$node" ] && kill "$node" 2>/dev/null && wait "$node" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

start() {
    : > "$work/ready"
    goq serve --data-dir "$work/data" --listen 127.0.0.1:0 > "$work/ready" 2> "$work/node.log" &
    node=$!
    until url=$(grep -o 'http://[^,]*' "$work/ready"); do
        kill -0 "$node" || { cat "$work/node.log"; exit 1; }
        sleep 0.05
    done
    export GOQ_SERVER=$url
}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; eval "$*"; }

cd "$work"
find "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')" -maxdepth 1 -name '*.py' \
    -exec cat {} + | head -n 200000 > lines.txt

say "A node on a temporary folder"
start
cat "$work/ready"

say "Publish a large file, a line a message, from the standard library's own source"
run "wc -l < lines.txt"
run "time goq produce code < lines.txt"

say "A group of workers: every line is leased, printed and acknowledged"
run "goq consume code --group readers --max 50000 | tail -n 1"
run "goq group show readers --topic code"

say "kill -9, in the middle of publishing and consuming"
seq 1 1000000 | goq produce numbers > /dev/null 2>&1 &
producer=$!
goq consume code --group readers --max 20000 > /dev/null 2>&1 || true
kill -9 "$node"; wait "$node" 2>/dev/null || true
kill "$producer" 2>/dev/null || true; wait "$producer" 2>/dev/null || true
start
echo "restarted: $(cat "$work/ready")"

say "Nothing is lost: the log gives every byte back, and the group goes on where it was"
run "goq consume code --from-beginning --raw | cmp - lines.txt && echo identical"
run "goq consume code --group readers --until-empty | wc -l"
run "goq group show readers --topic code"
run "goq topic list"
