// Terminal: ncurses with wide characters. Rows are cut at the right edge by display columns.

#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cwchar>
#include <string_view>

#include "run_state.hpp"

#define NCURSES_NOMACROS
#define NCURSES_WIDECHAR 1
#include <curses.h>

namespace trireme::tools {

namespace {

// The longest beginning of a text that fits into `columns` columns.
std::wstring Cut(const std::wstring& text, int columns) {
  std::wstring kept;
  for (const wchar_t character : text) {
    const int width = wcwidth(character);
    const bool shown = width >= 0;  // printable in this locale
    columns -= shown ? width : 1;
    if (columns < 0) break;
    kept += shown ? character : L'?';
  }
  return kept;
}

}  // namespace

bool Terminal::IsThere() { return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1; }

Terminal::Terminal() {
  // Only the character set follows the user's locale; numbers keep the C locale's format.
  std::setlocale(LC_CTYPE, "");
  blocks_ = std::string_view(nl_langinfo(CODESET)) == "UTF-8";
  screen_ = newterm(nullptr, stdout, stdin);
  if (screen_ == nullptr) return;
  cbreak();
  noecho();
  nonl();
  nodelay(stdscr, true);
  keypad(stdscr, true);
  curs_set(0);
}

Terminal::~Terminal() {
  if (screen_ == nullptr) return;
  endwin();
  delscreen(static_cast<SCREEN*>(screen_));
}

void Terminal::Measure(Frame& frame) const {
  frame.rows = std::max(getmaxy(stdscr), 1);
  frame.columns = std::max(getmaxx(stdscr), 1);
  frame.blocks = blocks_;
}

void Terminal::Show(const std::vector<Row>& rows) {
  werase(stdscr);
  const int columns = getmaxx(stdscr);
  for (int y = 0; y < std::min<int>(getmaxy(stdscr), static_cast<int>(rows.size())); ++y) {
    const Row& row = rows[static_cast<std::size_t>(y)];
    if (row.strong) wattron(stdscr, A_BOLD);
    mvwaddwstr(stdscr, y, 0, Cut(Wide(row.text), columns).c_str());
    if (row.strong) wattroff(stdscr, A_BOLD);
  }
  wrefresh(stdscr);
}

Terminal::Key Terminal::Wait(double seconds) {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = poll(&input, 1, static_cast<int>(std::ceil(1000 * seconds)));
  if (ready > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return Key::kQuit;
  // ncurses reports a change of size as a key, too.
  switch (wgetch(stdscr)) {
    case ERR:
      return Key::kNone;
    case 'q':
    case 'Q':
      return Key::kQuit;
    case KEY_UP:
    case 'k':
      return Key::kUp;
    case KEY_DOWN:
    case 'j':
      return Key::kDown;
    default:
      return Key::kOther;
  }
}

}  // namespace trireme::tools
