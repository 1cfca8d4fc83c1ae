#include "kernels/embedding.h"

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace tercet {
namespace {

// Checks ids, table and the token tensor; `table` and `tokens` share dtype and width.
void require_embedding(const Tensor& ids, const Tensor& table, const Tensor& tokens, int64_t row_offset) {
  require_rank(ids, 1, "ids");
  require_rank(table, 2, "table");
  const int64_t count = ids.rows();
  require_vector(ids, DType::i32, count, "ids");
  require_matrix(table, table.dtype, table.rows(), table.columns(), "table");
  require_matrix(tokens, table.dtype, count, table.columns(), "tokens");
  const int32_t* values = ids.row<int32_t>();
  for (int64_t t = 0; t < count; ++t)
    TERCET_REQUIRE(values[t] + row_offset >= 0 && values[t] + row_offset < table.rows(),
                   "ids[{}] = {} lies outside a table of {} rows (row offset {})", t, values[t], table.rows(),
                   row_offset);
}

template <class T>
void forward(const EmbeddingForwardArgs& args) {
  const int32_t* ids = args.ids.row<int32_t>();
  const Rows<T> table = rows_of<T>(args.table);
  const Rows<T> out = rows_of<T>(args.out);
  const int64_t hidden = args.out.columns();
  parallel_rows(args.out.rows(), hidden, [&](int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      const T* row = table[ids[t] + args.row_offset];
      if (args.accumulate)
        row_ops<T>().add(out[t], row, hidden);
      else
        std::copy_n(row, hidden, out[t]);
    }
  });
}

void embedding_forward_cpu(Stream&, const EmbeddingForwardArgs& args) {
  require_embedding(args.ids, args.table, args.out, args.row_offset);
  dispatch_floating(args.table.dtype, [&]<class T>() { forward<T>(args); });
}

template <class T>
void backward(const EmbeddingBackwardArgs& args) {
  const int32_t* ids = args.ids.row<int32_t>();
  const Rows<T> d_out = rows_of<T>(args.d_out);
  const Rows<T> d_table = rows_of<T>(args.d_table);
  parallel_columns(args.d_out.columns(), [&](int64_t first, int64_t end) {
    for (int64_t t = 0; t < args.d_out.rows(); ++t)
      row_ops<T>().add(d_table[ids[t] + args.row_offset] + first, d_out[t] + first, end - first);
  });
}

void embedding_backward_cpu(Stream&, const EmbeddingBackwardArgs& args) {
  require_embedding(args.ids, args.d_table, args.d_out, args.row_offset);
  dispatch_floating(args.d_table.dtype, [&]<class T>() { backward<T>(args); });
}

}  // namespace

const Op<EmbeddingForwardArgs> embedding_forward{"embedding_forward", embedding_forward_cpu};
const Op<EmbeddingBackwardArgs> embedding_backward{"embedding_backward", embedding_backward_cpu};

}  // namespace tercet
