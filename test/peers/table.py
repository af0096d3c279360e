"""The table of test/peers.sh: family, what, largest difference, asked."""


class Table:
    def __init__(self):
        self.failed = 0
        print(f"{'family':<16} {'what':<58} {'difference':>12} {'asked':>8}")

    def within(self, family, what, found, asked):
        """A number that may be at most `asked`; 0 asks for equality."""
        good = found <= asked  # not for NaN
        self.failed += not good
        print(f"{family:<16} {what:<58} {found:>12.1e} {'equal' if asked == 0 else f'{asked:.0e}':>8}{'' if good else '  FAILED'}",
              flush=True)

    def equal(self, family, what, expected, found):
        if expected != found:
            print(f"  {str(expected)[:500]}\n  {str(found)[:500]}")
        self.within(family, what, 0.0 if expected == found else float("inf"), 0)

    def failure(self, family, what, why):
        self.failed += 1
        print(f"{family:<16} {what:<58} {'':>12} {'':>8}  FAILED\n{why}", flush=True)
