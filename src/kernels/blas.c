/* OpenBLAS under this library's worker pool. */
#include "kernels/blas.h"

#include "base/threads.h"

#include <cblas.h>
#include <pthread.h>
#include <stddef.h>

/* The runtime under the OpenMP build of OpenBLAS; its thread count belongs to the calling thread. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int threads);

enum { BLAS_SERIAL = 0, BLAS_PTHREADS = 1, BLAS_OPENMP = 2 }; /* openblas_get_parallel() */
/* Blocks of C: at least this many rows or columns, and about this many blocks, however many threads there
 * are. */
enum { BLOCK_LEAST = 64, BLOCKS_MOST = 32 };
static const double PARALLEL_WORK = 4e5; /* multiply-adds below which a second thread does not pay */

static int build = BLAS_SERIAL;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void)
{
    build = openblas_get_parallel();
    /* The pthreads build has one thread count for the process; ours are the workers that count. */
    if (build == BLAS_PTHREADS) openblas_set_num_threads(1);
}

void blas_init(void)
{
    pthread_once(&once, look);
}

static CBLAS_TRANSPOSE transpose(int yes)
{
    return yes ? CblasTrans : CblasNoTrans;
}

void blas_gemm_f32(const blas_product *p)
{
    if (p->m <= 0 || p->n <= 0) return;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, transpose(p->trans_a), transpose(p->trans_b), (blasint)p->m, (blasint)p->n,
                (blasint)p->k, (float)p->alpha, p->a, (blasint)p->lda, p->b, (blasint)p->ldb, (float)p->beta,
                p->c, (blasint)p->ldc);
    omp_set_num_threads(threads);
}

void blas_gemm_f64(const blas_product *p)
{
    if (p->m <= 0 || p->n <= 0) return;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    cblas_dgemm(CblasRowMajor, transpose(p->trans_a), transpose(p->trans_b), (blasint)p->m, (blasint)p->n,
                (blasint)p->k, p->alpha, p->a, (blasint)p->lda, p->b, (blasint)p->ldb, p->beta, p->c,
                (blasint)p->ldc);
    omp_set_num_threads(threads);
}

typedef struct cut {
    const blas_product *p;
    void (*gemm)(const blas_product *p);
    size_t element;
    int64_t block; /* rows (or columns) of C per task */
    int by_rows;
    int64_t stride_a, stride_b, stride_c; /* between the products of a batch */
} cut;

static const void *at(const void *from, int64_t elements, size_t element)
{
    return (const char *)from + (size_t)elements * element;
}

static void block_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const cut *c = context;
    blas_product p = *c->p;
    int64_t first = task * c->block, whole = c->by_rows ? p.m : p.n;
    int64_t size = whole - first < c->block ? whole - first : c->block;
    if (c->by_rows) {
        p.m = size;
        p.a = at(p.a, p.trans_a ? first : first * p.lda, c->element);
        p.c = (void *)at(p.c, first * p.ldc, c->element);
    } else {
        p.n = size;
        p.b = at(p.b, p.trans_b ? first * p.ldb : first, c->element);
        p.c = (void *)at(p.c, first, c->element);
    }
    c->gemm(&p);
}

static void batch_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const cut *c = context;
    blas_product p = *c->p;
    p.a = at(p.a, task * c->stride_a, c->element);
    p.b = at(p.b, task * c->stride_b, c->element);
    p.c = (void *)at(p.c, task * c->stride_c, c->element);
    c->gemm(&p);
}

static void gemm_parallel(int threads, const blas_product *p, void (*gemm)(const blas_product *p),
                          size_t element)
{
    if (p->m <= 0 || p->n <= 0) return;
    cut c = {.p = p, .gemm = gemm, .element = element, .by_rows = p->m >= p->n};
    int64_t whole = c.by_rows ? p->m : p->n;
    c.block = ((whole + BLOCKS_MOST - 1) / BLOCKS_MOST + 15) / 16 * 16;
    if (c.block < BLOCK_LEAST) c.block = BLOCK_LEAST;
    if ((double)p->m * (double)p->n * (double)p->k < PARALLEL_WORK) c.block = whole;
    threads_run(build == BLAS_SERIAL ? 1 : threads, (whole + c.block - 1) / c.block, block_task, &c);
}

void blas_gemm_parallel_f32(int threads, const blas_product *p)
{
    gemm_parallel(threads, p, blas_gemm_f32, sizeof(float));
}

void blas_gemm_parallel_f64(int threads, const blas_product *p)
{
    gemm_parallel(threads, p, blas_gemm_f64, sizeof(double));
}

static void gemm_batch(int threads, cut *c, int64_t count)
{
    if (count == 1)
        gemm_parallel(threads, c->p, c->gemm, c->element);
    else
        threads_run(build == BLAS_SERIAL ? 1 : threads, count, batch_task, c);
}

void blas_gemm_batch_f32(int threads, const blas_product *p, int64_t count, int64_t stride_a,
                         int64_t stride_b, int64_t stride_c)
{
    cut c = {.p = p,
             .gemm = blas_gemm_f32,
             .element = sizeof(float),
             .stride_a = stride_a,
             .stride_b = stride_b,
             .stride_c = stride_c};
    gemm_batch(threads, &c, count);
}

void blas_gemm_batch_f64(int threads, const blas_product *p, int64_t count, int64_t stride_a,
                         int64_t stride_b, int64_t stride_c)
{
    cut c = {.p = p,
             .gemm = blas_gemm_f64,
             .element = sizeof(double),
             .stride_a = stride_a,
             .stride_b = stride_b,
             .stride_c = stride_c};
    gemm_batch(threads, &c, count);
}
