// The C interface that core.py calls. A handle is a task's address.
#include <string.h>

#include <algorithm>

#include "core.h"

using namespace placet;

namespace {

// In the order of ROW in core.py.
struct Row {
    int64_t kind, peer, num_bytes, src_buffer, src_start, dst_buffer, dst_start,
        other_buffer, other_start, first_follow, num_follows;
};

Lane& lane_of(std::vector<Lane>& lanes, int peer) {
    for (Lane& lane : lanes)
        if (lane.peer == peer) return lane;
    lanes.emplace_back();
    lanes.back().peer = peer;
    return lanes.back();
}

}  // namespace

extern "C" {

void* placet_new(int number, double spin_seconds) {
    return new Core(number, spin_seconds);
}

void placet_link(void* core, int number, const int* fds, int num_fds, int send_memory,
                 int receive_memory, uint64_t memory_bytes) {
    static_cast<Core*>(core)->link(number, fds, num_fds, send_memory, receive_memory,
                                   memory_bytes);
}

void placet_start(void* core) { static_cast<Core*>(core)->start(); }

uint64_t placet_submit(void* core, uint64_t collective, uint64_t fingerprint,
                       int priority, int notify, int dtype, int reduction,
                       uint32_t itemsize, const int64_t* table, int num_rows,
                       const uint64_t* follows, int num_follows, char* payload, char* out,
                       uint64_t scratch_bytes) {
    auto task = std::make_unique<Task>();
    task->collective = collective;
    task->fingerprint = fingerprint;
    task->priority = priority;
    task->notify = notify != 0;
    task->dtype = Dtype(dtype);
    task->reduction = Reduction(reduction);
    task->itemsize = itemsize;
    if (scratch_bytes) task->scratch.reset(new char[scratch_bytes]);
    char* buffers[] = {payload, out, task->scratch.get()};
    auto rows = reinterpret_cast<const Row*>(table);
    auto self = static_cast<Core*>(core);
    task->instructions.reserve(num_rows);
    for (int k = 0; k < num_rows; k++) {
        const Row& row = rows[k];
        Instruction i{};
        i.kind = Kind(row.kind);
        i.num_bytes = uint64_t(row.num_bytes);
        i.peer = row.peer < 0 ? -1 : self->index_of(int(row.peer));
        i.src = buffers[row.src_buffer] + row.src_start;
        i.dst = buffers[row.dst_buffer] + row.dst_start;
        i.other = buffers[row.other_buffer] + row.other_start;
        i.first_follow = uint32_t(row.first_follow);
        i.num_follows = uint32_t(row.num_follows);
        task->instructions.push_back(i);
        if (i.kind == REDUCE || i.kind == COPY) {
            task->locals.push_back(uint32_t(k));
            continue;
        }
        if (i.peer < 0) return 0;
        Lane& lane = lane_of(i.kind == SEND ? task->sends : task->receives, i.peer);
        lane.instructions.push_back(uint32_t(k));
        lane.total += i.num_bytes;
    }
    task->num_undone = task->instructions.size();
    task->follows.reserve(num_follows);
    for (int k = 0; k < num_follows; k++)
        task->follows.push_back({uint32_t(follows[2 * k]), follows[2 * k + 1]});
    return reinterpret_cast<uint64_t>(self->submit(std::move(task)));
}

int placet_wait(void* core, uint64_t handle, double seconds) {
    return static_cast<Core*>(core)->wait(reinterpret_cast<Task*>(handle), seconds);
}

int placet_state(uint64_t handle) {
    return reinterpret_cast<Task*>(handle)->state.load(std::memory_order_acquire);
}

int placet_heard(void* core, uint64_t handle, int* numbers, int most) {
    std::vector<int> found;
    static_cast<Core*>(core)->heard(reinterpret_cast<Task*>(handle), found);
    int n = std::min(most, int(found.size()));
    std::copy(found.begin(), found.begin() + n, numbers);
    return n;
}

void placet_fail(void* core, uint64_t handle) {
    static_cast<Core*>(core)->fail(reinterpret_cast<Task*>(handle));
}

void placet_release(void* core, uint64_t handle) {
    static_cast<Core*>(core)->release(reinterpret_cast<Task*>(handle));
}

int placet_send(void* core, int number, const char* data, uint64_t num_bytes) {
    return static_cast<Core*>(core)->send(number, data, num_bytes);
}

// Returns the event's kind, or 0; its data go to `data`, at most MESSAGE_BYTES.
int placet_next_event(void* core, double seconds, int* peer, uint64_t* handle, char* data,
                      uint64_t* num_bytes) {
    Event event;
    if (!static_cast<Core*>(core)->next_event(seconds, event)) return 0;
    *peer = event.peer;
    *handle = event.handle;
    *num_bytes = std::min<uint64_t>(event.data.size(), MESSAGE_BYTES);
    memcpy(data, event.data.data(), *num_bytes);
    return event.kind;
}

void placet_advance(void* core, uint32_t epoch, const int* lost, int num_lost) {
    static_cast<Core*>(core)->advance(epoch, {lost, lost + num_lost});
}

void placet_counters(void* core, uint64_t* three) {
    auto self = static_cast<Core*>(core);
    three[0] = self->control_bytes;
    three[1] = self->num_preemptions;
    three[2] = self->num_early;
}

void placet_close(void* core) { static_cast<Core*>(core)->close(); }

void placet_delete(void* core) { delete static_cast<Core*>(core); }

int placet_can_reduce(int dtype, int reduction) {
    return can_reduce(Dtype(dtype), Reduction(reduction));
}

}  // extern "C"
