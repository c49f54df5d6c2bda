/* Blocks, threads, barriers and warp exchanges. */
#include "fiber.h"
#include "streams.h"

#include <map>
#include <memory>
#include <stdio.h>
#include <vector>

thread_local emulator_thread *emulator_self;

namespace
{

enum { STACK_BYTES = 256 * 1024, BARRIERS = 16, SHARED_ALIGNED = 1024 };

struct barrier {
    int arrived;
    uint64_t generation;
};

struct pending_copy {
    void *to;
    const void *from;
    bool valid;
    int group;
};

struct thread {
    emulator_thread visible;
    fiber own;
    unsigned turn; /* which of the two exchange areas is next */
    std::vector<pending_copy> copies;
    int group;
};

struct warp {
    unsigned arrived, live;
    uint64_t generation;
    alignas(64) unsigned char area[2][32 * EMULATOR_EXCHANGE];
};

struct bulk_piece {
    void *to;
    const void *from;
    size_t bytes;
};

struct bulk_barrier { /* of one announcement a phase */
    uint64_t phase;
    bool announced;
    size_t missing; /* announced bytes whose copies have not begun */
    std::vector<bulk_piece> copies;
};

/* What a thread waits for: that a counter is no longer what it was. nullptr: nothing. */
struct expectation {
    const uint64_t *counter;
    uint64_t was;
};
const uint64_t never = 0; /* for threads that have ended */

struct machine {
    std::map<const uint64_t *, bulk_barrier> bulk;
    uint64_t bulk_events;
    std::vector<thread> threads;
    std::vector<expectation> waiting;
    std::vector<warp> warps;
    barrier barriers[BARRIERS];
    std::vector<unsigned char> shared;
    std::vector<int> order; /* in which threads take turns */
    size_t place;           /* in it, of the running thread */
    int live;
    fiber launcher;
    fiber *left; /* last: the one that handed over to the running fiber */
    const std::function<void()> *body;
};

thread_local std::unique_ptr<machine> current;

thread &self()
{
    return current->threads[(size_t)current->order[current->place]];
}

[[noreturn]] void stuck(const machine *m)
{
    fprintf(stderr,
            "emulator: deadlock, %d of %zu threads wait: a barrier or warp instruction that not all reach\n",
            m->live, m->threads.size());
    abort();
}

void hand_over(machine *m, fiber *from, fiber *to)
{
    m->left = from;
    fiber_switch(from, to);
}

/* Continues the next thread in the order that waits for nothing. */
void next_thread(machine *m, fiber *from)
{
    for (size_t i = 1; i <= m->order.size(); i++) {
        size_t place = m->place + i < m->order.size() ? m->place + i : m->place + i - m->order.size();
        int index = m->order[place];
        const expectation &e = m->waiting[(size_t)index];
        if (e.counter && *e.counter == e.was) continue;
        thread &next = m->threads[(size_t)index];
        m->place = place;
        emulator_self = &next.visible;
        if (&next.own != from) hand_over(m, from, &next.own);
        return;
    }
    stuck(m);
}

/* Until the counter changes. */
void wait_for(const uint64_t *counter)
{
    machine *m = current.get();
    thread &t = self();
    expectation &e = m->waiting[(size_t)m->order[m->place]];
    e = {counter, *counter};
    next_thread(m, &t.own);
    e.counter = nullptr;
}

void land_copies(thread &t, int most)
{
    int limit = t.group - most;
    std::vector<pending_copy> rest;
    for (const pending_copy &c : t.copies) {
        if (c.group >= limit) {
            rest.push_back(c);
        } else if (c.valid) {
            memcpy(c.to, c.from, 16);
        } else {
            memset(c.to, 0, 16);
        }
    }
    t.copies.swap(rest);
}

/* A thread that has ended no longer takes part in the block's barrier. */
void release_block_barrier(machine *m)
{
    barrier &b = m->barriers[0];
    if (b.arrived && b.arrived >= m->live) b.arrived = 0, b.generation++;
}

void entry(void *)
{
    machine *m = current.get();
    fiber_entered(m->left);
    (*m->body)();
    thread &t = self();
    t.group++;
    land_copies(t, 0);
    m->waiting[(size_t)m->order[m->place]] = {&never, never};
    m->live--;
    m->warps[(size_t)t.visible.warp].live &= ~(1u << t.visible.lane);
    release_block_barrier(m);
    if (m->live > 0)
        next_thread(m, &t.own);
    else
        hand_over(m, &t.own, &m->launcher);
}

[[noreturn]] void bulk_misuse(const char *what)
{
    fprintf(stderr, "emulator: bulk copies: %s\n", what);
    abort();
}

bulk_barrier &bulk_at(const uint64_t *barrier)
{
    auto found = current->bulk.find(barrier);
    if (found == current->bulk.end()) bulk_misuse("a barrier that was not initialised");
    return found->second;
}

std::vector<int> running_order(int count)
{
    std::vector<int> order((size_t)count);
    for (int i = 0; i < count; i++) order[(size_t)i] = i;
    const char *wish = getenv("EMULATOR_ORDER");
    if (wish && !strcmp(wish, "reverse")) std::reverse(order.begin(), order.end());
    if (wish && !strncmp(wish, "random", 6)) {
        uint64_t state = 88172645463325252ull + (wish[6] == ':' ? strtoull(wish + 7, nullptr, 10) : 0);
        for (int i = count - 1; i > 0; i--) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            std::swap(order[(size_t)i], order[(size_t)(state % (unsigned)(i + 1))]);
        }
    }
    return order;
}

void run_block(machine *m, dim3 grid, dim3 block, uint3 at)
{
    int count = (int)(block.x * block.y * block.z);
    for (barrier &b : m->barriers) b.arrived = 0;
    for (warp &w : m->warps) w.arrived = 0, w.live = 0;
    m->bulk.clear();
    m->live = count;
    memset(m->shared.data(), 0xff, m->shared.size());
    for (int i = 0; i < count; i++) {
        thread &t = m->threads[(size_t)i];
        unsigned u = (unsigned)i;
        t.visible = {{u % block.x, u / block.x % block.y, u / block.x / block.y},
                     at,
                     block,
                     grid,
                     i % 32,
                     i / 32,
                     false};
        t.turn = 0, t.group = 0;
        t.copies.clear();
        m->warps[(size_t)(i / 32)].live |= 1u << i % 32;
        m->waiting[(size_t)i] = {nullptr, 0};
        fiber_prepare(&t.own, entry, nullptr);
    }
    m->place = m->order.size() - 1;
    next_thread(m, &m->launcher);
    for (const auto &b : m->bulk)
        if (!b.second.copies.empty()) bulk_misuse("a block ends with copies under way");
}

struct stack_pool { /* kept between launches: a stack costs more than a small kernel */
    std::vector<char *> stacks;
    ~stack_pool()
    {
        for (char *s : stacks) free(s);
    }
};
thread_local stack_pool pool;

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    int count = (int)(block.x * block.y * block.z);
    if (current || count < 1 || count > 1024 || shared_bytes > 227 * 1024) {
        fprintf(stderr, "emulator: a launch of %d threads with %zu bytes of shared memory is not possible\n",
                count, shared_bytes);
        abort();
    }
    current.reset(new machine());
    machine *m = current.get();
    m->threads.resize((size_t)count);
    m->waiting.resize((size_t)count);
    m->order = running_order(count);
    m->warps.resize((size_t)(count + 31) / 32);
    m->shared.resize(shared_bytes + 2 * SHARED_ALIGNED);
    m->body = &body;
    while (pool.stacks.size() < (size_t)count)
        pool.stacks.push_back((char *)aligned_alloc(4096, STACK_BYTES));
    for (int i = 0; i < count; i++) {
        m->threads[(size_t)i].own = {nullptr, pool.stacks[(size_t)i], STACK_BYTES};
    }
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) run_block(m, grid, block, {x, y, z});
    emulator_self = nullptr;
    current.reset();
}

} // namespace

void emulator_run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, std::function<void()> body)
{
    if (emulator_refuses()) return;
    emulator_record(stream, [=] {
        if (!emulator_goes_wrong(grid.x * grid.y * grid.z)) run_grid(grid, block, shared_bytes, body);
    });
}

void emulator_check_waited(void)
{
    if (emulator_self->waited) return;
    fprintf(stderr, "emulator: a kernel launched by cuda_launch_early does not call cuda_wait_previous\n");
    abort();
}

void *emulator_dynamic_shared(void)
{
    return (void *)(((uintptr_t)current->shared.data() + SHARED_ALIGNED - 1) &
                    ~(uintptr_t)(SHARED_ALIGNED - 1));
}

uint32_t cuda_shared_address(const void *p)
{
    return (uint32_t)((const char *)p - (const char *)emulator_dynamic_shared());
}

void emulator_barrier(int id, int threads)
{
    machine *m = current.get();
    barrier &b = m->barriers[id];
    b.arrived++;
    if (b.arrived >= (id == 0 ? m->live : threads))
        b.arrived = 0, b.generation++;
    else
        wait_for(&b.generation);
}

/* The last of the lanes to arrive calls complete(area) before any goes on. */
static void meet_warp(unsigned mask, void (*complete)(unsigned char *area), unsigned char *area)
{
    machine *m = current.get();
    warp &w = m->warps[(size_t)emulator_self->warp];
    if (!(mask >> emulator_self->lane & 1)) {
        fprintf(stderr, "emulator: lane %d calls a warp instruction whose mask leaves it out\n",
                emulator_self->lane);
        abort();
    }
    w.arrived |= 1u << emulator_self->lane;
    if ((w.arrived & mask & w.live) != (mask & w.live)) {
        wait_for(&w.generation);
        return;
    }
    if (complete) complete(area);
    w.arrived = 0, w.generation++;
}

void emulator_warp_barrier(unsigned mask)
{
    meet_warp(mask, nullptr, nullptr);
}

const unsigned char *emulator_exchange(unsigned mask, const void *mine, size_t bytes,
                                       void (*complete)(unsigned char *area))
{
    warp &w = current->warps[(size_t)emulator_self->warp];
    thread &t = self();
    unsigned char *area = w.area[t.turn++ % 2];
    memcpy(area + EMULATOR_EXCHANGE * emulator_self->lane, mine, bytes);
    meet_warp(mask, complete, area);
    return area;
}

void copy_async16(void *shared, const void *global, bool valid)
{
    if (((uintptr_t)shared | (uintptr_t)global) % 16) {
        fprintf(stderr, "emulator: copy_async16 from %p to %p is not aligned to 16\n", global, shared);
        abort();
    }
    self().copies.push_back({shared, global, valid, self().group});
}

void copy_async_commit(void)
{
    self().group++;
}

void emulator_copy_wait(int most)
{
    land_copies(self(), most);
}

void bulk_barrier_init(uint64_t *barrier)
{
    current->bulk[barrier] = {0, false, 0, {}};
}

void bulk_announce(uint64_t *barrier, uint32_t bytes)
{
    bulk_barrier &b = bulk_at(barrier);
    if (b.announced) bulk_misuse("two announcements in one phase");
    b.announced = true, b.missing = bytes;
    current->bulk_events++;
}

void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *barrier)
{
    bulk_barrier &b = bulk_at(barrier);
    if (((uintptr_t)shared | (uintptr_t)global | bytes) % 16)
        bulk_misuse("an end or a size is not aligned to 16");
    if (!b.announced || bytes > b.missing) bulk_misuse("more bytes than announced");
    memset(shared, 0xff, bytes);
    b.copies.push_back({shared, global, bytes});
    b.missing -= bytes;
    current->bulk_events++;
}

void bulk_wait(uint64_t *barrier, int parity)
{
    while ((int)(bulk_at(barrier).phase % 2) == parity) {
        bulk_barrier &b = bulk_at(barrier);
        if (!b.announced || b.missing > 0) {
            wait_for(&current->bulk_events);
            continue;
        }
        for (const bulk_piece &c : b.copies) memcpy(c.to, c.from, c.bytes);
        b = {b.phase + 1, false, 0, {}};
        current->bulk_events++;
    }
}
