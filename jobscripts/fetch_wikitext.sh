#!/usr/bin/env bash
# Fetches WikiText-2, word level (Merity et al. 2016, arXiv:1609.07843; text from Wikipedia, CC BY-SA),
# into a folder (default data/wikitext-2) and checks it: `fetch_wikitext.sh [FOLDER]`.
set -euo pipefail
# In the source tree a folder is seen from its root; for the installed script, from where it is called.
root=$(dirname "${BASH_SOURCE[0]}")/..
[[ ! -f $root/CMakeLists.txt ]] || cd "$root"
folder=${1:-data/wikitext-2}
# The copy that the PyTorch examples keep, byte for byte the published wiki.*.tokens.
url=${TRIREME_WIKITEXT_URL:-https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2}

names=(train.txt valid.txt test.txt)
sizes=(10797148 1121681 1256449)
sums=(9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f
  f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
  d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0)

is_right() {  # path, number
  [[ -f $1 && $(stat -L -c %s "$1") == "${sizes[$2]}" ]] &&
    [[ $(sha256sum <"$1") == "${sums[$2]}  -" ]]
}

by_hand() {
  {
    echo "$1"
    echo "Bring these files by hand into $folder (any copy of word-level WikiText-2 has them, as"
    echo "wiki.train.tokens and so on), or point TRIREME_DATA at a folder that holds them:"
    for i in 0 1 2; do
      printf '  %-9s  %10d bytes  sha256 %s\n' "${names[i]}" "${sizes[i]}" "${sums[i]}"
    done
  } >&2
  exit 1
}

mkdir -p "$folder"
for i in 0 1 2; do
  path=$folder/${names[i]}
  ! is_right "$path" "$i" || continue
  echo "fetching ${names[i]} from ${url%/}"
  # Where there is no way to it that shows at once, without curl's retries.
  if ! curl -fsSI --connect-timeout 5 -o /dev/null "${url%/}/${names[i]}" </dev/null || ! curl -fsSL --retry 2 --connect-timeout 20 -o "$path.part" "${url%/}/${names[i]}" </dev/null; then
    rm -f "$path.part"
    by_hand "WikiText-2 could not be fetched from $url."
  fi
  if ! is_right "$path.part" "$i"; then
    rm -f "$path.part"
    by_hand "${names[i]} from $url is not the published file (size or checksum differ)."
  fi
  mv "$path.part" "$path"
done
echo "WikiText-2 is in $folder"
