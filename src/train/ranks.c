/* Ranks through MPI, where the build has it: see ranks.h. */
#include "train/ranks.h"
#include "base/status.h"

#include <stdlib.h>

/* Whether a launcher started this process as one of several. */
static int launched(void)
{
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (getenv(signs[i])) return 1;
    return 0;
}

#ifdef BLURRY_HAVE_MPI
#include <mpi.h>

enum { PART = 1 << 28 }; /* MPI counts are int */
static int is_open, rank_number, rank_count = 1, local_number, local_count = 1;

blurry_status blurry_ranks_open(void)
{
    if (is_open || !launched()) return BLURRY_OK;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) return status_fail(BLURRY_E_INTERNAL, "MPI does not start");
    MPI_Comm machine;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_number);
    MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_number);
    MPI_Comm_size(machine, &local_count);
    MPI_Comm_free(&machine);
    is_open = 1;
    return BLURRY_OK;
}

void blurry_ranks_close(void)
{
    if (is_open) MPI_Finalize();
    is_open = 0;
    rank_count = 1;
    rank_number = 0;
}

void blurry_ranks_abort(int code)
{
    if (is_open && rank_count > 1) MPI_Abort(MPI_COMM_WORLD, code);
}

void ranks_broadcast(void *data, size_t bytes)
{
    for (size_t at = 0; rank_count > 1 && at < bytes; at += PART)
        MPI_Bcast((char *)data + at, (int)(bytes - at < PART ? bytes - at : PART), MPI_BYTE, 0,
                  MPI_COMM_WORLD);
}

/* Summed on rank 0 and sent to all, so that no rank can differ in the last bit. */
static void sum(void *data, size_t count, size_t element, MPI_Datatype type)
{
    for (size_t at = 0; rank_count > 1 && at < count; at += PART) {
        int n = (int)(count - at < PART ? count - at : PART);
        void *part = (char *)data + at * element;
        MPI_Reduce(rank_number == 0 ? MPI_IN_PLACE : part, part, n, type, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Bcast(part, n, type, 0, MPI_COMM_WORLD);
    }
}

void ranks_sum_f32(float *data, size_t count)
{
    sum(data, count, sizeof *data, MPI_FLOAT);
}

void ranks_sum_f64(double *data, size_t count)
{
    sum(data, count, sizeof *data, MPI_DOUBLE);
}

void ranks_sum_i64(int64_t *data, size_t count)
{
    sum(data, count, sizeof *data, MPI_INT64_T);
}

int blurry_ranks_rank(void)
{
    return rank_number;
}

int blurry_ranks_size(void)
{
    return rank_count;
}

int ranks_local(void)
{
    return local_number;
}

int ranks_local_count(void)
{
    return local_count;
}

#else

blurry_status blurry_ranks_open(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (launched() && (!size || atoi(size) > 1))
        return status_fail(BLURRY_E_UNSUPPORTED, "started by mpirun, but this program was built without MPI: "
                                                 "install libopenmpi-dev and build again");
    return BLURRY_OK;
}

void blurry_ranks_close(void) {}

void blurry_ranks_abort(int code)
{
    (void)code;
}

void ranks_broadcast(void *data, size_t bytes)
{
    (void)data, (void)bytes;
}

void ranks_sum_f32(float *data, size_t count)
{
    (void)data, (void)count;
}

void ranks_sum_f64(double *data, size_t count)
{
    (void)data, (void)count;
}

void ranks_sum_i64(int64_t *data, size_t count)
{
    (void)data, (void)count;
}

int blurry_ranks_rank(void)
{
    return 0;
}

int blurry_ranks_size(void)
{
    return 1;
}

int ranks_local(void)
{
    return 0;
}

int ranks_local_count(void)
{
    return 1;
}
#endif
