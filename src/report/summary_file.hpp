// summary.json: a session of training in one object, written at its end.
#ifndef TRIREME_SRC_REPORT_SUMMARY_FILE_HPP_
#define TRIREME_SRC_REPORT_SUMMARY_FILE_HPP_

#include <string>

#include "trireme/report/sink.hpp"

namespace trireme::report {

// The text of summary.json. Numbers that are not finite and losses that are not known are null;
// text that is not UTF-8 is made so. Files inside of `folder` are named relative to it.
std::string ToJson(const Summary& summary, const std::string& folder);

// Of more than 1,024 ranks leaves the 64 that use most memory, then the 64 that use least; the
// lowest rank comes first among equal ones.
void LeaveOutRanks(Summary& summary);

class SummaryFile : public Sink {
 public:
  // The folder's file is written by replacement; that of an earlier run is removed if `fresh`.
  SummaryFile(const std::string& folder, bool fresh);
  void Done(const Summary& summary) override;

 private:
  std::string folder_;
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_SUMMARY_FILE_HPP_
