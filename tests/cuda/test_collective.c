/* NCCL behind device/collective.h: sums over a group of as many GPUs as there are (at most two, a thread for
 * each); without NCCL a refusal that says so. */
#include "support/test.h"

#include "device/collective.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { GROUP_MOST = 2, COUNT = 1003 };

typedef struct member {
    pthread_t thread;
    char id[COLLECTIVE_ID];
    int rank, size;
    blurry_status status;
    char message[256];
    float sum[COUNT];
} member;

static blurry_status sum_once(member *m)
{
    device *dev = NULL;
    collective *group = NULL;
    void *data = NULL;
    float own[COUNT];
    for (int i = 0; i < COUNT; i++) own[i] = (float)((m->rank + 1) * (i - 400));
    blurry_status status = collective_choose_gpu(m->rank);
    if (status == BLURRY_OK)
        status = device_create(&dev, &(device_options){.kind = DEVICE_CUDA, .dtype = BLURRY_F32});
    if (status == BLURRY_OK) status = collective_open(&group, m->id, m->rank, m->size);
    if (status == BLURRY_OK) status = device_alloc(dev, sizeof own, &data);
    if (status == BLURRY_OK) status = device_upload(dev, data, own, sizeof own);
    if (status == BLURRY_OK) status = collective_sum(group, dev, data, COUNT);
    if (status == BLURRY_OK) status = device_download(dev, m->sum, data, sizeof own);
    if (status == BLURRY_OK) status = device_sync(dev);
    if (data) device_free(dev, data);
    collective_close(&group);
    device_destroy(&dev);
    return status;
}

static void *take_part(void *context)
{
    member *m = context;
    m->status = sum_once(m);
    snprintf(m->message, sizeof m->message, "%s", m->status == BLURRY_OK ? "" : blurry_last_error());
    return NULL;
}

static void sums_over_a_group(void **state)
{
    (void)state;
    static member members[GROUP_MOST];
    char id[COLLECTIVE_ID] = {0};
    int size = collective_available(GROUP_MOST) ? GROUP_MOST : 1;
    if (!collective_available(1)) {
        collective *group = NULL;
        assert_fails(collective_open(&group, id, 0, 1), BLURRY_E_UNSUPPORTED, "NCCL");
        assert_null(group);
        return;
    }
    assert_ok(collective_id(id));
    for (int r = 0; r < size; r++) {
        members[r] = (member){.rank = r, .size = size};
        memcpy(members[r].id, id, sizeof id);
        assert_int_equal(pthread_create(&members[r].thread, NULL, take_part, &members[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(members[r].thread, NULL);
    for (int r = 0; r < size; r++) {
        if (members[r].status != BLURRY_OK) fail_msg("member %d: %s", r, members[r].message);
        for (int i = 0; i < COUNT; i++)
            assert_true(members[r].sum[i] == (float)(size * (size + 1) / 2 * (i - 400)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_over_a_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
