// The kernels that compute a deck's attention, and why.
#include "attention.hpp"

#include <fmt/format.h>

#include "trireme/kernels/libraries.hpp"

namespace trireme::app {

namespace {

// Why cuDNN computes no attention of this deck's training; "" if it may.
std::string WhyNotCudnn(const DeckOptions& options) {
  constexpr int kWidest = 256, kPiece = 8;  // cuDNN's, of a head
  const device::Precision precision = options.machine.precision;
  if (std::string why = kernels::WhyNoCudnn(); !why.empty()) return why;
  if (precision != device::Precision::kBf16 && precision != device::Precision::kFp8) {
    return fmt::format("run.precision = {}", device::NameOf(precision));
  }
  if (ReadsTraining(options.job.task) && options.model.attention_dropout > 0) {
    return fmt::format("model.attention_dropout = {}", options.model.attention_dropout);
  }
  if (options.model.Translates()) return "padding of model.kind = encoder_decoder";
  const std::int64_t blocks = 2 * std::int64_t{options.comm.context};
  if (blocks > 2 && options.data.document_mask) {
    return fmt::format("grid.context = {} cuts sequences with data.document_mask = yes",
                       options.comm.context);
  }
  if (blocks > 2 && options.data.sequence_length % blocks != 0) {
    return fmt::format("grid.context = {} cuts sequences of {} into unequal blocks",
                       options.comm.context, options.data.sequence_length);
  }
  if (options.model.head_dim % kPiece != 0 || options.model.head_dim > kWidest) {
    return fmt::format("heads of {}, no multiple of {} up to {}", options.model.head_dim, kPiece,
                       kWidest);
  }
  return {};
}

}  // namespace

void RequireCudnnIfAsked(const Job& job) {
  if (job.options.machine.attention != device::AttentionKernels::kCudnn) return;
  const std::string why = WhyNotCudnn(job.options);
  if (why.empty()) return;
  throw job.deck.Complain("run.attention", "cuDNN cannot compute this attention: " + why,
                          "With auto it computes what it can, and our own kernels the rest.");
}

void RequireFixedOrder(const Job& job) {
  const DeckOptions& options = job.options;
  if (!ReadsTraining(options.job.task) || !options.machine.deterministic) return;
  if (options.machine.attention == device::AttentionKernels::kOwn) return;
  if (!WhyNotCudnn(options).empty()) return;
  const std::string why = kernels::WhyNoFixedOrder(job.stream, options.data.sequence_length);
  if (why.empty()) return;
  throw job.deck.Complain("run.deterministic", why,
                          "Install a newer cuDNN, or set run.attention = own (our own kernels, "
                          "slower) or run.deterministic = no (runs differ in their last bits).");
}

std::string DescribeAttention(const Job& job) {
  if (!job.stream.OnGpu()) return {};
  if (job.options.machine.attention == device::AttentionKernels::kOwn) {
    return "attention: our own (run.attention = own)";
  }
  const std::string why = WhyNotCudnn(job.options);
  if (why.empty()) {
    return fmt::format("attention: cuDNN's{} where it serves, else our own{}",
                       job.options.data.document_mask ? " by document" : "",
                       job.options.machine.deterministic
                           ? ""
                           : ", its gradients in no fixed order (run.deterministic = no)");
  }
  return fmt::format("attention: our own ({})", why);
}

}  // namespace trireme::app
