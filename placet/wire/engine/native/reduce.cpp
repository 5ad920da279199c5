#include "reduce.h"

#include <complex>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace placet {
namespace {

// Sums of integers wrap round, as torch's do; signed overflow would be undefined.
struct Sum {
    template <class T> static T of(T a, T b) {
        if constexpr (std::is_integral_v<T>) {
            using U = std::make_unsigned_t<T>;
            return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
        } else {
            return a + b;
        }
    }
};
struct Prod {
    template <class T> static T of(T a, T b) {
        if constexpr (std::is_integral_v<T>) {
            using U = std::make_unsigned_t<T>;
            return static_cast<T>(uint64_t(static_cast<U>(a)) * static_cast<U>(b));
        } else {
            return a * b;
        }
    }
};
struct Max {  // a NaN stays, as in torch.maximum
    template <class T> static T of(T a, T b) { return (a > b || a != a) ? a : b; }
};
struct Min {
    template <class T> static T of(T a, T b) { return (a < b || a != a) ? a : b; }
};

float from_bf16(uint16_t v) {
    uint32_t bits = uint32_t(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
uint16_t to_bf16(float f) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<uint16_t>(f != f ? 0x7FC0 : rounded);
}

float from_f16(uint16_t v) {
#if defined(__F16C__)
    return _cvtsh_ss(v);
#else
    uint32_t sign = uint32_t(v & 0x8000) << 16, rest = v & 0x7FFF, bits;
    if (rest >= 0x7C00) {
        bits = sign | 0x7F800000 | ((rest & 0x3FF) << 13);
    } else if (rest >= 0x400) {
        bits = sign | ((rest << 13) + 0x38000000);
    } else {  // subnormal: rest * 2^-24
        float f = float(rest) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
#endif
}
uint16_t to_f16(float f) {
#if defined(__F16C__)
    return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
#else
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint32_t sign = (bits >> 16) & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return uint16_t(sign | 0x7E00);
    if (rest >= 0x47800000) return uint16_t(sign | 0x7C00);
    if (rest < 0x38800000) {  // subnormal: let the float unit round
        float scaled;
        std::memcpy(&scaled, &rest, 4);
        scaled += 0.5f;
        uint32_t out;
        std::memcpy(&out, &scaled, 4);
        return uint16_t(sign | (out - 0x3F000000));
    }
    rest += 0xC8000FFF + ((rest >> 13) & 1);
    return uint16_t(sign | (rest >> 13));
#endif
}

template <class Op, class T>
void each(void* dst, const void* a, const void* b, uint64_t num_bytes) {
    auto* d = static_cast<T*>(dst);
    auto* x = static_cast<const T*>(a);
    auto* y = static_cast<const T*>(b);
    uint64_t n = num_bytes / sizeof(T);
    for (uint64_t i = 0; i < n; i++) d[i] = Op::of(x[i], y[i]);
}

template <class Op, float (*from)(uint16_t), uint16_t (*to)(float)>
void each_half(void* dst, const void* a, const void* b, uint64_t num_bytes) {
    auto* d = static_cast<uint16_t*>(dst);
    auto* x = static_cast<const uint16_t*>(a);
    auto* y = static_cast<const uint16_t*>(b);
    uint64_t n = num_bytes / 2, i = 0;
#if defined(__F16C__) && defined(__AVX__)
    if constexpr (from == from_f16) {
        auto load = [](const uint16_t* p) {
            return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        };
        for (; i + 8 <= n; i += 8) {
            alignas(32) float u[8], v[8];
            _mm256_store_ps(u, load(x + i));
            _mm256_store_ps(v, load(y + i));
            for (int k = 0; k < 8; k++) u[k] = Op::of(u[k], v[k]);
            __m128i r = _mm256_cvtps_ph(_mm256_load_ps(u), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(d + i), r);
        }
    }
#endif
    for (; i < n; i++) d[i] = to(Op::of(from(x[i]), from(y[i])));
}

struct Or {
    static uint8_t of(uint8_t a, uint8_t b) { return (a | b) != 0; }
};
struct And {
    static uint8_t of(uint8_t a, uint8_t b) { return a && b; }
};

template <class Op>
bool ordered(Dtype t, void* d, const void* a, const void* b, uint64_t n) {
    switch (t) {
        case F64: each<Op, double>(d, a, b, n); return true;
        case F32: each<Op, float>(d, a, b, n); return true;
        case F16: each_half<Op, from_f16, to_f16>(d, a, b, n); return true;
        case BF16: each_half<Op, from_bf16, to_bf16>(d, a, b, n); return true;
        case I64: each<Op, int64_t>(d, a, b, n); return true;
        case I32: each<Op, int32_t>(d, a, b, n); return true;
        case I16: each<Op, int16_t>(d, a, b, n); return true;
        case I8: each<Op, int8_t>(d, a, b, n); return true;
        case U8: each<Op, uint8_t>(d, a, b, n); return true;
        default: return false;
    }
}
template <class Op>
bool complex_too(Dtype t, void* d, const void* a, const void* b, uint64_t n) {
    if (t == C64) return each<Op, std::complex<float>>(d, a, b, n), true;
    if (t == C128) return each<Op, std::complex<double>>(d, a, b, n), true;
    return ordered<Op>(t, d, a, b, n);
}

bool apply(Dtype t, Reduction op, void* d, const void* a, const void* b, uint64_t n) {
    if (t == BOOL) {
        if (op == SUM || op == MAX) each<Or, uint8_t>(d, a, b, n);
        else each<And, uint8_t>(d, a, b, n);
        return true;
    }
    switch (op) {
        case SUM: return complex_too<Sum>(t, d, a, b, n);
        case PROD: return complex_too<Prod>(t, d, a, b, n);
        case MAX: return ordered<Max>(t, d, a, b, n);
        case MIN: return ordered<Min>(t, d, a, b, n);
    }
    return false;
}

}  // namespace

void reduce(Dtype t, Reduction op, void* dst, const void* a, const void* b, uint64_t n) {
    apply(t, op, dst, a, b, n);
}

bool can_reduce(Dtype t, Reduction op) {
    return apply(t, op, nullptr, nullptr, nullptr, 0);
}

}  // namespace placet
