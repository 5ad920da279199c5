// Frames as ../frames.py defines them; see there for what they mean.
#pragma once
#include <cstdint>

namespace placet {

constexpr uint16_t MAGIC = 0x504C;
constexpr uint8_t VERSION = 1;
constexpr uint32_t SLICE_BYTES = 1u << 18;
constexpr uint32_t MESSAGE_BYTES = 1u << 17;
constexpr uint64_t EAGER_BYTES = 1u << 15;
constexpr uint64_t EARLY_BYTES = 1u << 20;

enum FrameKind : uint8_t { DATA = 1, READY = 2, CONTROL = 3, BYE = 4 };

struct Header {  // little-endian, as all machines that torch runs on are
    uint16_t magic;
    uint8_t version;
    uint8_t kind;
    uint32_t epoch;
    uint64_t collective;
    uint64_t fingerprint;
    uint64_t start;
    uint64_t lane_bytes;
    uint32_t num_bytes;
    uint32_t reserved;
};
static_assert(sizeof(Header) == 48, "as in frames.py");

inline Header make_header(uint8_t kind, uint32_t epoch) {
    Header h{};
    h.magic = MAGIC;
    h.version = VERSION;
    h.kind = kind;
    h.epoch = epoch;
    return h;
}

// What is wrong with a header; nullptr if nothing is. Called before anything is
// reserved or read on its word.
inline const char* fault_of(const Header& h) {
    if (h.magic != MAGIC || h.version != VERSION)
        return "magic or version: not a frame of placet's";
    if (h.kind < DATA || h.kind > BYE) return "kind: no such kind of frame";
    uint32_t most = h.kind == DATA ? SLICE_BYTES : h.kind == CONTROL ? MESSAGE_BYTES : 0;
    if (h.num_bytes > most) return "num_bytes: more than a frame of its kind may hold";
    if (h.kind == DATA) {
        if (h.num_bytes == 0) return "num_bytes: an empty DATA frame";
        if (h.start > h.lane_bytes || h.num_bytes > h.lane_bytes - h.start)
            return "start: bytes beyond the end of the lane";
    }
    return nullptr;
}

}  // namespace placet
