/* Products through cuBLASLt, which is loaded when the first device is made: a program built with CUDA starts
 * on machines without it. Row-major C = A B is what cuBLASLt, which thinks in columns, calls C' = B' A'. */
#include "kernels/cuda_blas.h"
#include "kernels/cuda.h"
#include "kernels/cuda_product.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */
#define LT_FUNCTIONS(X)                                                                                      \
    X(Create)                                                                                                \
    X(Matmul)                                                                                                \
    X(MatmulAlgoGetHeuristic)                                                                                \
    X(MatmulDescCreate)                                                                                      \
    X(MatmulDescDestroy)                                                                                     \
    X(MatmulDescSetAttribute)                                                                                \
    X(MatrixLayoutCreate)                                                                                    \
    X(MatrixLayoutDestroy)                                                                                   \
    X(MatrixLayoutSetAttribute)                                                                              \
    X(MatmulPreferenceCreate)                                                                                \
    X(MatmulPreferenceDestroy)                                                                               \
    X(MatmulPreferenceSetAttribute)

typedef struct lt_library {
#define LT_POINTER(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(LT_POINTER)
} lt_library;

/* NULL on success, else what is missing. The library stays open as long as the process: handles refer to it.
 */
static const char *lt_open(lt_library *lt)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return "libcublasLt.so.13 was not found: install cuBLAS of CUDA 13, or use device=cpu";
#define LT_FIND(name)                                                                                        \
    lt->name = (decltype(&cublasLt##name))dlsym(library, "cublasLt" #name);                                  \
    if (!lt->name)                                                                                           \
        return "libcublasLt lacks cublasLt" #name ": install cuBLAS of CUDA 13, or use "                     \
               "device=cpu";
    LT_FUNCTIONS(LT_FIND)
    return NULL;
}

/* ---- one shape, prepared ---- */
typedef struct shape_key {
    int64_t m, n, k, lda, ldb, ldc, ldd, batch, stride_a, stride_b, stride_c, stride_d;
    int32_t trans_a, trans_b, type, type_out, bias, reads_c, alignment[5];
} shape_key;

typedef struct shape_plan {
    shape_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    int refused; /* cuBLASLt has nothing for it: the plain kernel serves */
    struct shape_plan *next;
} shape_plan;

enum { BUCKETS = 256, WORKSPACE = 32 << 20 };

struct cuda_blas {
    lt_library lt;
    cublasLtHandle_t handle;
    void *workspace;
    int tf32;
    shape_plan *plans[BUCKETS];
    char failure[160];
};

static int alignment_of(const void *p)
{
    for (int bytes = 256; bytes > 1; bytes /= 2)
        if ((uintptr_t)p % (uintptr_t)bytes == 0) return bytes;
    return 1;
}

static shape_key key_of(const cuda_blas_product *p)
{
    shape_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m, key.n = p->n, key.k = p->k;
    key.lda = p->lda, key.ldb = p->ldb, key.ldd = p->ldd;
    key.reads_c = p->beta != 0;
    key.ldc = key.reads_c ? p->ldc : p->ldd;
    key.batch = p->batch ? p->batch : 1;
    if (key.batch > 1) {
        key.stride_a = p->stride_a, key.stride_b = p->stride_b, key.stride_d = p->stride_d;
        key.stride_c = key.reads_c ? p->stride_c : p->stride_d;
    }
    key.trans_a = p->trans_a, key.trans_b = p->trans_b;
    key.type = p->type, key.type_out = p->type_out;
    key.bias = p->bias != NULL;
    key.alignment[0] = alignment_of(p->a), key.alignment[1] = alignment_of(p->b);
    key.alignment[2] = alignment_of(key.reads_c ? p->c : p->d), key.alignment[3] = alignment_of(p->d);
    key.alignment[4] = p->bias ? alignment_of(p->bias) : 256;
    return key;
}

static unsigned bucket_of(const shape_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash % BUCKETS;
}

static cudaDataType_t data_type(int type)
{
    return type == CUDA_BLAS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A column-major view of rows x columns stored row by row with `ld` elements between rows. */
static cublasStatus_t make_layout(const lt_library *lt, cublasLtMatrixLayout_t *layout, int type,
                                  int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride)
{
    cublasStatus_t status =
        lt->MatrixLayoutCreate(layout, data_type(type), (uint64_t)columns, (uint64_t)rows, ld);
    int32_t count = (int32_t)batch;
    if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
        status =
            lt->MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
        status = lt->MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride);
    return status;
}

static cublasStatus_t make_product(const cuda_blas *blas, shape_plan *plan)
{
    const lt_library *lt = &blas->lt;
    const shape_key *k = &plan->key;
    int tf32 = blas->tf32 && k->type == CUDA_BLAS_F32;
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t first = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t status = lt->MatmulDescCreate(&plan->product, compute, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->MatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (status == CUBLAS_STATUS_SUCCESS && k->bias)
        status = lt->MatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue);
    return status;
}

static cublasStatus_t make_layouts(const lt_library *lt, shape_plan *plan)
{
    const shape_key *k = &plan->key;
    cublasStatus_t status = make_layout(lt, &plan->a, k->type, k->trans_b ? k->n : k->k,
                                        k->trans_b ? k->k : k->n, k->ldb, k->batch, k->stride_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &plan->b, k->type, k->trans_a ? k->k : k->m, k->trans_a ? k->m : k->k,
                             k->lda, k->batch, k->stride_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &plan->c, k->type_out, k->m, k->n, k->ldc, k->batch, k->stride_c);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &plan->d, k->type_out, k->m, k->n, k->ldd, k->batch, k->stride_d);
    return status;
}

/* The heuristics' first choice whose reductions, if any, have a fixed order. */
static cublasStatus_t choose(const cuda_blas *blas, shape_plan *plan)
{
    const lt_library *lt = &blas->lt;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    uint64_t workspace = WORKSPACE;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t bytes;
    } alignment[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)plan->key.alignment[1]},
                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)plan->key.alignment[0]},
                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)plan->key.alignment[2]},
                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)plan->key.alignment[3]}};
    cublasStatus_t status = lt->MatmulPreferenceCreate(&wish);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = lt->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                  &reductions, sizeof reductions);
    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = lt->MatmulPreferenceSetAttribute(wish, alignment[i].name, &alignment[i].bytes,
                                                  sizeof alignment[i].bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulAlgoGetHeuristic(blas->handle, plan->product, plan->a, plan->b, plan->c, plan->d,
                                            wish, 1, &found, &count);
    (void)lt->MatmulPreferenceDestroy(wish);
    if (status == CUBLAS_STATUS_SUCCESS && count < 1) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    plan->algorithm = found.algo;
    plan->workspace = found.workspaceSize;
    return found.state;
}

static void free_plan(const lt_library *lt, shape_plan *plan)
{
    if (plan->product) (void)lt->MatmulDescDestroy(plan->product);
    if (plan->a) (void)lt->MatrixLayoutDestroy(plan->a);
    if (plan->b) (void)lt->MatrixLayoutDestroy(plan->b);
    if (plan->c) (void)lt->MatrixLayoutDestroy(plan->c);
    if (plan->d) (void)lt->MatrixLayoutDestroy(plan->d);
    free(plan);
}

static void note(cuda_blas *blas, const cuda_blas_product *p, const char *what, int status)
{
    if (blas->failure[0]) return;
    snprintf(
        blas->failure, sizeof blas->failure,
        "matrix product [%lld x %lld] x [%lld x %lld] on the GPU: %s (cuBLASLt status %d); use device=cpu",
        (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n, what, status);
}

/* The plan of a shape, made when it is first seen. NULL: no memory. */
static shape_plan *find_plan(cuda_blas *blas, const cuda_blas_product *p)
{
    shape_key key = key_of(p);
    unsigned bucket = bucket_of(&key);
    for (shape_plan *plan = blas->plans[bucket]; plan; plan = plan->next)
        if (!memcmp(&plan->key, &key, sizeof key)) return plan;
    shape_plan *plan = (shape_plan *)calloc(1, sizeof *plan);
    if (!plan) return NULL;
    plan->key = key;
    cublasStatus_t status = make_product(blas, plan);
    if (status == CUBLAS_STATUS_SUCCESS) status = make_layouts(&blas->lt, plan);
    if (status == CUBLAS_STATUS_SUCCESS) status = choose(blas, plan);
    plan->refused = status != CUBLAS_STATUS_SUCCESS;
    plan->next = blas->plans[bucket];
    blas->plans[bucket] = plan;
    return plan;
}

void cuda_blas_multiply(const kernel_run *run, const cuda_blas_product *p)
{
    cuda_blas *blas = run->blas;
    if (p->m < 1 || p->n < 1) return;
    shape_plan *plan = p->k > 0 ? find_plan(blas, p) : NULL;
    if (p->k > 0 && !plan) return note(blas, p, "no memory for its plan", 0);
    if (!plan || plan->refused) return cuda_plain_product(run, p);
    const lt_library *lt = &blas->lt;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p->bias)
        status = lt->MatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                            sizeof p->bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->Matmul(blas->handle, plan->product, &p->alpha, p->b, plan->a, p->a, plan->b, &p->beta,
                            p->beta != 0 ? p->c : p->d, plan->c, p->d, plan->d, &plan->algorithm,
                            blas->workspace, plan->workspace, (cudaStream_t)run->stream);
    if (status != CUBLAS_STATUS_SUCCESS) note(blas, p, "refused", (int)status);
}

/* ---- for the device ---- */
/* The library and its handle, made once: it may be used by several threads at a time, and giving it back
 * would stop the GPU. */
static const char *lt_shared(lt_library *lt, cublasLtHandle_t *handle)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static lt_library library;
    static cublasLtHandle_t made;
    pthread_mutex_lock(&lock);
    const char *missing = made ? NULL : lt_open(&library);
    if (!missing && !made && library.Create(&made) != CUBLAS_STATUS_SUCCESS) {
        made = NULL;
        missing = "cuBLASLt does not start; use device=cpu";
    }
    *lt = library;
    *handle = made;
    pthread_mutex_unlock(&lock);
    return missing;
}

struct cuda_blas *cuda_blas_create(int tf32, char *message, size_t size)
{
    cuda_blas *blas = (cuda_blas *)calloc(1, sizeof *blas);
    const char *missing = blas ? lt_shared(&blas->lt, &blas->handle) : "no memory";
    if (!missing && cuda_take(&blas->workspace, WORKSPACE) != cudaSuccess) {
        (void)cudaGetLastError();
        missing = "no device memory for the workspace of matrix products; use device=cpu";
    }
    if (!missing) {
        blas->tf32 = tf32;
        return blas;
    }
    snprintf(message, size, "%s", missing);
    cuda_blas_destroy(blas);
    return NULL;
}

void cuda_blas_destroy(struct cuda_blas *blas)
{
    if (!blas) return;
    for (int i = 0; i < BUCKETS; i++)
        for (shape_plan *plan = blas->plans[i], *next; plan; plan = next) {
            next = plan->next;
            free_plan(&blas->lt, plan);
        }
    cuda_give(blas->workspace);
    free(blas);
}

const char *cuda_blas_take_failure(struct cuda_blas *blas)
{
    static thread_local char taken[sizeof blas->failure];
    if (!blas->failure[0]) return NULL;
    memcpy(taken, blas->failure, sizeof taken);
    blas->failure[0] = 0;
    return taken;
}
