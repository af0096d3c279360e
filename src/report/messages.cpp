// TensorBoard's messages, filled in.
#include "messages.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <sstream>

#include "trireme/base/json.hpp"

namespace trireme::report {

namespace {

constexpr const char* kEndTag = "_hparams_/session_end_info";

// JSON's writer replaces what is not UTF-8.
std::string Utf8(const std::string& text) {
  const auto ascii = [](char letter) { return static_cast<unsigned char>(letter) < 0x80; };
  if (std::ranges::all_of(text, ascii)) return text;
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

proto::Summary::Value& AddValue(const std::string& tag, proto::Event& event) {
  proto::Summary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(Utf8(tag));
  return value;
}

// Bytes of a plugin's message, beside a tensor without elements: the reader wants one.
void AddPluginData(const std::string& tag, const proto::HParamsPluginData& data,
                   proto::Event& event) {
  proto::Summary::Value& value = AddValue(tag, event);
  auto& plugin = *value.mutable_metadata()->mutable_plugin_data();
  plugin.set_plugin_name("hparams");
  plugin.set_content(data.SerializeAsString());
  value.mutable_tensor()->set_dtype(proto::DT_FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
}

proto::HParamValue ValueOf(const std::string& text) {
  proto::HParamValue value;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && std::isfinite(number)) {
    value.set_number_value(number);
  } else if (text == "yes" || text == "no") {
    value.set_bool_value(text == "yes");
  } else {
    value.set_string_value(Utf8(text));
  }
  return value;
}

}  // namespace

void AddScalar(const std::string& tag, double value, proto::Event& event) {
  AddValue(tag, event).set_simple_value(static_cast<float>(value));
}

// Lines that begin with four blanks are code to Markdown.
void AddText(const std::string& tag, const std::string& text, proto::Event& event) {
  std::string plain = Utf8(text);
  std::ranges::replace(plain, '\r', '\n');  // a line's end to Markdown, too
  std::istringstream lines(plain);
  std::string code;
  for (std::string line; std::getline(lines, line);) code += "    " + line + "\n";
  proto::Summary::Value& value = AddValue(tag, event);
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value.mutable_tensor()->set_dtype(proto::DT_STRING);
  value.mutable_tensor()->mutable_tensor_shape();
  value.mutable_tensor()->add_string_val(code);
}

// Empty buckets at both ends are left out, and of several in between only their common right end is
// kept, as TensorFlow does.
void AddHistogram(const std::string& tag, const Histogram& histogram, proto::Event& event) {
  proto::HistogramProto& message = *AddValue(tag, event).mutable_histo();
  const double count = histogram.Count();
  message.set_num(count);
  message.set_sum(histogram.Sum());
  message.set_sum_squares(histogram.Squares());
  if (count == 0) {
    message.add_bucket_limit(Histogram::Limits().back());
    message.add_bucket(0);
    return;
  }
  message.set_min(histogram.Min());
  message.set_max(histogram.Max());
  const std::vector<double>&limits = Histogram::Limits(), &counts = histogram.Counts();
  const auto holds = [](double bucket) { return bucket > 0; };
  const std::size_t first =
      static_cast<std::size_t>(std::ranges::find_if(counts, holds) - counts.begin());
  const std::size_t last =
      counts.size() - 1 -
      static_cast<std::size_t>(std::find_if(counts.rbegin(), counts.rend(), holds) -
                               counts.rbegin());
  for (std::size_t i = first; i <= last; ++i) {
    if (counts[i] == 0 && counts[i + 1] == 0) continue;
    message.add_bucket_limit(limits[i]);
    message.add_bucket(counts[i]);
  }
}

void AddHParams(const std::vector<std::pair<std::string, std::string>>& values, double unix_seconds,
                proto::Event& event) {
  proto::HParamsPluginData data;
  proto::SessionStartInfo& start = *data.mutable_session_start_info();
  start.set_start_time_secs(unix_seconds);
  for (const auto& [name, value] : values) {
    if (!value.empty()) (*start.mutable_hparams())[Utf8(name)] = ValueOf(value);
  }
  AddPluginData("_hparams_/session_start_info", data, event);
}

void AddEnd(double unix_seconds, proto::Event& event) {
  proto::HParamsPluginData data;
  data.mutable_session_end_info()->set_status(proto::STATUS_SUCCESS);
  data.mutable_session_end_info()->set_end_time_secs(unix_seconds);
  AddPluginData(kEndTag, data, event);
}

bool EndsRun(const proto::Event& event) {
  return std::ranges::any_of(event.summary().value(),
                             [](const auto& value) { return value.tag() == kEndTag; });
}

}  // namespace trireme::report
