// Blocks of ring attention by cuDNN. The (query, key) pairs of a block that see each other form a
// rectangle or, where keys and queries have the same positions, a triangle; our own kernels merge
// cuDNN's result. Scratch holds, after that of our own kernels: the log-sum-exp of the rectangle,
// its output or its queries' gradient in bf16, and the workspace of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "attention.hpp"
#include "cudnn_plan.hpp"

namespace trireme::kernels::cuda {

namespace {

// Row ranges of a sequence's queries and keys; causal: each query sees only the keys up to its own.
struct Rectangle {
  Part queries, keys;
  bool causal;
};

// The pairs that see each other; nullopt if there are none, or if they do not form a rectangle.
std::optional<Rectangle> Visible(const Positions& queries, const Positions& keys, bool causal) {
  const Part all_queries = {0, queries.Count()}, all_keys = {0, keys.Count()};
  if (all_queries.Size() == 0 || all_keys.Size() == 0) return std::nullopt;
  if (!causal) return Rectangle{all_queries, all_keys, false};
  const auto same = [](const Part& a, const Part& b) {
    return a.begin == b.begin && a.end == b.end;
  };
  if (same(queries.early, keys.early) && same(queries.late, keys.late)) {
    return Rectangle{all_queries, all_keys, true};
  }
  const Part rows[] = {{0, queries.early.Size()}, {queries.early.Size(), queries.Count()}};
  const Part columns[] = {{0, keys.early.Size()}, {keys.early.Size(), keys.Count()}};
  const Part query_parts[] = {queries.early, queries.late}, key_parts[] = {keys.early, keys.late};
  std::optional<Rectangle> seen;
  std::int64_t pairs = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const Part &q = query_parts[i], &k = key_parts[j];
      if (q.Size() == 0 || k.Size() == 0 || k.begin >= q.end) continue;
      if (k.end > q.begin + 1) return std::nullopt;  // only some pairs of q and k see each other
      pairs += q.Size() * k.Size();
      if (!seen) seen = Rectangle{rows[i], columns[j], false};
      seen->queries = {std::min(seen->queries.begin, rows[i].begin),
                       std::max(seen->queries.end, rows[i].end)};
      seen->keys = {std::min(seen->keys.begin, columns[j].begin),
                    std::max(seen->keys.end, columns[j].end)};
    }
  }
  if (seen && seen->queries.Size() * seen->keys.Size() != pairs) return std::nullopt;
  return seen;
}

// The sequences and key/value heads of a range of tasks.
struct Tasks {
  Part sequences, kv_heads;
};
// nullopt unless the tasks are whole sequences, or heads of a single one.
std::optional<Tasks> TasksOf(const AttentionShape& shape, const Part& tasks) {
  const std::int64_t count = shape.kv_heads;
  if (tasks.Size() <= 0) return std::nullopt;
  const Part sequences = {tasks.begin / count, CeilDivide(tasks.end, count)};
  if (tasks.begin % count == 0 && tasks.end % count == 0) return Tasks{sequences, {0, count}};
  if (sequences.Size() > 1) return std::nullopt;
  const std::int64_t first = tasks.begin % count;
  return Tasks{sequences, {first, first + tasks.Size()}};
}

// The rows and heads of one call, and where they are in matrices.
class Window {
 public:
  Window(const AttentionShape& shape, const Tasks& tasks, const Rectangle& rectangle)
      : shape_(shape), tasks_(tasks), rectangle_(rectangle) {}

  std::int64_t KvHeads() const { return tasks_.kv_heads.Size(); }
  std::int64_t Heads() const { return KvHeads() * Shared(); }
  std::int64_t Sequences() const { return tasks_.sequences.Size(); }
  const Rectangle& Pairs() const { return rectangle_; }
  AttentionWindow Queries() const {
    return {Sequences(), shape_.length, rectangle_.queries.Size(), Heads(), shape_.head_dim};
  }
  // Part of matrix m from the queries' first row and head on; m has `width` columns per head.
  Matrix OfQueries(const Matrix& m, std::int64_t width) const {
    return From(m, tasks_.sequences.begin * shape_.length + rectangle_.queries.begin,
                tasks_.kv_heads.begin * Shared() * width);
  }
  // The same for a block's keys, or its values.
  Matrix OfKeys(const Matrix& block, std::int64_t rows, bool values) const {
    const std::int64_t head = tasks_.kv_heads.begin + (values ? shape_.kv_heads : 0);
    return From(block, tasks_.sequences.begin * rows + rectangle_.keys.begin,
                head * shape_.head_dim);
  }
  // Sets the gradients of keys and values outside of the rectangle to 0.
  void ClearRest(const device::Stream& stream, const Matrix& dblock, std::int64_t rows) const {
    const std::int64_t columns = KvHeads() * shape_.head_dim;
    for (const Part& rest : {Part{0, rectangle_.keys.begin}, Part{rectangle_.keys.end, rows}}) {
      for (std::int64_t s = tasks_.sequences.begin; s < tasks_.sequences.end; ++s) {
        if (rest.Size() == 0) continue;
        for (const std::int64_t first : {std::int64_t{0}, shape_.kv_heads}) {
          const Matrix m = dblock.Rows(s * rows + rest.begin, rest.Size());
          cuda::Clear(stream,
                      m.Columns((first + tasks_.kv_heads.begin) * shape_.head_dim, columns));
        }
      }
    }
  }

 private:
  std::int64_t Shared() const { return shape_.heads / shape_.kv_heads; }
  static Matrix From(const Matrix& m, std::int64_t row, std::int64_t column) {
    return m.Rows(row, m.rows - row).Columns(column, m.columns - column);
  }

  const AttentionShape& shape_;
  Tasks tasks_;
  Rectangle rectangle_;
};

// Elements from row to row: of a block and, in the backward pass, of the other operands.
struct Strides {
  std::int64_t qkv, block, out = 0, dout = 0, dblock = 0;
};

CudnnProblem ProblemOf(const AttentionShape& s, const Window& window, std::int64_t block_rows,
                       bool backward, const Strides& strides) {
  const Rectangle& pairs = window.Pairs();
  const CudnnRows part = {pairs.queries.Size(), window.Heads() * s.head_dim};
  CudnnProblem p = {.backward = backward,
                    .causal = pairs.causal,
                    .sequences = window.Sequences(),
                    .queries = pairs.queries.Size(),
                    .keys = pairs.keys.Size(),
                    .heads = window.Heads(),
                    .kv_heads = window.KvHeads(),
                    .head_dim = s.head_dim,
                    .divisor = s.Divisor(),
                    .query = {s.length, strides.qkv},
                    .key = {block_rows, strides.block},
                    .out = part,
                    .dout = {},
                    .dquery = {},
                    .dkey = {}};
  if (backward) {
    p.out = {s.length, strides.out}, p.dout = {s.length, strides.dout};
    p.dquery = part, p.dkey = {block_rows, strides.dblock};
  }
  return p;
}

// Places in scratch, in elements.
struct Places {
  Places(const device::Stream& stream, const AttentionShape& s)
      : statistics(CudnnRoundUp(gpu::AttentionPartScratch(stream, s, 0, Dtype::kBfloat16, false))),
        part(statistics + CudnnRoundUp(s.sequences * s.length * s.heads)),
        workspace(part + CudnnRoundUp(CeilDivide(s.sequences * s.length * s.heads * s.head_dim,
                                                 std::int64_t{2}))) {}
  std::int64_t statistics, part, workspace;
};

// Calls body(window, strides, backward) for each call of ring attention with blocks of one size.
template <typename Body>
void ForEachCall(const device::Stream& stream, const AttentionShape& s, bool backward,
                 const Body& body) {
  const std::int64_t rows = s.length, half = s.positions.early.Size();
  const std::int64_t width = s.heads * s.head_dim, packed = 2 * s.kv_heads * s.head_dim;
  const Part all = {0, AttentionPartTasks(s)};
  std::vector<Rectangle> of_others;
  if (s.positions.early.begin > 0) of_others.push_back({{0, rows}, {0, half}, false});
  if (s.positions.early.end < s.positions.late.begin) {
    of_others.push_back({{half, rows}, {0, rows}, false});
  }
  const Rectangle own = {{0, rows}, {0, rows}, true};
  const auto call = [&](const Rectangle& pairs, const Part& tasks, const Strides& strides,
                        bool pass) {
    if (const auto range = TasksOf(s, tasks)) body(Window(s, *range, pairs), strides, pass);
  };
  const Strides forward = {s.Width(), packed};
  call(own, all, forward, false);
  for (const Rectangle& pairs : of_others) call(pairs, all, forward, false);
  if (!backward) return;
  const std::int64_t middle = AttentionPartHalf(stream, s);
  const Strides of_own = {s.Width(), s.Width(), width, width, s.Width()};
  for (const Part& tasks : {Part{0, middle}, Part{middle, all.end}}) call(own, tasks, of_own, true);
  const Strides of_block = {s.Width(), packed, width, width, packed};
  for (const Rectangle& pairs : of_others) call(pairs, all, of_block, true);
}

// A call that cuDNN computes.
struct Served {
  Window window;
  CudnnProblem problem;
  CudnnChoice choice;
};

std::optional<Served> Serve(const AttentionPass& o) {
  const CudnnPlans::PassState& state = CudnnPlansOf(o.stream).StateOf(o.backward);
  if (!state.parts) return std::nullopt;
  const Positions& keys = o.block.positions;
  const auto pairs = Visible(o.shape.positions, keys, o.shape.causal);
  const auto range = TasksOf(o.shape, o.tasks);
  if (!pairs || !range) return std::nullopt;
  const Window window(o.shape, *range, *pairs);
  const CudnnProblem problem =
      ProblemOf(o.shape, window, keys.Count(), o.backward,
                {o.qkv.stride, o.block.data.stride, o.out.stride, o.dout.stride, o.dblock.stride});
  const std::int64_t room = (o.scratch.Size() - Places(o.stream, o.shape).workspace) * kFloat;
  CudnnSearch search(o.stream, room, false);
  const auto choice = search.Choose(problem);
  if (choice) return Served{window, problem, *choice};
  if (!state.warned) {  // one warning, not one per block
    WarnOfOwnAttention(o.stream, o.backward,
                       fmt::format("of {} sequences' blocks of {} queries and {} keys: {}",
                                   problem.sequences, problem.queries, problem.keys, search.Why()));
  }
  return std::nullopt;
}

}  // namespace

std::int64_t CudnnPartScratch(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t own, bool backward) {
  const Positions& at = shape.positions;
  if (at.early.Size() != at.late.Size() || at.Count() != shape.length) return own;
  std::optional<std::int64_t> bytes;
  ForEachCall(stream, shape, backward,
              [&](const Window& window, const Strides& strides, bool pass) {
                const auto workspace =
                    PlanCudnnPass(stream, ProblemOf(shape, window, shape.length, pass, strides),
                                  &CudnnPlans::PassState::parts, "of some blocks: ");
                if (workspace) bytes = std::max(bytes.value_or(0), *workspace);
              });
  return bytes ? Places(stream, shape).workspace + CudnnRoundUp(CeilDivide(*bytes, kFloat)) : own;
}

bool CudnnPart(const AttentionPass& o) {
  for (const Matrix& m : {o.qkv, o.block.data, o.out, o.dout, o.dqkv, o.dblock}) {
    if (!gpu::RowsAligned(m)) return false;
  }
  const auto served = Serve(o);
  if (!served) return false;
  const auto& [window, problem, choice] = *served;
  const Places places(o.stream, o.shape);
  const std::int64_t rows = o.block.positions.Count(), dims = o.shape.head_dim;
  const std::int64_t width = window.Heads() * dims;
  const Matrix part = {o.scratch.Offset(places.part), Dtype::kBfloat16,
                       problem.sequences * problem.queries, width, width};
  float* const statistics = static_cast<float*>(o.scratch.Offset(places.statistics));
  if (o.backward) PackLse(o.stream, window.Queries(), window.OfQueries(o.lse, 1), statistics);
  RunCudnn(o.stream, problem, choice,
           {.query = window.OfQueries(o.qkv, dims).data,
            .key = window.OfKeys(o.block.data, rows, false).data,
            .value = window.OfKeys(o.block.data, rows, true).data,
            .out = o.backward ? window.OfQueries(o.out, dims).data : part.data,
            .dout = window.OfQueries(o.dout, dims).data,
            .dquery = part.data,
            .dkey = window.OfKeys(o.dblock, rows, false).data,
            .dvalue = window.OfKeys(o.dblock, rows, true).data,
            .statistics = statistics,
            .workspace = o.scratch.Offset(places.workspace)});
  MergeAttention(o.stream, window.Queries(), part, o.backward ? nullptr : statistics,
                 {window.OfQueries(o.backward ? o.dqkv : o.out, dims),
                  window.OfQueries(ExactSum(o.shape, o.scratch), dims)},
                 window.OfQueries(o.lse, 1));
  if (o.backward) window.ClearRest(o.stream, o.dblock, rows);
  return true;
}

}  // namespace trireme::kernels::cuda
