// Stand-in for cuDNN and its C++ frontend: graphs of one attention, forward or backward, computed
// on the CPU when their stream reaches them (cudnn.cpp). Names are the library's, as far as
// they are used. There is no cuDNN unless TRIREME_EMULATOR_CUDNN says so.
#ifndef TRIREME_TEST_EMULATOR_CUDNN_FRONTEND_H_
#define TRIREME_TEST_EMULATOR_CUDNN_FRONTEND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

#define CUDNN_FRONTEND_VERSION 11800

enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001 };
struct cudnnContext;
using cudnnHandle_t = cudnnContext*;

std::size_t cudnnGetVersion();  // 0: there is none
const char* cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, BFLOAT16, INT32, INT64 };
enum class HeurMode_t { A };

class error_object {
 public:
  error_object() = default;
  explicit error_object(std::string message) : message_(std::move(message)) {}
  bool is_good() const { return message_.empty(); }
  bool is_bad() const { return !is_good(); }
  const std::string& get_message() const { return message_; }

 private:
  std::string message_;
};

namespace graph {

struct Tensor_attributes {
  Tensor_attributes& set_uid(std::int64_t value) { return uid = value, *this; }
  Tensor_attributes& set_dim(const std::vector<std::int64_t>& values) {
    return dim = values, *this;
  }
  Tensor_attributes& set_stride(const std::vector<std::int64_t>& values) {
    return stride = values, *this;
  }
  Tensor_attributes& set_data_type(DataType_t value) { return type = value, *this; }
  Tensor_attributes& set_output(bool value) { return output = value, *this; }
  Tensor_attributes& set_ragged_offset(const std::shared_ptr<Tensor_attributes>& value) {
    return offsets = value, *this;
  }

  std::int64_t uid = 0;
  std::vector<std::int64_t> dim, stride;  // sequence, head, position, feature
  DataType_t type = DataType_t::NOT_SET;
  bool output = false;
  std::shared_ptr<Tensor_attributes> offsets;  // elements before each sequence; null: the stride
};
using Tensor = std::shared_ptr<Tensor_attributes>;

// What both passes are told. Derived: the pass's own attributes, which the setters return.
template <typename Derived>
struct AttentionAttributes {
  Derived& set_name(const std::string&) { return Self(); }
  Derived& set_causal_mask(bool value) { return causal = value, Self(); }
  Derived& set_attn_scale(float value) { return scale = value, Self(); }
  Derived& set_padding_mask(bool value) { return padding = value, Self(); }
  Derived& set_seq_len_q(Tensor value) { return queries = std::move(value), Self(); }
  Derived& set_seq_len_kv(Tensor value) { return keys = std::move(value), Self(); }

  bool causal = false, padding = false;
  float scale = 1;
  Tensor queries, keys;  // how many each sequence has

 private:
  Derived& Self() { return static_cast<Derived&>(*this); }
};

struct SDPA_attributes : AttentionAttributes<SDPA_attributes> {
  SDPA_attributes& set_generate_stats(bool value) { return stats = value, *this; }
  bool stats = false;
};

struct SDPA_backward_attributes : AttentionAttributes<SDPA_backward_attributes> {
  SDPA_backward_attributes& set_deterministic_algorithm(bool value) {
    return deterministic = value, *this;
  }
  SDPA_backward_attributes& set_max_total_seq_len_q(std::int64_t value) {
    return total_queries = value, *this;
  }
  SDPA_backward_attributes& set_max_total_seq_len_kv(std::int64_t value) {
    return total_keys = value, *this;
  }
  bool deterministic = false;
  std::int64_t total_queries = 0, total_keys = 0;
};

// Operation of a graph. Operands in the order of the calls below, results behind them.
struct Attention {
  bool backward = false, causal = false, padding = false, deterministic = true;
  float scale = 1;
  std::vector<Tensor> operands;
  Tensor queries, keys;         // lengths with padding
  std::int64_t total_rows = 0;  // most queries and keys of all sequences together; 0: not told
};

class Graph {
 public:
  ~Graph();
  Graph& set_io_data_type(DataType_t) { return *this; }
  Graph& set_intermediate_data_type(DataType_t) { return *this; }
  Graph& set_compute_data_type(DataType_t) { return *this; }

  Tensor tensor(const Tensor_attributes& attributes) {
    return std::make_shared<Tensor_attributes>(attributes);
  }
  // Output and statistics (natural log-sum-exp).
  std::array<Tensor, 2> sdpa(Tensor query, Tensor key, Tensor value,
                             const SDPA_attributes& attributes);
  // Gradients of query, key and value.
  std::array<Tensor, 3> sdpa_backward(Tensor query, Tensor key, Tensor value, Tensor out,
                                      Tensor dout, Tensor statistics,
                                      const SDPA_backward_attributes& attributes);

  error_object build(cudnnHandle_t handle, const std::vector<HeurMode_t>& modes);
  error_object get_workspace_size(std::int64_t& bytes) const;
  error_object warmup(cudnnHandle_t handle) const;
  error_object execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& places,
                       void* workspace) const;

 private:
  error_object Refusal() const;

  std::optional<Attention> attention_;
  cudnnHandle_t handle_ = nullptr;  // since it was built
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace graph
}  // namespace cudnn_frontend

#endif  // TRIREME_TEST_EMULATOR_CUDNN_FRONTEND_H_
