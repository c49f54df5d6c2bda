/* Instantiates the tensor-core kernels for the width FAST_D. Included by cuda_fast_<width>.cu, so that the
 * widths compile side by side. */
#include "kernels/blurry/cuda_fast_correct.cuh"
#include "kernels/blurry/cuda_fast_forward.cuh"
#include "kernels/blurry/cuda_fast_rows.cuh"

/* Warps that share the slots of a row group: the state of the largest shapes takes the registers of eight. */
static constexpr int state_split(int D, int SP)
{
    return SP * D > 8192 ? 2 : 1;
}

template <int D, int SP, bool DECAY>
static void forward_launch(const bla_call *call, const fast_run *run, fast_pass pass, cudaStream_t stream)
{
    typedef advance_form<D, SP, state_split(D, SP)> state;
    bool increments = pass == FAST_INCREMENTS;
    int64_t blocks = call->chains * (increments ? (run->segments - 1) * run->parts : run->segments);
    if (blocks <= 0) return;
    if (pass == FAST_READ) {
        typedef forward_form<D, SP, DECAY> read;
        cuda_launch_early(run->early, fast_forward_kernel<D, SP, DECAY>, dim3((unsigned)blocks),
                          dim3(read::THREADS), read::SHARED, stream, *call, *run);
        return;
    }
    cuda_launch(fast_advance_kernel<D, SP, state::SPLIT, DECAY>, dim3((unsigned)blocks), dim3(state::THREADS),
                state::SHARED, stream, *call, *run, (int)increments);
}

template <int D, int SP, bool DECAY>
static void backward_launch(const bla_call *call, const fast_run *run, bool correct, cudaStream_t stream)
{
    int64_t blocks = call->chains * (correct ? (run->segments - 1) * run->parts : run->segments);
    if (blocks <= 0) return;
    if (correct)
        cuda_launch(fast_correct_kernel<D, SP, DECAY>, dim3((unsigned)blocks), dim3(256),
                    correct_form<D, SP>::SHARED, stream, *call, *run);
    else
        cuda_launch(fast_backward_kernel<D, SP, DECAY>, dim3((unsigned)blocks), dim3(256),
                    backward_form<D, SP>::SHARED + (DECAY ? backward_form<D, SP>::C : 0), stream, *call,
                    *run);
}

template <int D, int SP, bool DECAY>
static void read_launch(const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    typedef read_form<D, SP> F;
    unsigned most = (unsigned)(run->spread * F::BLOCKS);
    if (run->units == 0) return;
    cuda_launch_early(run->early, fast_read_kernel<D, SP, DECAY>, dim3(run->units < most ? run->units : most),
                      dim3(F::THREADS), F::SHARED, stream, *call, *run);
}

template <int D, int SP, bool DECAY> static constexpr auto read_of(void) -> decltype(fast_kernels::read)
{
    if constexpr (read_form<D, SP>::FITS) return read_launch<D, SP, DECAY>;
    return NULL;
}

template <int D, int SP, bool DECAY>
static void rows_launch(const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    typedef rows_form<D, SP> F;
    if (run->units == 0) return;
    cuda_launch_early(run->early, fast_rows_kernel<D, SP, DECAY>, dim3(run->units), dim3(F::THREADS),
                      F::SHARED + (DECAY ? F::TABLE : 0), stream, *call, *run);
}
template <int D, int SP, bool DECAY> static constexpr auto rows_of(void) -> decltype(fast_kernels::rows)
{
    if constexpr (rows_form<D, SP>::FITS) return rows_launch<D, SP, DECAY>;
    return NULL;
}

template <int D, int SP, bool DECAY> static const fast_kernels *kernels_of(void)
{
    static const fast_kernels kernels = {D,
                                         SP,
                                         forward_form<D, SP, DECAY>::BLOCKS,
                                         advance_form<D, SP, state_split(D, SP)>::BLOCKS,
                                         backward_form<D, SP>::BLOCKS,
                                         forward_launch<D, SP, DECAY>,
                                         backward_launch<D, SP, DECAY>,
                                         read_of<D, SP, DECAY>(),
                                         rows_of<D, SP, DECAY>()};
    return &kernels;
}

template <int D> static const fast_kernels *kernels_for(int slots, int decay)
{
    if (slots == 32) return decay ? kernels_of<D, 32, true>() : kernels_of<D, 32, false>();
    if (slots == 64) return decay ? kernels_of<D, 64, true>() : kernels_of<D, 64, false>();
    if (slots == 128) return decay ? kernels_of<D, 128, true>() : kernels_of<D, 128, false>();
    return NULL;
}
