#!/usr/bin/env bash
# An installed Trireme: found by its own place after the folder has moved, used through a link and by another user who
# may write nothing in it; the manual page.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
chmod 755 "$scratch"
build=$(dirname "$TRIREME")

# Another user, where this is root.
as_other=()
if [[ $(id -u) == 0 ]]; then
  as_other=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent)
  # The other user may not see the source folder (a clone in /root).
  cp "$TRIREME_SOURCE/test/mpirun.sh" "$scratch/mpirun.sh"
  chmod 644 "$scratch/mpirun.sh"
  mpi=("${mpi[@]/#$TRIREME_SOURCE\/test\/mpirun.sh/$scratch/mpirun.sh}")
else
  echo "not root: nobody else to run as"
fi

# 1. Installed, whatever the umask, and moved. No file remembers the prefix.
(umask 077 && run 0 cmake --install "$build" --prefix "$scratch/first")
if grep -rlF "$scratch/first" first; then fail "these files hold the prefix"; fi
mkdir "other place"
mv first "other place/trireme"
prefix="$scratch/other place/trireme"
share=$prefix/share/trireme
[[ $(id -u) == 0 ]] || chmod -R a-w "$prefix"
trap 'chmod -R u+w "$scratch"; leave' EXIT
ln -s "$prefix/bin/trireme" tri
if command -v readelf >/dev/null; then
  run 0 readelf -d "$prefix/bin/trireme"
  says '[$ORIGIN/../lib'
  if grep -F 'PATH' "$scratch/output" | grep -F "$build"; then fail "libraries are looked for in the build folder"; fi
fi
if find "$prefix" ! -type l ! -perm -o=r | grep .; then fail "not readable by all"; fi
for file in input/harbour.in vis/report.py doc/design.md jobscripts/slurm/train.sbatch machines/debian.sh \
  jobscripts/machines/juwels_booster.sh jobscripts/fetch_wikitext.sh LICENSE; do
  [[ -f $share/$file ]] || fail "$file is not installed"
done
# The module named in the package's own tree, with DESTDIR.
DESTDIR=$scratch/stage run 0 cmake --install "$build" --prefix /usr
exists stage/usr/bin/trireme
[[ $(readlink stage/usr/share/trireme/machines) == jobscripts/machines ]] || fail "the link of the machines"

# 2. Used by another user, through a link.
mkdir work
[[ ${#as_other[@]} == 0 ]] || chown 65534:65534 work
cd work
run 0 "${as_other[@]}" ../tri --version
says "Trireme "
run 2 "${as_other[@]}" ../tri -i harbour.in -n
says "Trireme's own deck of that name is $share/input/harbour.in."
run 2 "${as_other[@]}" ../tri -i nothing.in -n
says "Decks that come with Trireme are in $share/input."
run 0 "${as_other[@]}" ../tri -i "$share/input/harbour.in" -n
tiny_deck
cat >python <<'PYTHON'
#!/bin/sh
printf '%s\n' "$@" >run/asked
PYTHON
chmod 755 python
chmod 644 deck.in
(
  export TRIREME_PYTHON=$PWD/python
  run 0 "${as_other[@]}" ../tri -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000
  run 0 "${as_other[@]}" "${mpi[@]}" 2 ../tri -i deck.in schedule.steps=2 monitor.report=yes
  says "page    run/report.html"
  [[ $(head -n 1 run/asked) == "$share/vis/report.py" ]] || fail "the page's script was $(head -n 1 run/asked)"
)

# 3. The manual page: without complaints, and with every key.
page=$prefix/share/man/man1/trireme.1
missing=()
if command -v mandoc >/dev/null; then
  run 0 mandoc -Tlint -Wstyle "$page"
  [[ ! -s $scratch/output ]] || fail "mandoc complains"
else
  missing+=(mandoc)
fi
if command -v groff >/dev/null; then
  run 0 groff -man -ww -z "$page"
  [[ ! -s $scratch/output ]] || fail "groff complains"
else
  missing+=(groff)
fi
if command -v man >/dev/null; then
  MANWIDTH=500 run 0 "${as_other[@]}" man -l "$page"
  for key in $("$TRIREME" --help-deck | awk '/^\[/ { section = substr($1, 2, length($1) - 2) } /^  [a-z_0-9]+ =/ { print section "." $1 }'); do
    grep -qE "^ *${key//./[.]} =" "$scratch/output" || fail "the manual page lacks $key"
  done
  says "--help-deck [NAME]"
  grep -qE '^ +3 +stopped early by a signal' "$scratch/output" || fail "the manual page lacks the exit codes"
else
  missing+=(man)
fi
[[ ${#missing[@]} == 0 ]] || skip "the manual page was not read by ${missing[*]}: not installed"
