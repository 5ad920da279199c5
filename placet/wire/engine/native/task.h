// A submitted move: its instructions, and how far each is. See ../schedule.py.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "reduce.h"

namespace placet {

enum Kind : int { SEND, RECEIVE, RECEIVE_REDUCE, REDUCE, COPY };
enum State : int { PENDING, DONE, FAILED };

struct Follow {
    uint32_t instruction;
    uint64_t start;
};

struct Instruction {
    Kind kind;
    int peer;  // index into Core::peers
    uint64_t num_bytes;
    const char* src;
    char* dst;
    const char* other;
    uint32_t first_follow, num_follows;
    uint64_t issued = 0;  // bytes put into frames (sends)
    uint64_t done = 0;    // bytes finished: memory read or written
};

// All sends to one peer, or all receives from one, in order.
struct Lane {
    int peer;
    uint64_t total = 0;
    uint64_t start = 0;    // bytes issued or received so far
    uint64_t unheard = 0;  // bytes sent on trust, before the peer was heard
    size_t at = 0;         // the current one of `instructions`
    std::vector<uint32_t> instructions;
    bool ended() const { return at == instructions.size(); }
};

struct Task {
    uint64_t collective, fingerprint, order;
    int priority;
    bool notify;
    Dtype dtype;
    Reduction reduction;
    uint32_t itemsize;
    std::vector<Instruction> instructions;
    std::vector<Follow> follows;
    std::vector<Lane> sends, receives;
    std::vector<uint32_t> locals;  // REDUCE and COPY that are not finished
    std::vector<int> heard;        // peers known to have submitted it
    size_t num_undone = 0;
    bool is_busy = false;  // in Core::busy
    std::unique_ptr<char[]> scratch;
    std::atomic<int> state{PENDING};

    bool has_heard(int peer) const {
        for (int p : heard)
            if (p == peer) return true;
        return false;
    }
    Lane* lane(std::vector<Lane>& lanes, int peer) {
        for (Lane& l : lanes)
            if (l.peer == peer) return &l;
        return nullptr;
    }
    // Bytes that instruction i may have done by now.
    uint64_t allowed(const Instruction& i) const {
        uint64_t n = i.num_bytes;
        for (uint32_t f = 0; f < i.num_follows; f++) {
            const Follow& follow = follows[i.first_follow + f];
            uint64_t done = instructions[follow.instruction].done;
            uint64_t most = done > follow.start ? done - follow.start : 0;
            if (most < n) n = most;
        }
        return n;
    }
    void progress(Instruction& i, uint64_t n) {
        i.done += n;
        if (i.done == i.num_bytes) num_undone--;
    }
    bool needs(int peer) const {
        for (const Instruction& i : instructions)
            if (i.peer == peer && i.done < i.num_bytes) return true;
        return false;
    }
};

}  // namespace placet
