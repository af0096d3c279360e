# shellcheck shell=bash
# Sourced by the benchmarks that print tables: numbers out of their programs' lines.

# A line's number behind the word NAME, the median over a file's lines; "-" where there is none.
median() { # FILE NAME
  { [[ ! -f $1 ]] || awk -v name="$2" '{ for (i = 1; i < NF; ++i) if ($i == name) print $(i + 1) }' "$1"; } |
    sort -g | awk '{ value[NR] = $1 } END { print NR == 0 ? "-" : value[int((NR + 1) / 2)] }'
}
quotient() { # A B DECIMALS
  awk -v a="$1" -v b="$2" -v d="$3" 'BEGIN { if (a == "-" || b == "-") print "-"; else printf "%.*f\n", d, a / b }'
}
thousands() { # 12345 -> 12,345
  sed -E ':more; s/^([0-9]+)([0-9]{3})/\1,\2/; t more' <<<"$1"
}
