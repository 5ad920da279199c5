// Reductions over flat elements.
#pragma once
#include <cstdint>

namespace placet {

// In the order of DTYPES and REDUCTIONS in core.py.
enum Dtype : int {
    F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, C64, C128, BYTES
};
enum Reduction : int { SUM, MAX, MIN, PROD };

// dst[i] = a[i] (op) b[i] for num_bytes / itemsize elements; dst may be a or b.
void reduce(Dtype dtype, Reduction op, void* dst, const void* a, const void* b,
            uint64_t num_bytes);

bool can_reduce(Dtype dtype, Reduction op);

}  // namespace placet
