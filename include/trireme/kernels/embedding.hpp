// Token embedding on a slice of the vocabulary, then positions and dropout on a shard of the rows.
#ifndef TRIREME_KERNELS_EMBEDDING_HPP_
#define TRIREME_KERNELS_EMBEDDING_HPP_

#include <cstdint>

#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

// out[r] = scale * weight[tokens[r] - first]; 0 for a token outside of the slice of the vocabulary,
// [first, first + weight.rows). tokens: [rows]; weight: [slice, dim]; out: [rows, dim],
// overwritten.
void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const Matrix& weight, double scale, const Matrix& out);

// dweight[tokens[r] - first] += scale * dout[r] for the tokens of the slice, in the order of the
// rows, whatever the number of threads. tokens: [rows]; dout: [rows, dim]; dweight: [slice, dim],
// added to.
void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const Matrix& dout, const Matrix& dweight);

// Begins of documents, [rows of the micro-batch] in the stream's memory (AttentionShape::begins): t
// below is the position of row r by `dropout`, less begins[dropout.first_row + r] unless begins is
// null. Masks are those of the position in the sequence.

// x[r] = dropout(x[r] + positions[t]). x: [rows, dim], in place; positions: [more than the last
// position, dim] or Empty().
void PositionForward(const device::Stream& stream, const Matrix& positions,
                     const std::int32_t* begins, const Dropout& dropout, const Matrix& x);

// dpositions[t] += dout[r], in the order of the rows; nothing if dpositions is Empty(). dout:
// [rows, dim], already masked; dpositions: of the shape of positions.
void PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                      const Dropout& dropout, const Matrix& dout,
                      const Matrix& dpositions);

// Fills `table`, in host memory, with the fixed positions of Vaswani et al. 2017, section 3.5:
// [t, 2i] = sin(t / 10000^(2i/dim)), [t, 2i+1] = cos of the same. table: [positions, dim].
void SinusoidalPositions(const Matrix& table);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_EMBEDDING_HPP_
