// WriteDocumentLosses: a few contiguous datasets per split.
#include "trireme/data/document_losses.hpp"

#include <algorithm>
#include <numeric>

#include "hdf5.hpp"
#include "hdf5_writer.hpp"
#include "token_file_draft.hpp"

namespace trireme::data {

void WriteDocumentLosses(const std::string& path, const std::vector<DocumentLosses>& splits,
                         const std::vector<std::pair<std::string, std::string>>& texts) {
  constexpr std::int64_t kFormat = 1;
  constexpr std::size_t kArrays = 5;
  std::size_t rows = 0, longest = 0;
  for (const DocumentLosses& split : splits) {
    rows += split.nats.size();
    longest = std::max(longest, split.nats.size());
  }
  std::vector<std::int64_t> numbers(longest);
  std::iota(numbers.begin(), numbers.end(), 0);
  const QuietHdf5 quiet;
  TokenFileDraft draft(path, "evaluate.documents");
  draft.Reserve(rows * kArrays * sizeof(double) + (splits.size() + 1) * kHdf5MetadataBytes, false);
  Hdf5Writer file(draft.Path());
  file.Attribute("format", kFormat);
  for (const auto& [name, value] : texts) file.Attribute(name.c_str(), value);
  for (const DocumentLosses& split : splits) {
    const auto plan = [&](const char* name, const std::vector<std::int64_t>& values) {
      file.Plan(split.group + "/" + name, H5T_STD_U64LE, H5T_NATIVE_INT64, split.nats.size(),
                values.data());
    };
    plan("document", numbers);
    plan("first_token", split.first_token);
    plan("targets", split.targets);
    plan("bytes", split.bytes);
    file.Plan(split.group + "/nats", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, split.nats.size(),
              split.nats.data());
  }
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
  draft.Sync();
  draft.Place();
}

}  // namespace trireme::data
