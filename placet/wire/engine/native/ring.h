// A byte ring in memory that two processes share: one writes, one reads.
//
// Records are a header and its payload, padded to 16 bytes, so that no element (at most
// 16 bytes) is cut in two where the ring wraps. `head` counts bytes written, `tail` bytes
// read; both only grow. A side that is about to sleep says so in a flag, and the other
// rings its bell (a byte on the pair's socket) when there is something to see.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace placet {

struct RingHead {
    alignas(64) std::atomic<uint64_t> head;
    alignas(64) std::atomic<uint64_t> tail;
    alignas(64) std::atomic<uint32_t> reader_sleeps;
    alignas(64) std::atomic<uint32_t> writer_sleeps;
};

constexpr uint64_t RING_HEAD_BYTES = 4096;

inline uint64_t padded(uint64_t n) { return (n + 15) & ~uint64_t(15); }

struct Ring {
    RingHead* shared = nullptr;
    char* data = nullptr;
    uint64_t capacity = 0;  // a power of two
    // Where this side stands. Its own: a corrupt peer can change all that is shared.
    uint64_t position = 0;

    explicit operator bool() const { return shared != nullptr; }

    void attach(char* memory, uint64_t num_bytes) {
        shared = reinterpret_cast<RingHead*>(memory);
        data = memory + RING_HEAD_BYTES;
        capacity = 1;
        while (capacity * 2 <= num_bytes - RING_HEAD_BYTES) capacity *= 2;
    }

    // --- the writer's side ---
    uint64_t space() const {
        return capacity - (position - shared->tail.load(std::memory_order_acquire));
    }
    void put(uint64_t at, const void* src, uint64_t n) {
        uint64_t begin = at & (capacity - 1), first = std::min(n, capacity - begin);
        std::memcpy(data + begin, src, first);
        std::memcpy(data, static_cast<const char*>(src) + first, n - first);
    }
    void write(const void* header, uint64_t header_bytes, const void* body, uint64_t n) {
        put(position, header, header_bytes);
        if (n) put(position + header_bytes, body, n);
        position += header_bytes + padded(n);
        shared->head.store(position, std::memory_order_release);
    }

    // --- the reader's side ---
    // More than `capacity` if a corrupt peer has changed the head.
    uint64_t available() const {
        return shared->head.load(std::memory_order_acquire) - position;
    }
    void get(uint64_t skip, void* dst, uint64_t n) const {
        uint64_t begin = (position + skip) & (capacity - 1), first = std::min(n, capacity - begin);
        std::memcpy(dst, data + begin, first);
        std::memcpy(static_cast<char*>(dst) + first, data, n - first);
    }
    // The part of [skip, skip + n) that lies in one piece; its length goes to `n`.
    const char* piece(uint64_t skip, uint64_t& n) const {
        uint64_t begin = (position + skip) & (capacity - 1);
        n = std::min(n, capacity - begin);
        return data + begin;
    }
    void drop(uint64_t n) {
        position += n;
        shared->tail.store(position, std::memory_order_release);
    }
};

}  // namespace placet
