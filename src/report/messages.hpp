// TensorBoard's messages, filled in: scalars, texts, histograms, hyperparameters.
#ifndef TRIREME_SRC_REPORT_MESSAGES_HPP_
#define TRIREME_SRC_REPORT_MESSAGES_HPP_

#include <string>
#include <utility>
#include <vector>

#include "event.pb.h"
#include "trireme/report/histogram.hpp"

namespace trireme::report {

// Adds a value to an event's summary. Numbers become fp32; texts and names that are not UTF-8 are
// made so.
void AddScalar(const std::string& tag, double value, proto::Event& event);
// Shown letter by letter, in lines as they are: TensorBoard would read Markdown and HTML in it.
void AddText(const std::string& tag, const std::string& text, proto::Event& event);
void AddHistogram(const std::string& tag, const Histogram& histogram, proto::Event& event);

// The start of a session of the HParams plugin: (name, value) as a deck has them. Numbers stay
// numbers, yes and no become booleans; keys without a value are left out.
void AddHParams(const std::vector<std::pair<std::string, std::string>>& values, double unix_seconds,
                proto::Event& event);
// The end of a run that is done.
void AddEnd(double unix_seconds, proto::Event& event);
bool EndsRun(const proto::Event& event);

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_MESSAGES_HPP_
