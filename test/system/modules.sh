#!/usr/bin/env bash
# Module files under a real Lmod and a real Environment Modules. As packages these exclude each other: what is not
# installed is unpacked beside.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
build=$(dirname "$TRIREME")
chmod 755 "$scratch"
tools=$build/module-tools

# unpacked PACKAGE: the folder of Debian's package; fails where it cannot be had.
unpacked() {
  local folder=$tools/$1
  if [[ ! -d $folder ]]; then
    mkdir -p "$tools/new" && cd "$tools/new" || return
    timeout 60 apt-get -qq download "$1" >/dev/null 2>&1 && dpkg -x "$1"_*.deb "$folder.part" && mv "$folder.part" "$folder"
    cd "$scratch"
    rm -rf "$tools/new"
  fi
  [[ -d $folder ]] && echo "$folder"
}
first() { compgen -G "$1" | head -n 1; }
find_lmod() {
  local root
  lmod=$(first '/usr/share/lmod/*/libexec/lmod') || true
  if [[ -z $lmod ]] && root=$(unpacked lmod); then lmod=$(first "$root/usr/share/lmod/[0-9]*/libexec/lmod"); fi
  lua=$(command -v lua5.3 || command -v lua || true)
  [[ -n $lmod && -n $lua ]] && "$lua" -e 'require "posix"; require "lfs"; require "term"' 2>/dev/null
}
find_environment_modules() {
  local root
  modulecmd=$(first '/usr/lib/*/modulecmd.tcl') || true
  if [[ -z $modulecmd ]] && root=$(unpacked environment-modules); then modulecmd=$(first "$root/usr/lib/*/modulecmd.tcl"); fi
  [[ -n $modulecmd ]] && command -v tclsh >/dev/null
}
module_of_lmod() {
  export LMOD_CMD=$lmod LMOD_DIR=${lmod%/lmod} LMOD_PKG=${lmod%/libexec/lmod} LMOD_PAGER=none
  eval "$("$lua" "$lmod" bash "$@")"
}
module_of_environment_modules() { MODULES_PAGER='' eval "$(MODULES_PAGER='' tclsh "$modulecmd" bash "$@")"; }

run 0 cmake --install "$build" --prefix "$scratch/prefix"
mkdir moved
mv prefix moved/trireme  # Lmod 8.6 reads no Tcl below a folder with a blank in its name
prefix=$scratch/moved/trireme
version=$(sed -n 's/^project(trireme VERSION \([0-9.]*\).*/\1/p' "$TRIREME_SOURCE/CMakeLists.txt")
# Another version beside, and one with modules of its own.
files=$prefix/share/modulefiles
exists "$files/trireme/$version"
other=$scratch/other/share/modulefiles needing=$scratch/needing/share/modulefiles
mkdir -p "$other/trireme" "$other/base" "$needing/trireme" other/bin needing/bin
ln -s "$prefix/bin/trireme" other/bin/trireme
ln -s "$prefix/bin/trireme" needing/bin/trireme
sed "s/$version/99.0/" "$files/trireme/$version" >"$other/trireme/99.0"
printf '#%%Module1.0\nsetenv BASE_IS_HERE yes\n' >"$other/base/1"
sed "s/^setenv TRIREME_ROOT.*/module load base\n&/" "$files/trireme/$version" >"$needing/trireme/77.0"

# told COMMAND...: what it prints on either stream; its shell keeps no changes.
told() { ("$@") >"$scratch/output" 2>&1 || true; }

# check MODULE-COMMAND NAME-OF-TOOL: all that a user does.
check() {
  local module=$1
  export MODULEPATH=
  unset MANPATH LOADEDMODULES _LMFILES_ OMP_NUM_THREADS TRIREME_ROOT TRIREME_SITE_DECK
  "$module" use "$files"
  told "$module" avail; says "trireme/$version"
  told "$module" whatis trireme; says "MPI-native training of Transformer language models"
  told "$module" help trireme; says "srun trireme -i deck.in"; says 'in $TRIREME_SHARE/input'
  told "$module" show trireme; says "$prefix/bin"; says "TRIREME_ROOT"

  "$module" load trireme >output 2>&1
  [[ $(command -v trireme) == "$prefix/bin/trireme" ]] || fail "$2: the program in the path is $(command -v trireme)"
  [[ $TRIREME_ROOT == "$prefix" && ${TRIREME_SHARE:-} == "$prefix/share/trireme" ]] || fail "$2: TRIREME_ROOT is $TRIREME_ROOT"
  [[ -f $TRIREME_SHARE/input/harbour.in ]] || fail "$2: no decks in $TRIREME_SHARE"
  [[ -z ${TRIREME_SITE_DECK+set} ]] || fail "$2: TRIREME_SITE_DECK is set without a site's deck"
  [[ -z ${OMP_NUM_THREADS+set} ]] || fail "$2: OMP_NUM_THREADS is set"
  run 0 trireme --version
  if command -v manpath >/dev/null; then
    [[ $(man -w trireme) == "$prefix/share/man/man1/trireme.1" ]] || fail "$2: man trireme finds $(man -w trireme)"
    [[ $(manpath 2>/dev/null) == */usr/share/man* ]] || fail "$2: the system's pages are hidden: $(manpath 2>&1)"
  fi
  # Another version: not both at once. Environment Modules refuses it, Lmod puts it in the place of the first.
  "$module" use "$other" >output 2>&1
  "$module" load trireme/99.0 >output 2>&1 || true
  [[ $LOADEDMODULES =~ ^trireme/[^:]*$ ]] || fail "$2: loaded are $LOADEDMODULES"
  "$module" unload trireme >output 2>&1
  [[ -z ${TRIREME_ROOT+set} && -z ${TRIREME_SHARE+set} && ":$PATH:" != *":$prefix/bin:"* && ${MANPATH:-} != *trireme* ]] ||
    fail "$2: traces of it after unload"

  # The user's own variables stay.
  export OMP_NUM_THREADS=7 MANPATH=/of/the/user
  "$module" load "trireme/$version" >output 2>&1
  [[ $OMP_NUM_THREADS == 7 && $MANPATH == "$prefix/share/man:/of/the/user:"* ]] || fail "$2: $OMP_NUM_THREADS $MANPATH"
  "$module" unload trireme >output 2>&1
  [[ $OMP_NUM_THREADS == 7 && $MANPATH == /of/the/user ]] || fail "$2: after unload: $OMP_NUM_THREADS $MANPATH"
  unset OMP_NUM_THREADS MANPATH

  # The site's deck, and modules that come first.
  mkdir -p "$prefix/etc/trireme"
  echo '[run]' >"$prefix/etc/trireme/site.in"
  "$module" load "trireme/$version" >output 2>&1
  [[ $TRIREME_SITE_DECK == "$prefix/etc/trireme/site.in" ]] || fail "$2: TRIREME_SITE_DECK is ${TRIREME_SITE_DECK:-not set}"
  "$module" unload trireme >output 2>&1
  [[ -z ${TRIREME_SITE_DECK+set} ]] || fail "$2: TRIREME_SITE_DECK stays"
  rm -r "${prefix:?}/etc"
  "$module" use "$needing" >output 2>&1
  "$module" load trireme/77.0 >output 2>&1
  [[ ${BASE_IS_HERE:-} == yes ]] || fail "$2: the module before it is not loaded: $(cat output)"
  "$module" unload trireme >output 2>&1

  # A link to the module file, and a link to that, find the program; a copy says what is wrong and sets nothing.
  mkdir -p "$scratch/central/linked" "$scratch/central/copied"
  ln -sfn "$files/trireme/$version" "$scratch/central/linked/first"
  ln -sfn first "$scratch/central/linked/second"
  cp "$files/trireme/$version" "$scratch/central/copied/1"
  "$module" use "$scratch/central" >output 2>&1
  for name in first second; do
    "$module" load "linked/$name" >output 2>&1
    [[ $TRIREME_ROOT == "$prefix" && $(command -v trireme) == "$prefix/bin/trireme" ]] || fail "$2: linked/$name: $TRIREME_ROOT $(cat output)"
    "$module" unload "linked/$name" >output 2>&1
  done
  "$module" load copied/1 >"$scratch/output" 2>&1 || true
  says "this module file was copied"
  [[ -z ${TRIREME_ROOT+set} ]] || fail "$2: a copied module sets TRIREME_ROOT=$TRIREME_ROOT"

  # The build folder's.
  "$module" use "$build/modulefiles" >output 2>&1
  "$module" load trireme/debian >output 2>&1
  [[ $(command -v trireme) == "$TRIREME" && $TRIREME_ROOT -ef $TRIREME_SOURCE ]] || fail "$2: trireme/debian: $TRIREME_ROOT"
  [[ -f $TRIREME_SHARE/input/harbour.in ]] || fail "$2: trireme/debian: no decks in $TRIREME_SHARE"
  "$module" unload trireme >output 2>&1
  by_another_user "$module" "$2"
  echo "$2: loads, unloads, shows"
}

# by_another_user MODULE-COMMAND NAME-OF-TOOL: the same installed folder, which that user may only read.
by_another_user() {
  local as_other=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent MODULEPATH=)
  [[ $(id -u) == 0 ]] || { echo "not root: nobody else to run as"; return 0; }
  if ! "${as_other[@]}" test -r "${modulecmd:-/}" -a -r "${lmod:-/}"; then
    echo "$2 itself cannot be read by others here: not tried by another user"
    return 0
  fi
  export lmod lua modulecmd files
  export -f "$1"
  # shellcheck disable=SC2016  # expanded by the other user's shell
  run 0 "${as_other[@]}" bash -c '"$0" use "$files" && "$0" load trireme && type -P trireme && trireme --version' "$1"
  says "$prefix/bin/trireme"
  says "Trireme $version"
}

missing=()
if find_lmod; then (check module_of_lmod Lmod); else missing+=("Lmod"); fi
if find_environment_modules; then (check module_of_environment_modules "Environment Modules"); else missing+=("Environment Modules"); fi
[[ ${#missing[@]} == 0 ]] || skip "not to be had here: ${missing[*]}"
